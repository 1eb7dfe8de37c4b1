"""Module and phase of every op of a captured graph.

Captured ops carry module paths already, backward ones those of their forward. What is left:
sums and copies of gradients, which belong to the module around everything that contributes, and the loss.
"""

from collections.abc import Iterable, Mapping

from tightrope.core import EventPhase, Graph, Op, OpId, Phase, StorageId

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
    modules = _modules(graph)
    loss = _loss_ops(graph, modules, classes or {})
    return {
        op.id: (modules[op.id], EventPhase.LOSS if op.id in loss else EventPhase(op.phase.value))
        for op in graph.all_ops()
    }


def common_path(paths: Iterable[str]) -> str:
    """Find the innermost module around all paths.

    Example:
        >>> common_path(["net.h.0.attn", "net.h.0.mlp.fc"]), common_path([])
        ('net.h.0', '')
    """
    split = [path.split(".") for path in paths]
    shared = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _modules(graph: Graph) -> dict[OpId, str]:
    """Module paths of all ops; a sum or copy of gradients goes with those that made what it reads.

    A view tells more than the op behind it: a slice of a gradient is made by the module that slices. The
    backward of an op that writes in place carries no path: it goes with the op of its name that reads or
    makes what was saved for it.
    """
    found = {op.id: op.module for op in graph.all_ops()}
    forward = {
        (_bare(op), storage): op.module
        for op in graph.ops
        if op.phase is Phase.FORWARD
        for storage in (*op.reads, *op.creates)
    }
    makers: dict[StorageId, OpId] = {}
    for op in graph.ops:
        if op.phase is Phase.BACKWARD and not op.module and _passes_on(op):
            inputs = [found[makers[storage]] for storage in op.reads if storage in makers]
            found[op.id] = common_path(path for path in inputs if path)
        elif op.phase is Phase.BACKWARD and not op.module and (name := _bare(op)).endswith("_backward"):
            keys = ((name.removesuffix("_backward"), storage) for storage in op.reads)
            found[op.id] = next((forward[key] for key in keys if key in forward), "")
        makers |= dict.fromkeys(op.creates or (() if op.mutates else op.reads), op.id)
    return found


def _bare(op: Op) -> str:
    """The name of an op whether or not it writes in place."""
    return op.target.split(".")[1].removesuffix("_") if "." in op.target else op.target


def _passes_on(op: Op) -> bool:
    return op.target.startswith(("aten.add.", "aten.add_.")) or "own_gradient" in op.target


def _loss_ops(graph: Graph, modules: dict[OpId, str], classes: Mapping[str, str]) -> set[OpId]:
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
        named = "Loss" in classes.get(modules[op.id], "")
        if named or any(word in op.target for word in LOSS_WORDS):
            return {later.id for later in tail[position:]}
    return set()
