"""Lower bound on bytes: what one op of the base order needs live at its first run.

Idea        While base op t runs for the first time, three groups are certainly live: what t reads;
            what t itself allocates at its worst instant; and what was made before t and cannot have
            been given up: storages that must be resident at the end, and storages that nothing can
            make again and that t or a later op of the base order reads.
Source      the single-op floor of Checkmate (MLSys 2020), with storages that cannot be dropped
Guarantee   No schedule whose first runs keep the base order and which never frees a storage that
            must be resident at the end takes fewer bytes.
Complexity  Linear in ops, reads and allocations.
Gaps        Nothing is charged for what recomputing the inputs of t needs.
"""

from tightrope.core import Bytes, Graph, OpId, StorageId
from tightrope.plan.bound.problem import MAX_FREE_OPS, problem
from tightrope.plan.model import least_need, producers


def lower_bound(graph: Graph, *, free_order: bool = False) -> tuple[Bytes, OpId]:
    """Find the total bytes (what the caller holds included) below which no schedule exists.

    Args:
        graph: one training step.
        free_order: whether first runs may come in any order in which each op follows what it reads;
            else they keep the base order.

    Returns:
        The bytes, and the op that needs them (-1 for a graph without ops).

    Example:
        >>> from tightrope.core import Op, Storage
        >>> lower_bound(Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),)))
        (128, 0)
    """
    if free_order:
        return _in_any_order(graph)
    producer = producers(graph)
    pinned = _pinned_until(graph)
    change = [0] * (len(graph.ops) + 1)
    for storage, last in pinned.items():
        change[producer[storage] + 1] += graph.storages[storage].size
        change[last + 1] -= graph.storages[storage].size
    best, witness, held = graph.persistent, -1, 0
    for op in graph.ops:
        held += change[op.id]
        loose = [s for s in op.reads if producer[s] >= 0 and pinned.get(s, -1) < op.id]
        inputs = sum(graph.storages[storage].size for storage in loose)
        total = graph.persistent + held + inputs + least_need(graph, op)
        if witness < 0 or total > best:
            best, witness = total, op.id
    return best, witness


def _in_any_order(graph: Graph) -> tuple[Bytes, OpId]:
    """Count only what is certainly made before an op, and kept beyond it, in every order."""
    if not graph.ops:
        return graph.persistent, -1
    if len(graph.ops) > MAX_FREE_OPS:
        floors = [graph.persistent + least_need(graph, op) for op in graph.ops]
    else:
        floors = problem(graph, free_order=True).fixed.tolist()
    return max(floors), floors.index(max(floors))


def _pinned_until(graph: Graph) -> dict[StorageId, OpId]:
    """Map each storage that cannot be given up and made again to the last op up to which it stays."""
    once: set[StorageId] = set()
    pinned: dict[StorageId, OpId] = {}
    for op in graph.ops:
        pinned.update((storage, op.id) for storage in op.reads if storage in once)
        remade = graph.op(op.variant).creates if op.variant >= 0 else op.creates if op.recomputable else ()
        once.update(set(op.creates).difference(remade))
    for op in graph.ops:
        for storage in op.creates:
            if graph.storages[storage].resident_at_end:
                pinned[storage] = len(graph.ops) - 1
    return pinned
