"""Check the addresses of blocks: overlaps, alignments, windows, spaces, distances inside a block.

Idea        Every piece of every block becomes one rectangle at its block's offset plus its own
            distance, so distances inside a block hold by construction; per space, no two that are
            alive at once may overlap: see `tightrope.judge.sweep`.
Guarantee   Passes exactly when pieces of one space that are alive together share no byte, and every
            block has a legal offset in a space that it may use.
Complexity  O(n log n) comparisons for n pieces, plus the windows of each block.
"""

from collections.abc import Sequence

from tightrope.core import JudgeError, Offset, Space
from tightrope.judge.sweep import Rectangle, overlap
from tightrope_planners.values.blocks import Block


def check_blocks(
    blocks: Sequence[Block],
    offsets: Sequence[Offset],
    homes: Sequence[int],
    *,
    spaces: Sequence[Space],
) -> None:
    """Refuse addresses of blocks that overlap, are misaligned, or lie where they must not.

    Args:
        blocks: what was placed.
        offsets: one per block, inside its space.
        homes: index of every block's space.
        spaces: the spaces and their capacities.

    Raises:
        JudgeError: names the block.
    """
    if not len(blocks) == len(offsets) == len(homes):
        raise JudgeError(f"blocks: {len(offsets)} offsets and {len(homes)} spaces for {len(blocks)} blocks.")
    for number, (block, offset, home) in enumerate(zip(blocks, offsets, homes, strict=True)):
        problem = _problem(block, offset, home, spaces)
        if problem:
            raise JudgeError(f"block {number} at offset {offset}: {problem}.")
    for home in range(len(spaces)):
        _check_overlaps(
            [
                (number, Rectangle(offset + piece.low, piece.size, piece.start, piece.end))
                for number, (block, offset) in enumerate(zip(blocks, offsets, strict=True))
                if homes[number] == home
                for piece in block.pieces
            ]
        )


def _problem(block: Block, offset: Offset, home: int, spaces: Sequence[Space]) -> str:
    if not 0 <= home < len(spaces):
        return f"its space {home} does not exist"
    space = spaces[home]
    if block.spaces and space.name not in block.spaces:
        return f"it may not lie in space {space.name!r}"
    if block.fixed is not None and offset != block.fixed:
        return f"it is fixed at {block.fixed}"
    if offset < 0 or offset % block.alignment:
        return f"negative, or not a multiple of {block.alignment}"
    for piece in block.pieces:
        if piece.size < 0 or piece.start >= piece.end:
            return f"a piece has {piece.size} bytes in [{piece.start}, {piece.end})"
        low, high = offset + piece.low, offset + piece.low + piece.size
        if low < 0 or high > space.capacity:
            return f"bytes [{low}, {high}) leave space {space.name!r} of {space.capacity} bytes"
        for first, last in block.forbidden:
            if piece.size and low < last and first < high:
                return f"bytes [{low}, {high}) enter the forbidden window [{first}, {last})"
    return ""


def _check_overlaps(rows: Sequence[tuple[int, Rectangle]]) -> None:
    found = overlap([rectangle for _, rectangle in rows])
    if found is not None:
        (below, low), (above, high) = rows[found[0]], rows[found[1]]
        raise JudgeError(
            f"block {below} in bytes [{low.low}, {low.low + low.size}) overlaps block {above} in bytes "
            f"[{high.low}, {high.low + high.size}) at time {found[2]}."
        )
