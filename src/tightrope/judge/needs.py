"""What one run of an op allocates, event by event, and the bytes that it holds at its worst instant.

Inside an op, where a release and an allocation share a tick, the release comes first (lifetimes are
half-open). A graph does not change, so what was derived for an op is kept with its graph.
"""

from typing import NamedTuple

from tightrope.core import Bytes, Graph, Op, OpId, round_up

_KNOWN = "judge.needs"


class Inside(NamedTuple):
    """One run of an op.

    Attributes:
        events: in order, (whether an allocation begins, number of the allocation).
        need: largest number of bytes that it holds of its own allocations; without its first result, where
            it may write that over an input.
    """

    events: tuple[tuple[bool, int], ...]
    need: Bytes


def inside(graph: Graph, op: Op) -> Inside:
    """Derive what happens inside one run of an op of a well-formed graph."""
    known: dict[OpId, Inside] = graph.__dict__.setdefault(_KNOWN, {})
    found = known.get(op.id)
    if found is None:
        found = known[op.id] = _derive(graph, op)
    return found


def _derive(graph: Graph, op: Op) -> Inside:
    ticks: list[tuple[int, bool, int]] = []
    sizes: list[Bytes] = []
    for number, allocation in enumerate(graph.allocations(op)):
        sizes.append(round_up(allocation.bytes, graph.alignment))
        ticks.append((allocation.start, True, number))
        if allocation.end >= 0:
            ticks.append((allocation.end, False, number))
    ticks.sort()
    live = peak = 0
    for number, allocation in enumerate(graph.allocations(op)):
        if op.over >= 0 and allocation.storage == op.creates[0]:
            sizes[number] = 0
    for _, begins, number in ticks:
        live += sizes[number] if begins else -sizes[number]
        peak = max(peak, live)
    return Inside(tuple((begins, number) for _, begins, number in ticks), peak)
