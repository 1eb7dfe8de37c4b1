"""The op of a graph behind which gradients are used that are clipped by their total norm."""

from typing import Final

from tightrope.core.graph import Graph
from tightrope.core.units import OpId, StorageId

TOTAL_NORM: Final = "tightrope.total_norm"
"""Target of the op that makes the norm of all gradients together; the ops behind it scale and use them."""


def total_norm_of(graph: Graph) -> OpId:
    """Find the op that makes the total norm, -1 = there is none.

    Example:
        >>> total_norm_of(Graph((), ()))
        -1
    """
    return next((op.id for op in graph.ops if op.target == TOTAL_NORM), -1)


def used_again(graph: Graph) -> dict[OpId, OpId]:
    """For every op in front of the total norm, find where a gradient is scaled that comes of it.

    If gradients are made again for their scaling, the op has run again by then.

    Returns:
        Op -> the first op that scales a gradient made from its results; nothing for other ops, and for
        graphs without a total norm.
    """
    total = total_norm_of(graph)
    first: dict[StorageId, OpId] = {}
    found: dict[OpId, OpId] = {}
    for op in reversed(graph.ops):
        reached = [first[storage] for storage in op.creates if storage in first]
        if op.id == total or (op.id < total and not reached):
            continue
        later = min(reached) if op.id < total else op.id
        if op.id < total:
            found[op.id] = later
        for storage in op.reads:
            first[storage] = min(later, first.get(storage, later))
    return found
