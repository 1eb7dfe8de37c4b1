"""Plan, fuse, measure, and plan again with what was measured.

Idea        A fused plan often needs fewer bytes than the plan that it came from, and its ops cost less:
            the next plan may take the room that was left, with every op at the pace of its stretch.
            Where running nothing again would hardly be faster, there is no next plan: a search takes
            seconds where layers are many.
Source      plan first, then fuse: fusing first makes recomputation too coarse
Guarantee   The result fits the budget, and is the fastest of all rounds by forecast.
Complexity  At most `ROUNDS` searches; stretches that are known are not compiled again.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from tightrope.core import Bytes, Fused, Graph, InfeasibleError, Op, OpId, Plan
from tightrope.fuse.choose import Chosen
from tightrope.lower import lower
from tightrope.plan.assemble import assemble
from tightrope.plan.reasons import reasons

ROUNDS: Final = 3
_WORTH: Final = 100
"""Room that is less than this part of the budget is not worth another search."""
_SLOWER: Final = 50
"""Nor is what recomputation takes, where it is at most this part of the step: times differ by as much."""

Search = Callable[[Graph, Bytes], Plan]
Fuse = Callable[[Plan], Chosen]


def fused_rounds(graph: Graph, first: Plan, *, budget: Bytes, search: Search, fuse: Fuse) -> Chosen:
    """Improve a fused plan.

    Args:
        graph: priced op by op.
        first: plan within the budget, op by op.
        budget: total bytes.
        search: plans a graph within so many bytes.
        fuse: fuses what fits the budget; see `tightrope.fuse.choose.fused`.
    """
    (best, why), target = fuse(first), budget
    for _ in range(ROUNDS - 1):
        if not best.stretches:
            break
        left = budget - best.forecast.total
        paced = at_pace(graph, best)
        gain = best.forecast.ns - paced.base_ns
        if gain <= best.forecast.ns // _SLOWER or (left <= budget // _WORTH and target > budget):
            break
        target += left
        try:
            found = search(paced, target)
        except InfeasibleError:
            break
        single = assemble(graph, found.schedule, budget=target, seed=first.certificate.seed, placed=False)
        again = fuse(replace(single, reasons=reasons(graph, single), placed=True)).plan
        if not again.stretches or (again.forecast.ns, again.forecast.total) >= (
            best.forecast.ns,
            best.forecast.total,
        ):
            break
        best = replace(again, budget=first.budget, limits=first.limits, planner=first.planner)
    return Chosen(best, why)


def at_pace(graph: Graph, plan: Plan) -> Graph:
    """Price every op by its share of the stretch that it runs in first."""
    pace: dict[OpId, float] = {}
    for instruction in lower(graph, replace(plan, offsets=(), placed=False)).instructions:
        if isinstance(instruction, Fused):
            before = sum(run.ns for run in instruction.runs)
            for run in instruction.runs:
                pace.setdefault(run.op, instruction.ns / before)
    ops = tuple(_priced(op, pace) for op in graph.ops)
    return replace(graph, ops=ops, variants=tuple(_priced(op, pace) for op in graph.variants))


def _priced(op: Op, pace: dict[OpId, float]) -> Op:
    return replace(op, ns=max(1, round(op.ns * pace[op.id]))) if op.id in pace else op
