"""Check planned addresses against lifetimes.

Idea        Sweep over time with the blocks that are live now, sorted by address. Live blocks are
            disjoint as long as no error was found, so a new block can only meet its two neighbours.
Guarantee   Passes exactly when no two blocks that are alive at once share a byte, every block lies
            inside the arena on its alignment, and blocks outside the arena have no address.
Complexity  O(n log n) comparisons.

    address ^
            |      +--B--+
            | +-A--+     |      A ends where B starts: they may share addresses
            +-+----+-----+-> tick
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from tightrope.core import ALIGNMENT, Bytes, JudgeError, Offset
from tightrope.judge.ledger import Interval


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
    _sweep(intervals, offsets)


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


def _sweep(intervals: Sequence[Interval], offsets: Sequence[Offset]) -> None:
    ticks = []
    for number, block in enumerate(intervals):
        if block.size and not block.outside:
            ticks += [(block.start, True, number), (block.end, False, number)]
    live: list[tuple[Offset, int]] = []
    for _, begins, number in sorted(ticks):
        entry = (offsets[number], number)
        place = bisect_left(live, entry)
        if not begins:
            del live[place]
            continue
        for _, other in live[max(place - 1, 0) : place + 1]:
            low, high = sorted((number, other), key=offsets.__getitem__)
            if offsets[low] + intervals[low].size > offsets[high]:
                below, above = _title(low, intervals[low]), _title(high, intervals[high])
                raise JudgeError(
                    f"offsets: {below} at {offsets[low]} overlaps {above} at {offsets[high]}; "
                    f"both are live at tick {intervals[number].start}."
                )
        insort(live, entry)


def _title(number: int, block: Interval) -> str:
    what = f"storage {block.storage}" if block.storage >= 0 else "temporary"
    return f"allocation {number} ({what}, {block.size} bytes)"
