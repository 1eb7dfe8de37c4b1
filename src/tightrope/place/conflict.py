"""Why a placement missed its capacity: a small set of intervals that does not fit.

Idea        Where bytes alive at one instant exceed the capacity, the largest of them that do are the
            answer. Else drop intervals in ever smaller portions, those furthest from the highest tops
            first, as long as the placer still misses the capacity on what is left.
Source      deletion filter, Chinneck and Dravnieks (1991); ddmin, Zeller and Hildebrandt (2002)
Guarantee   ``proved``: the core alone does not fit. A core from one instant is irreducible: without
            any of its intervals it would not exceed the capacity there.
Complexity  one sort for an instant; else a bounded number of placements
Gaps        Without a proof the core says only that the placer found nothing in its effort.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, TightropeError
from tightrope.place.options import check_effort, check_whole
from tightrope.place.placer import Interval, Placement, place


@dataclass(frozen=True, slots=True)
class Conflict:
    """A small set of intervals that was not placed within a capacity.

    Attributes:
        core: indices of the intervals, ascending.
        start: first instant at which one of them is alive.
        end: first instant after all of them.
        need: bytes that the core takes: its load where that exceeds the capacity, else the smallest
            peak found for it.
        proved: no placement of the core fits. Otherwise none was found.
    """

    core: tuple[int, ...]
    start: int
    end: int
    need: Bytes
    proved: bool


_PROBES: Final = 200


def conflict(
    intervals: Sequence[Interval], capacity: Bytes, *, seconds: float = 0.5, seed: int = 0
) -> Conflict | None:
    """Find a small set of intervals that does not fit, for a planner to cut.

    To make room, at least ``need - capacity`` bytes of the core must not be alive between ``start``
    and ``end``: recompute, page or reorder something in it, and place again.

    Args:
        intervals: (size in bytes, start, end), half-open.
        capacity: bytes.
        seconds: of effort for all placements together.
        seed: of the placer.

    Returns:
        The core; None = the placer fits the intervals into the capacity.

    Raises:
        TightropeError: a malformed interval, or a negative capacity.

    Example:
        >>> conflict([(64, 0, 2), (64, 1, 3), (8, 5, 6)], 100)
        Conflict(core=(0, 1), start=0, end=3, need=128, proved=True)
    """
    check_whole("capacity", capacity)
    check_effort(seconds, seed)
    if seconds == 0:
        raise TightropeError("seconds is 0: a search for a core needs some.")
    whole = place(intervals, capacity=capacity, seconds=seconds / 4, seed=seed)
    if whole.peak <= capacity:
        return None
    if whole.lower_bound > capacity:
        core = _heaviest(intervals, whole.witness, capacity)
        return _report(intervals, core, sum(intervals[j][0] for j in core), True)
    search = _Deletion(intervals, capacity, seconds * 3 / 4, seed)
    core, last = search.run(_by_distance(intervals, whole), whole)
    return _report(intervals, core, last.peak, last.status == "infeasible")


def _heaviest(intervals: Sequence[Interval], alive: Sequence[int], capacity: Bytes) -> list[int]:
    """Take the largest of those alive at one instant until their sum exceeds the capacity."""
    core: list[int] = []
    total = 0
    for index in sorted(alive, key=lambda j: (-intervals[j][0], j)):
        core.append(index)
        total += intervals[index][0]
        if total > capacity:
            break
    return core


def _by_distance(intervals: Sequence[Interval], whole: Placement) -> list[int]:
    """Order intervals by their distance in time from the one that reaches highest, furthest first."""
    tops = [offset + size for offset, (size, _, _) in zip(whole.offsets, intervals, strict=True)]
    _, begin, finish = intervals[max(range(len(tops)), key=tops.__getitem__)]

    def distance(index: int) -> tuple[int, int]:
        size, start, end = intervals[index]
        return max(start - finish, begin - end, 0), -size

    return sorted(range(len(intervals)), key=distance, reverse=True)


class _Deletion:
    """Drops portions of a set that the placer misses, while it still misses it."""

    def __init__(self, intervals: Sequence[Interval], capacity: Bytes, seconds: float, seed: int) -> None:
        self.intervals, self.capacity, self.seed = intervals, capacity, seed
        self.probe_seconds = seconds / 40
        self.stop_at = time.thread_time() + 4 * seconds
        self.probes = 0

    @property
    def over(self) -> bool:
        return self.probes >= _PROBES or time.thread_time() > self.stop_at

    def run(self, order: list[int], whole: Placement) -> tuple[list[int], Placement]:
        """Return what is left, and its last missed placement."""
        core, last = order, whole
        portion = -(-len(core) // 2)
        while portion and not self.over:
            at = 0
            while at < len(core) and len(core) > 1 and not self.over:
                rest = core[:at] + core[at + portion :]
                missed = self._missed(rest)
                if missed is None:
                    at += portion
                else:
                    core, last = rest, missed
            portion = portion // 2
        return core, last

    def _missed(self, chosen: list[int]) -> Placement | None:
        self.probes += 1
        found = place(
            [self.intervals[j] for j in chosen],
            capacity=self.capacity,
            seconds=self.probe_seconds,
            seed=self.seed,
        )
        return found if found.peak > self.capacity else None


def _report(intervals: Sequence[Interval], core: Sequence[int], need: Bytes, proved: bool) -> Conflict:
    return Conflict(
        core=tuple(sorted(core)),
        start=min(intervals[j][1] for j in core),
        end=max(intervals[j][2] for j in core),
        need=need,
        proved=proved,
    )
