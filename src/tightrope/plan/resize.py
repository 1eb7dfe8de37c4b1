"""A plan of a graph, used for the same graph with smaller sizes.

Idea        Where running every op once fits the arena, nothing is computed again. Else the schedule stays,
            and so do the addresses: where no allocation is larger than it was, intervals that were disjoint
            stay disjoint. Nothing is searched for.
Guarantee   The arena, and what lies outside it, take at most the bytes that they took in the larger graph;
            the result is judged like any other plan.
Complexity  Linear in the allocations; one placement where every op runs once, or where a kernel makes other
            allocations than before.
Gaps        Sizes that need fewer recomputations than the largest, but some, run all of them.

    address ^
            |      +--B--+            |      +-B-+
            | +-A--+     |            | +-A+ |   |
            +-+----+-----+-> step     +-+--+-+---+-> step
"""

import msgspec

from tightrope.core import Graph, Plan
from tightrope.lower import lower, peak_bytes, planned
from tightrope.plan.assemble import assemble
from tightrope.plan.reasons import reasons
from tightrope.plan.schedule import base_schedule


def same_ops(graph: Graph, other: Graph) -> bool:
    """Tell whether two graphs differ in sizes alone.

    >>> same_ops(Graph((), ()), Graph((), ()))
    True
    """
    return len(graph.storages) == len(other.storages) and [
        (op.target, op.reads, op.creates, op.mutates, op.variant, op.over) for op in graph.all_ops()
    ] == [(op.target, op.reads, op.creates, op.mutates, op.variant, op.over) for op in other.all_ops()]


def resized(graph: Graph, plan: Plan, of: Graph) -> Plan | None:
    """Use a plan for a graph of the same ops and smaller sizes.

    Args:
        graph: the smaller one, priced.
        plan: with addresses.
        of: the graph that it was made for.

    Returns:
        A plan that takes no more bytes beside what the caller holds; None where there is none such.
    """
    if not same_ops(graph, of):
        return None
    most = plan.forecast.arena + plan.forecast.outside
    once = base_schedule(graph)
    if plan.forecast.ns > plan.forecast.base_ns and peak_bytes(lower(graph, once)) <= most:
        found = assemble(graph, once, budget=graph.persistent + most, planner=plan.planner)
        if found.forecast.arena + found.forecast.outside <= most:
            return msgspec.structs.replace(found, reasons=reasons(graph, found))
    mine, theirs = (planned(lower(one, plan.schedule)) for one in (graph, of))
    fits = _moments(graph) == _moments(of) and all(
        (small.storage, small.space) == (large.storage, large.space) and small.bytes <= large.bytes
        for small, large in zip(mine, theirs, strict=True)
    )
    found = assemble(
        graph, plan.schedule, budget=graph.persistent + most, planner=plan.planner,
        offsets=plan.offsets if fits else None,
    )  # fmt: skip
    if found.forecast.arena + found.forecast.outside > most:
        return None
    return msgspec.structs.replace(found, reasons=reasons(graph, found))


def _moments(graph: Graph) -> list[list[tuple[int, int, int]]]:
    """When each op allocates and releases, whatever the sizes are."""
    return [[(a.storage, a.start, a.end) for a in graph.allocations(op)] for op in graph.all_ops()]
