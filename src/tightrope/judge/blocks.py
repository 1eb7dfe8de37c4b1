"""Check the addresses of blocks: overlaps, alignments, windows, spaces, distances inside a block.

Idea        Every piece of every block becomes one rectangle at its block's offset plus its own
            distance, so distances inside a block hold by construction. Per space, sweep over time
            with the rectangles that are alive, sorted by address: a new one can only meet its two
            neighbours.
Guarantee   Passes exactly when pieces of one space that are alive together share no byte, and every
            block has a legal offset in a space that it may use.
Complexity  O(n log n) comparisons for n pieces, plus the windows of each block.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from tightrope.core import Block, JudgeError, Offset, Space

_Rectangle = tuple[Offset, Offset, int, int, int]
"""Low, high, start, end, block."""


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
        _sweep(
            [
                (offset + piece.low, offset + piece.low + piece.size, piece.start, piece.end, number)
                for number, (block, offset) in enumerate(zip(blocks, offsets, strict=True))
                if homes[number] == home
                for piece in block.pieces
                if piece.size
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
        low, high = offset + piece.low, offset + piece.low + piece.size
        if low < 0 or high > space.capacity:
            return f"bytes [{low}, {high}) leave space {space.name!r} of {space.capacity} bytes"
        for first, last in block.forbidden:
            if piece.size and low < last and first < high:
                return f"bytes [{low}, {high}) enter the forbidden window [{first}, {last})"
    return ""


def _sweep(rectangles: Sequence[_Rectangle]) -> None:
    ticks = []
    for number, (_, _, start, end, _) in enumerate(rectangles):
        ticks += [(start, True, number), (end, False, number)]
    live: list[tuple[Offset, int]] = []
    for tick, begins, number in sorted(ticks):
        entry = (rectangles[number][0], number)
        place = bisect_left(live, entry)
        if not begins:
            del live[place]
            continue
        for _, other in live[max(place - 1, 0) : place + 1]:
            low, high = sorted((rectangles[number], rectangles[other]))
            if low[1] > high[0]:
                raise JudgeError(
                    f"block {low[4]} in bytes [{low[0]}, {low[1]}) overlaps block {high[4]} in bytes "
                    f"[{high[0]}, {high[1]}) at time {tick}."
                )
        insort(live, entry)
