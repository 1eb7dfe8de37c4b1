"""Check planned addresses against lifetimes.

Idea        Every block has a legal address of its own, and no two that are alive at once overlap: see
            `tightrope.judge.sweep`.
Guarantee   Passes exactly when no two blocks that are alive at once share a byte, every block lies
            inside the arena on its alignment, and blocks outside the arena have no address.
Complexity  O(n log n) comparisons.
"""

from collections.abc import Sequence

from tightrope.core import ALIGNMENT, Bytes, JudgeError
from tightrope.judge.footprint import Interval
from tightrope.judge.sweep import Rectangle, overlap


def check_offsets(intervals: Sequence[Interval], *, arena: Bytes, alignment: Bytes = ALIGNMENT) -> None:
    """Refuse addresses that overlap, are misaligned or leave the arena.

    Blocks of 0 bytes may have any address inside the arena, or none.

    Args:
        intervals: every allocation, in order.
        arena: bytes reserved.
        alignment: every address is a multiple of this.

    Raises:
        JudgeError: names the allocations.
    """
    for number, interval in enumerate(intervals):
        _check_block(number, interval, arena, alignment)
    inside = [number for number, block in enumerate(intervals) if block.size and not block.outside]
    blocks = [intervals[number] for number in inside]
    found = overlap([Rectangle(block.offset, block.size, block.start, block.end) for block in blocks])
    if found is not None:
        low, high = inside[found[0]], inside[found[1]]
        below, above = _title(low, intervals[low]), _title(high, intervals[high])
        raise JudgeError(
            f"offsets: {below} at {intervals[low].offset} overlaps {above} at {intervals[high].offset}; "
            f"both are live at tick {found[2]}."
        )


def _check_block(number: int, block: Interval, arena: Bytes, alignment: Bytes) -> None:
    size, start, end, _, offset, outside = block
    if size >= 0 and 0 <= start < end and not outside and offset % alignment == 0 <= offset <= arena - size:
        return
    who = f"offsets: {_title(number, block)}"
    if block.size < 0 or not 0 <= block.start < block.end:
        raise JudgeError(f"{who} has lifetime [{block.start}, {block.end}): it must begin before it ends.")
    if block.outside:
        if block.offset != -1:
            raise JudgeError(f"{who} is outside the arena but has offset {block.offset}.")
    elif not (block.size == 0 and block.offset == -1):
        if block.offset < 0 or block.offset + block.size > arena:
            raise JudgeError(f"{who} at offset {block.offset} leaves the arena of {arena} bytes.")
        if block.offset % alignment:
            raise JudgeError(f"{who} at offset {block.offset} is not a multiple of {alignment}.")


def _title(number: int, block: Interval) -> str:
    what = f"storage {block.storage}" if block.storage >= 0 else "temporary"
    return f"allocation {number} ({what}, {block.size} bytes)"
