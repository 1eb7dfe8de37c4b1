"""Square-root checkpointing: keep the ends of groups of segments, run every group again once.

Idea        Walk the chain and close a group as soon as the bytes saved inside it pass a threshold. Only
            what groups hand over is kept; each group but the last runs again as a whole just before its
            backward. Thresholds around the square root of (saved bytes * handed-over bytes) are tried,
            from one group up to one per segment.
Source      Chen et al., Training deep nets with sublinear memory cost (2016), algorithms 1 and 3
Guarantee   Every op runs at most twice. On L equal segments that save one unit each and hand over one:
            about 2 sqrt(L) units in the best candidate.
Complexity  O(candidates * (ops + pairs))
Gaps        No recursion inside a group.
"""

from collections.abc import Iterator

from tightrope.core import Bytes, Graph, Limits, Machine, Schedule
from tightrope.plan.engine import live_limit
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand
from tightrope_planners.peers.chain import Chain, Rerun, best_reruns, chain_of
from tightrope_planners.peers.chain_sizes import segment_sizes

_NUM_THRESHOLDS = 40


def sqrt(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan a chain by groups; the cheapest grouping that fits, else the closest.

    Raises:
        TightropeError: the forward pass is not a chain.
    """
    del machine
    chain = chain_of(graph, planner="sqrt")
    pairs = best_reruns(chain, groupings(chain), live_limit(graph, limits), options)
    return expand(graph, pairs)


def groupings(chain: Chain) -> Iterator[list[Rerun]]:
    """List the re-runs of each grouping: one group of all, then smaller and smaller thresholds."""
    saved = [size.saved for size in segment_sizes(chain)]
    total = sum(saved)
    seen: set[tuple[int, ...]] = set()
    for step in range(_NUM_THRESHOLDS + 1):
        ends = _ends(saved, total * (_NUM_THRESHOLDS - step) // _NUM_THRESHOLDS)
        if ends not in seen:
            seen.add(ends)
            yield _reruns(ends)


def _ends(saved: list[Bytes], threshold: Bytes) -> tuple[int, ...]:
    """Close a group after the segment with which its saved bytes pass the threshold."""
    ends: list[int] = []
    inside = 0
    for number, size in enumerate(saved[:-1]):
        inside += size
        if inside > threshold:
            ends.append(number + 1)
            inside = 0
    return tuple(ends)


def _reruns(ends: tuple[int, ...]) -> list[Rerun]:
    """Run every group but the last again at the backward of its last segment."""
    starts = (0, *ends)
    return [
        (end - 1, number) for start, end in zip(starts, ends, strict=False) for number in range(start, end)
    ]
