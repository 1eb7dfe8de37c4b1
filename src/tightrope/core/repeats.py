"""Times of recorded steps that repeat: their medians, and whether two recordings differ by more than noise.

Idea        Two recordings of several steps each give two samples of every time. They differ beyond the
            noise when no value of one lies between those of the other.
Source      The permutation test of two samples, with complete separation as what is tested.
Guarantee   Where nothing changed and steps are independent, samples of n and m values without ties are
            separated with probability 2 / C(n + m, n). Nothing is said where that is `CHANCE` or more:
            4 steps against 4 are enough, 3 against 3 are not.
Complexity  Linear in the events of all steps.
Gaps        A machine that is slower throughout the second recording looks like a change. Of 100 figures that
            did not change, 3 may still be said to have where steps are 4 against 4 (0.8 where they are 5).
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import comb
from statistics import median
from typing import Final, NamedTuple

from tightrope.core.trace import Event, Trace
from tightrope.core.units import Nanoseconds, format_time

CHANCE: Final = 0.05
"""Largest probability of calling a change what is none."""


_WORDS: Final = {None: "", False: " (within the noise)", True: " (beyond the noise)"}


class TimeChange(NamedTuple):
    """Time of some events in two traces: medians over the steps that each recorded.

    Attributes:
        name: of a stage or a module.
        ns: before and after.
        beyond_noise: see `beyond_noise`.
    """

    name: str
    ns: tuple[Nanoseconds, Nanoseconds]
    beyond_noise: bool | None

    def __str__(self) -> str:
        before, after = self.ns
        return f"{self.name}: {format_time(before)} -> {format_time(after)}{_WORDS[self.beyond_noise]}"


def time_changes(
    before: Trace, after: Trace, name_of: Callable[[Trace, Event], str]
) -> tuple[TimeChange, ...]:
    """Compare own times of events by name, the largest difference first; those that are equal too.

    Example:
        >>> old, new = (Trace("observed", (), (Event(0, ns, 0, "aten.mm"),)) for ns in (5_000, 7_000))
        >>> print(time_changes(old, new, lambda trace, event: event.name)[0])
        aten.mm: 5.00 us -> 7.00 us
    """
    was, now = (times_by(trace, partial(name_of, trace)) for trace in (before, after))
    absent = [[0] * (1 + len(trace.repeats)) for trace in (before, after)]
    found = []
    for name in {**was, **now}:
        old, new = was.get(name, absent[0]), now.get(name, absent[1])
        found.append(TimeChange(name, (round(median(old)), round(median(new))), beyond_noise(old, new)))
    return tuple(sorted(found, key=lambda row: (-abs(row.ns[1] - row.ns[0]), row.name)))


def times_by(trace: Trace, name_of: Callable[[Event], str]) -> dict[str, list[Nanoseconds]]:
    """Add up own times of events by name: per recorded step, the last one last.

    Example:
        >>> step = Trace("observed", (), (Event(0, 5, 0, "aten.mm"),), repeats=((7,), (6,)))
        >>> times_by(step, lambda event: event.name)
        {'aten.mm': [7, 6, 5]}
    """
    steps = (*trace.repeats, trace.self_times())
    found: dict[str, list[Nanoseconds]] = {}
    for position, event in enumerate(trace.events):
        row = found.setdefault(name_of(event), [0] * len(steps))
        for number, own in enumerate(steps):
            row[number] += own[position]
    return found


def beyond_noise(before: Sequence[Nanoseconds], after: Sequence[Nanoseconds]) -> bool | None:
    """Whether times of one recording all lie above or all below those of another.

    Args:
        before: one time per step.
        after: likewise.

    Returns:
        None where there are too few steps to tell.

    Example:
        >>> beyond_noise([1, 2, 3, 4], [5, 6, 7, 8]), beyond_noise([1, 2, 3, 9], [5, 6, 7, 8])
        (True, False)
        >>> beyond_noise([1, 2, 3], [5, 6, 7])
    """
    if not before or not after or 2 / comb(len(before) + len(after), len(after)) >= CHANCE:
        return None
    return max(before) < min(after) or max(after) < min(before)
