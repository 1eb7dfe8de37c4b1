"""What one run of an op allocates, event by event, and the bytes that it holds at its worst instant.

Inside an op, where a release and an allocation share a tick, the release comes first (lifetimes are
half-open).
"""

from tightrope.core import Bytes, Graph, Op, round_up


def op_events(graph: Graph, op: Op) -> list[tuple[bool, int]]:
    """List what happens inside one run of ``op``: (whether it begins, number of the allocation)."""
    if not op.allocations:
        return [(True, number) for number in range(len(op.creates))]
    ticks: list[tuple[int, bool, int]] = []
    for number, allocation in enumerate(graph.allocations(op)):
        ticks.append((allocation.start, True, number))
        if allocation.end >= 0:
            ticks.append((allocation.end, False, number))
    ticks.sort()
    return [(begins, number) for _, begins, number in ticks]


def op_need(graph: Graph, op: Op) -> Bytes:
    """Largest number of bytes that one run of ``op`` holds of its own allocations."""
    allocations = op.allocations
    if all(allocation.end < 0 for allocation in allocations):
        held = [graph.storages[storage].bytes for storage in op.creates]
        return sum(round_up(size, graph.alignment) for size in held)
    live = peak = 0
    for begins, number in op_events(graph, op):
        size = round_up(allocations[number].bytes, graph.alignment)
        live += size if begins else -size
        peak = max(peak, live)
    return peak
