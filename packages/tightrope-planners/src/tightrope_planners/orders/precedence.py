"""What must come before what, for every order of first runs that gives the values of the base order.

Three kinds of precedence: uses of a storage stay on their side of its creation and of every change in
place; ops that draw random numbers, communicate or act on the world keep their order among themselves;
and ops stay on their side of the boundary at which control returns to the user, whose last op stays
the last of its side.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tightrope.core import Flag, Graph, OpId, StorageId
from tightrope.plan.model import again

_IN_ORDER = Flag.RANDOM | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.OPAQUE


def precedences(graph: Graph) -> tuple[tuple[OpId, ...], ...]:
    """List, for every op of the base order, ops that must run before its first run.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> ops = (Op(0, "a", "a", creates=(0,)), Op(1, "b", "b", creates=(1,)), Op(2, "c", "c", reads=(0,)))
        >>> precedences(Graph(ops, (Storage(0, 64), Storage(1, 64))))
        ((), (), (0,))
    """
    before: list[set[OpId]] = [set() for _ in graph.ops]
    _keep_versions(graph, before)
    _keep_sequence([op.id for op in graph.ops if op.flags & _IN_ORDER], before)
    _keep_sides(graph, before)
    return tuple(tuple(sorted(earlier)) for earlier in before)


def _keep_versions(graph: Graph, before: list[set[OpId]]) -> None:
    """Order the uses of a version after what made it and before the next change."""
    made: dict[StorageId, OpId] = {}
    used: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        fixes = {*op.creates, *op.mutates}
        for storage in {*op.reads, *again(graph, op.id).reads} - fixes:
            before[op.id].update((made[storage],) if storage in made else ())
            used.setdefault(storage, []).append(op.id)
        for storage in fixes:
            before[op.id].update((*used.pop(storage, ()), *((made[storage],) if storage in made else ())))
            made[storage] = op.id


def _keep_sequence(ops: Sequence[OpId], before: list[set[OpId]]) -> None:
    for earlier, later in pairwise(ops):
        before[later].add(earlier)


def _keep_sides(graph: Graph, before: list[set[OpId]]) -> None:
    """Make the last op before each boundary follow its side, and precede the other."""
    for end in graph.boundaries:
        before[end - 1].update(range(end - 1))
        for op in range(end, len(graph.ops)):
            before[op].add(end - 1)


def reorder(graph: Graph, order: Sequence[OpId]) -> Graph:
    """Write the ops down in another order, which becomes the base order; storages keep their numbers.

    Args:
        graph: any.
        order: op of the graph at each position, keeping `precedences`.
    """
    ops = tuple(msgspec.structs.replace(graph.ops[op], id=position) for position, op in enumerate(order))
    return msgspec.structs.replace(graph, ops=ops)
