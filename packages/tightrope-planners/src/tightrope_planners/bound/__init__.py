"""Bounds on added time that look at a few ops more closely than the gap cover of the core."""

from itertools import zip_longest
from typing import Final

from tightrope.core import Graph, OpId
from tightrope.plan.bound.cover import TimeBound
from tightrope.plan.bound.relaxation import Relaxation, Solution, peaks
from tightrope_planners.bound.program import Effort
from tightrope_planners.bound.staged import best_rows

_SMALL_OPS: Final = 400
_EFFORT: Final = (280_000, 1_800_000)
"""Most units of work, of about a microsecond, on graphs of up to so many ops, and on larger ones."""
_MOST_OPS: Final = 2_500
_CANDIDATES: Final = 8


def staged_bound(
    graph: Graph, relaxation: Relaxation, solution: Solution, *, upper: float, effort: int
) -> TimeBound | None:
    """Bound with stages between the ops that the cover weighs most, and those that lack most.

    Args:
        graph: one training step, in base order.
        relaxation: of its gap cover.
        solution: of the relaxation.
        upper: added time of a known schedule, inf = none; the search ends there.
        effort: factor on the amount of work; 0 = one linear program.

    Returns:
        None for a graph that is too large, or without candidates.
    """
    if len(graph.ops) > _MOST_OPS:
        return None
    most = effort * _EFFORT[len(graph.ops) > _SMALL_OPS]
    worth: dict[OpId, float] = {}
    for (op, _), weight in solution.weights.items():
        worth[op] = worth.get(op, 0.0) + weight * float(relaxation.short[op])
    weighed = sorted(worth, key=lambda op: -worth[op])
    highest = sorted(peaks(relaxation.short).tolist(), key=lambda op: -int(relaxation.short[op]))
    candidates = dict.fromkeys(op for pair in zip_longest(weighed, highest) for op in pair if op is not None)
    few = list(candidates)[: _CANDIDATES if most else 1]
    search = best_rows(graph, relaxation.problem, relaxation.budget, few, effort=Effort(most), upper=upper)
    if search is None:
        return None
    search.run()
    extra, stages = search.result()
    return TimeBound(extra, None, stages if extra else None)
