"""Module and phase of every op of a captured graph.

Captured ops carry module paths already, backward ones those of their forward. What is left is the loss.
"""

from collections.abc import Mapping

from tightrope.core import EventPhase, Graph, Op, OpId, Phase

LOSS_WORDS = ("loss", "cross_entropy", "log_softmax", "kl_div")
"""A forward op with one of these in its target computes a loss, unless modules with weights follow."""


def attribute(graph: Graph, classes: Mapping[str, str] | None = None) -> dict[OpId, tuple[str, EventPhase]]:
    """Name the module and the phase of every op of a graph; recomputation is for the schedule to tell.

    Args:
        graph: captured.
        classes: class names of modules by path; a module called ``...Loss`` is part of the loss.

    Example:
        >>> from tightrope.core import Storage
        >>> graph = Graph((Op(0, "a", "aten.mm.default", creates=(0,), module="net.fc"),), (Storage(0, 64),))
        >>> attribute(graph)
        {0: ('net.fc', <EventPhase.FORWARD: 'forward'>)}
    """
    loss = _loss_ops(graph, classes or {})
    return {
        op.id: (op.module, EventPhase.LOSS if op.id in loss else EventPhase(op.phase.value))
        for op in graph.all_ops()
    }


def _loss_ops(graph: Graph, classes: Mapping[str, str]) -> set[OpId]:
    """The tail of the forward, from the first op that computes a loss, if no weights are used after it."""
    weights = {storage.id for storage in graph.storages if storage.kind.value == "parameter"}
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    tail: list[Op] = []
    for op in reversed(forward):
        if weights.intersection(op.reads):
            break
        tail.append(op)
    tail.reverse()
    for position, op in enumerate(tail):
        named = "Loss" in classes.get(op.module, "")
        if named or any(word in op.target for word in LOSS_WORDS):
            return {later.id for later in tail[position:]}
    return set()
