"""Revolve: binomial checkpointing of a chain with a number of equal slots.

Idea        With s slots, one of them holding the input, sweep to the segment that splits the chain best,
            keep its input in a slot, treat the right part with s - 1 slots, then the left with s. The
            split follows from N(l, s) = min over j of j + N(l - j, s - 1) + N(j, s), N(l, 1) = l(l-1)/2.
Source      Griewank and Walther, Revolve (ACM TOMS 2000)
Guarantee   N(l, s) = r l - C(s + r, r - 1) sweeps, with the r for which C(s + r - 1, s) <= l <= C(s + r, s):
            the least of all schedules where segments are equal in time and bytes.
Complexity  O(L^2 * slots)
Gaps        Real segments differ: every number of slots is measured, and the cheapest that fits is taken.
"""

from collections.abc import Iterator
from functools import cache

from tightrope.core import Graph, Limits, Machine, Schedule
from tightrope.plan.engine import live_limit
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand
from tightrope_planners.peers.chain import Chain, Rerun, best_reruns, chain_of, joined

_MAX_SEGMENTS = 120


def revolve(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan a chain by binomial checkpointing; the cheapest number of slots that fits, else the closest.

    Raises:
        TightropeError: the forward pass is not a chain.
    """
    del machine
    chain = joined(chain_of(graph, planner="revolve"), _MAX_SEGMENTS)
    pairs = best_reruns(chain, _candidates(chain), live_limit(graph, limits), options)
    return expand(graph, pairs)


def num_sweeps(length: int, slots: int) -> int:
    """Count the segments that the best schedule runs without saving, beside one saving run of each.

    Example:
        >>> num_sweeps(10, 3)
        15
    """
    return _best(length, slots)[0]


def binomial_reruns(length: int, slots: int) -> list[Rerun]:
    """List the re-runs of the best schedule with ``slots`` slots, the first pass left out.

    Returns:
        `num_sweeps` of them: the first pass runs every segment once, as the saving runs would.
    """
    result: list[Rerun] = []
    waiting = [(0, length, slots)]
    while waiting:
        start, size, free = waiting.pop()
        end = start + size
        split = _best(size, free)[1]
        if split:
            result += [(end - 1, segment) for segment in range(start, start + split)]
            waiting += [(start, split, free), (start + split, size - split, free - 1)]
        else:
            result += [(late, early) for late in range(start, end) for early in range(start, late + 1)]
    return [(late, early) for late, early in result if late < length - 1]


@cache
def _best(length: int, slots: int) -> tuple[int, int]:
    """Find N(length, slots) and the first split, 0 where no slot is free."""
    if slots == 1 or length == 1:
        return length * (length - 1) // 2, 0
    return min(
        (split + _best(length - split, slots - 1)[0] + _best(split, slots)[0], split)
        for split in range(1, length)
    )


def _candidates(chain: Chain) -> Iterator[list[Rerun]]:
    yield []
    for slots in range(len(chain.segments), 0, -1):
        yield binomial_reruns(len(chain.segments), slots)
