"""Keep one bit per element of what a ReLU made, where its gradient alone still reads it.

Idea        The gradient of a ReLU asks of every element of its result only whether it is above 0. Where the
            backward reads the result for nothing but such gradients, as that of a layer whose next weight is
            not updated, its signs are put into bits as soon as it is there, and these are read instead.
Source      Jain et al., Gist (ISCA 2018), binarized ReLUs; Lin et al. (NeurIPS 2022), for sparse updates
Guarantee   The gradient has the same bits; what waits for it takes a 32nd of the bytes, rounded up.
Complexity  Linear in ops.
Gaps        ReLU alone; a result that another op of the backward reads stays as it is.
"""

from math import prod

from msgspec.structs import replace

from tightrope.core import Graph, Op, OpId, Phase, Result, Storage, StorageId, View
from tightrope.lower import with_writes
from tightrope_micro.translator import contiguous

_BITS = 8


def with_signs(graph: Graph) -> Graph:
    """Write a step in which gradients of ReLUs read signs, wherever nothing else of the backward reads more.

    Args:
        graph: of a captured step, not cut into tiles.
    """
    enough = _enough(graph)
    if not enough:
        return graph
    writer = _SignWriter(graph)
    for op in graph.ops:
        writer.take(op)
        if op.creates and op.creates[0] in enough:
            writer.signs(op)
    part = replace(graph.parts[0], end=len(writer.ops))
    made = replace(graph, ops=tuple(writer.ops), storages=tuple(writer.storages), parts=(part,))
    return with_writes(made)


def _enough(graph: Graph) -> set[StorageId]:
    """Results of ReLUs that nothing in the backward reads but gradients of ReLUs."""
    made = {op.creates[0] for op in graph.ops if op.target == "micro.relu"}
    plain: dict[StorageId, OpId] = {}
    first: dict[StorageId, OpId] = {}
    for op in graph.ops:
        sign = _sign_of(op) if op.target == "micro.relu_backward" else -1
        if sign in made and sign != _given(op):
            first.setdefault(sign, op.id)
            continue
        plain |= dict.fromkeys((*op.creates, *op.reads), op.id)
    kept = {storage.id for storage in graph.storages if storage.external or storage.resident_at_end}
    forward = (Phase.FORWARD, Phase.LOSS)
    return {
        s
        for s, at in first.items()
        if plain[s] < at - 1 and graph.ops[plain[s]].phase in forward and s not in kept
    }


def _given(op: Op) -> StorageId:
    view = op.arguments[0]
    assert isinstance(view, View)
    return view.base


def _sign_of(op: Op) -> StorageId:
    view = op.arguments[1]
    assert isinstance(view, View)
    return view.base


class _SignWriter:
    """The new graph while it is written."""

    def __init__(self, graph: Graph) -> None:
        self.ops: list[Op] = []
        self.storages = list(graph.storages)
        self.bits: dict[StorageId, View] = {}

    def take(self, op: Op) -> None:
        """Write an op; the gradient of a ReLU reads signs where they were taken."""
        arguments, target, reads = op.arguments, op.target, op.reads
        if target == "micro.relu_backward" and (bits := self.bits.get(_sign_of(op))) is not None:
            arguments, target = (arguments[0], bits), "micro.signs_backward"
            reads = tuple(sorted({_given(op), bits.base}))
        self.ops.append(
            replace(op, id=len(self.ops), target=target, arguments=arguments, reads=reads, over=-1)
        )

    def signs(self, op: Op) -> None:
        """Take the signs of what a ReLU made."""
        view = op.results[0].view
        made, size = len(self.storages), -(-prod(view.shape) // _BITS)
        label = f"signs of {self.storages[view.base].label}"
        self.storages.append(Storage(made, size, alignment=4, label=label, module=op.module))
        bits = View(made, "uint8", (size,), contiguous((size,)))
        self.bits[view.base] = bits
        self.ops.append(
            Op(
                len(self.ops), f"signs_{made}", "micro.signs", (view.base,), (made,), arguments=(view,),
                results=(Result(-1, bits),), module=op.module, source=op.source, phase=op.phase,
            )
        )  # fmt: skip
