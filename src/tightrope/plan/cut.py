"""Turn a placement that missed into a cut for the planner.

Idea        A plan whose live bytes fit but whose addresses do not is explained by a small core of
            allocations. While the core lives, fewer bytes may: every op that allocates in that span
            gets a reserve of the missing bytes, and the planner is asked again at the same limit. A
            lower limit for the whole step would also cut where addresses are no problem.
Source      conflict core of ``place/conflict.py`` as a combinatorial cut
Guarantee   A schedule for the graph with reserves is a schedule for the graph itself, with at least
            the reserve free at every op of the span.
Complexity  one `conflict`, whose effort is bounded, and one pass over the schedule
Gaps        The reserve is a heuristic: other plans with the same live bytes might be placeable.
"""

from typing import Final

import msgspec

from tightrope.core import Alloc, Allocation, Bytes, Executable, Graph, Op, OpId, Release, Run, Schedule
from tightrope.core.executable import ARENA, HEAP
from tightrope.lower import charged_sizes, lower, outside_flags, timeline
from tightrope.place import conflict

_SECONDS: Final = 0.1


def cut(graph: Graph, schedule: Schedule, *, capacity: Bytes, reserved: Graph | None = None) -> Graph | None:
    """Reserve bytes where the addresses of a schedule miss the capacity.

    Args:
        graph: what the schedule runs.
        schedule: its live bytes fit the capacity, its addresses were not made to.
        capacity: bytes of the arena.
        reserved: ``graph`` with the reserves of earlier cuts, which are kept.

    Returns:
        The graph, ops of the span with a reserve; None = the addresses fit after all.

    Example:
        >>> from tightrope.core import Compute, Storage
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 128),))
        >>> cut(graph, Schedule((Compute(0),)), capacity=64).ops[0].allocations[-1].bytes
        64
    """
    executable = lower(graph, schedule)
    trace = timeline(executable)
    rows = zip(charged_sizes(executable), trace.buffers, outside_flags(executable), strict=True)
    inside = [(size, buffer.start, buffer.end) for size, buffer, outside in rows if not outside]
    core = conflict(inside, capacity, seconds=_SECONDS)
    if core is None:
        return None
    chosen = _allocating(executable, core.start, core.end)
    base = graph if reserved is None else reserved
    missing = core.need - capacity
    return msgspec.structs.replace(
        base,
        ops=tuple(_with_reserve(base, op, missing) if op.id in chosen else op for op in base.ops),
        variants=tuple(_with_reserve(base, op, missing) if op.id in chosen else op for op in base.variants),
    )


def _allocating(executable: Executable, begin: int, end: int) -> set[OpId]:
    """Find the ops that allocate in a span of the timeline."""
    found: set[OpId] = set()
    tick = 0
    for instruction in executable.instructions:
        events = instruction.inside if isinstance(instruction, Run) else (instruction,)
        for event in events:
            if isinstance(event, Alloc) and begin <= tick < end and isinstance(instruction, Run):
                found.add(instruction.op)
            tick += isinstance(event, Release) or (isinstance(event, Alloc) and event.space in (ARENA, HEAP))
    return found


def _with_reserve(graph: Graph, op: Op, size: Bytes) -> Op:
    """Let an op hold so many bytes more while it runs."""
    own = graph.allocations(op)
    end = 1 + max((max(a.start, a.end) for a in own), default=0)
    return msgspec.structs.replace(op, allocations=(*own, Allocation(size, -1, 0, end)))
