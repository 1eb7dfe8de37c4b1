"""Find two rectangles of time x address that share a byte while both are alive.

Source      The sweep of `tightrope.judge.sweep`, of which a judge here may use nothing.
Idea        Sweep over time with the live rectangles, sorted by address. They are disjoint as long as
            no overlap was found, so a new one can only meet its two neighbours.
Guarantee   None exactly when no two overlap. Lifetimes are half-open; no bytes overlap nothing.
Complexity  O(n log n) comparisons.

    address ^
            |      +--B--+
            | +-A--+     |      A ends where B starts: they may share addresses
            +-+----+-----+-> tick
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from tightrope.core import Bytes, Offset


class PlacedPiece(NamedTuple):
    """Bytes ``[low, low + size)`` in the ticks ``[start, end)``."""

    low: Offset
    size: Bytes
    start: int
    end: int


def overlap(rectangles: Sequence[PlacedPiece]) -> tuple[int, int, int] | None:
    """Return the lower and the higher of two that overlap, and a tick at which both are alive.

    Example:
        >>> overlap([PlacedPiece(0, 64, 0, 2), PlacedPiece(0, 64, 2, 4), PlacedPiece(32, 64, 3, 4)])
        (1, 2, 3)
    """
    ticks: list[tuple[int, bool, int]] = []
    for number, rectangle in enumerate(rectangles):
        if rectangle.size:
            ticks += [(rectangle.start, True, number), (rectangle.end, False, number)]
    live: list[tuple[Offset, int]] = []
    for tick, begins, number in sorted(ticks):
        entry = (rectangles[number].low, number)
        place = bisect_left(live, entry)
        if not begins:
            del live[place]
            continue
        if place > 0 and live[place - 1][0] + rectangles[live[place - 1][1]].size > entry[0]:
            return live[place - 1][1], number, tick
        if place < len(live) and entry[0] + rectangles[number].size > live[place][0]:
            return number, live[place][1], tick
        live.insert(place, entry)
    return None
