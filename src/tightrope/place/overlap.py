"""Find two rectangles of time x address that share bytes while both are alive.

Idea        Sweep over time with the live rectangles by address. They are disjoint until the first
            overlap, so a new one can only meet its two neighbours.
Guarantee   None means that no two overlap; rectangles without bytes overlap nothing.
Complexity  O(n log n) comparisons
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

from tightrope.core import Bytes, Offset

Rectangle: TypeAlias = tuple[Offset, Bytes, int, int]
"""Lowest address, size, start and end of its life."""


def first_overlap(rectangles: Sequence[Rectangle]) -> tuple[int, int] | None:
    """Return the indices of two rectangles that overlap, ascending; None = there are none.

    Example:
        >>> first_overlap([(0, 8, 0, 2), (8, 8, 0, 2), (12, 8, 1, 3)])
        (1, 2)
    """
    if len(rectangles) < 2:
        return None
    events: list[tuple[int, bool, int]] = []
    for number, (_, size, start, end) in enumerate(rectangles):
        if size:
            events += [(start, True, number), (end, False, number)]
    live: list[tuple[Offset, int]] = []
    for _, begins, number in sorted(events):
        entry = (rectangles[number][0], number)
        at = bisect_left(live, entry)
        if not begins:
            del live[at]
            continue
        if at > 0 and live[at - 1][0] + rectangles[live[at - 1][1]][1] > entry[0]:
            return _ascending(live[at - 1][1], number)
        if at < len(live) and entry[0] + rectangles[number][1] > live[at][0]:
            return _ascending(live[at][1], number)
        live.insert(at, entry)
    return None


def _ascending(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)
