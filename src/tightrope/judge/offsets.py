"""Check planned addresses against lifetimes.

Idea        Every block has a legal address of its own, and no two that are alive at once overlap: see
            `tightrope.judge.sweep`.
Guarantee   Passes exactly when no two blocks that are alive at once share a byte, every block lies
            inside the arena on its alignment, and blocks outside the arena have no address.
Complexity  O(n log n) comparisons.
"""

from collections.abc import Sequence

from tightrope.core import ALIGNMENT, Bytes, JudgeError, Offset
from tightrope.judge.ledger import Interval
from tightrope.judge.sweep import Rectangle, overlap


def check_offsets(
    intervals: Sequence[Interval],
    offsets: Sequence[Offset],
    *,
    arena: Bytes,
    alignment: Bytes = ALIGNMENT,
) -> None:
    """Refuse an offset table that overlaps, is misaligned or leaves the arena.

    Blocks of 0 bytes may have any address inside the arena, or none.

    Args:
        intervals: every allocation, in order.
        offsets: one per interval, -1 for those outside the arena.
        arena: bytes reserved.
        alignment: every address is a multiple of this and of the interval's own alignment.

    Raises:
        JudgeError: names the allocations.
    """
    if len(intervals) != len(offsets):
        raise JudgeError(f"offsets: {len(offsets)} given for {len(intervals)} allocations.")
    for number, (interval, offset) in enumerate(zip(intervals, offsets, strict=True)):
        _check_block(number, interval, offset, arena, alignment)
    _check_overlaps(intervals, offsets)


def _check_block(number: int, block: Interval, offset: Offset, arena: Bytes, alignment: Bytes) -> None:
    who = f"offsets: {_title(number, block)}"
    if block.size < 0 or not 0 <= block.start < block.end:
        raise JudgeError(f"{who} has lifetime [{block.start}, {block.end}): it must begin before it ends.")
    if block.outside:
        if offset != -1:
            raise JudgeError(f"{who} is outside the arena but has offset {offset}.")
    elif not (block.size == 0 and offset == -1):
        if offset < 0 or offset + block.size > arena:
            raise JudgeError(f"{who} at offset {offset} leaves the arena of {arena} bytes.")
        if offset % alignment or offset % block.alignment:
            raise JudgeError(
                f"{who} at offset {offset} is not a multiple of {max(alignment, block.alignment)}."
            )


def _check_overlaps(intervals: Sequence[Interval], offsets: Sequence[Offset]) -> None:
    inside = [number for number, block in enumerate(intervals) if block.size and not block.outside]
    blocks = [(offsets[number], intervals[number]) for number in inside]
    found = overlap([Rectangle(offset, block.size, block.start, block.end) for offset, block in blocks])
    if found is not None:
        low, high = inside[found[0]], inside[found[1]]
        below, above = _title(low, intervals[low]), _title(high, intervals[high])
        raise JudgeError(
            f"offsets: {below} at {offsets[low]} overlaps {above} at {offsets[high]}; "
            f"both are live at tick {found[2]}."
        )


def _title(number: int, block: Interval) -> str:
    what = f"storage {block.storage}" if block.storage >= 0 else "temporary"
    return f"allocation {number} ({what}, {block.size} bytes)"
