"""Sums of a layer and a residual stream become one op that adds in place.

Idea        ``add(conv2d(x), s)``, where nothing else reads the convolution, becomes ``conv2d_add(s, x)``: its
            result may be written over ``s``, so the branch never lies beside the stream and the sum.
Source      accumulation of residual branches, as in TinyEngine (NeurIPS 2020)
Guarantee   Every value is read where it was, and ops keep their order; the sum stands where the ``add``
            stood, the layer moves down to it.
Complexity  Linear in ops and their arguments.
Gaps        Of two branches that both end in a layer the later one is taken.
"""

from msgspec.structs import replace

from tightrope.core import Graph, Op, OpId, StorageId, View
from tightrope.core.values import EMPTY
from tightrope_micro.renumber import renumbered

_LAYERS = ("micro.conv2d", "micro.linear")


def with_sums_inside(graph: Graph) -> Graph:
    """Put sums into the layers before them; ops are numbered again."""
    makers = {storage: op for op in graph.ops for storage in op.creates}
    readers: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op.id)
    gone: set[OpId] = set()
    ops: list[Op] = []
    for op in graph.ops:
        layers = [maker for s in op.reads if (maker := makers.get(s)) is not None and _inside(op, maker)]
        layers = [maker for maker in layers if readers[maker.creates[0]] == [op.id]]
        if not layers:
            ops.append(op)
            continue
        layer = max(layers, key=lambda one: one.id)
        gone.add(layer.id)
        ops.append(_summed(op, layer))
    left = [op for op in ops if op.id not in gone]
    named = [replace(op, name=f"{op.target.removeprefix('micro.')}_{at}") for at, op in enumerate(left)]
    return renumbered(graph, named)


def _inside(op: Op, maker: Op) -> bool:
    both = [value for value in op.arguments if isinstance(value, View) and value.base != EMPTY]
    alike = maker.target in _LAYERS and op.results[0].view.shape == maker.results[0].view.shape
    others = {v.base for v in both} - set(maker.creates)
    apart = len({v.base for v in both}) == 2 and not others & set(maker.reads)  # what is added to is not read
    return op.target == "micro.add" and alike and apart


def _summed(op: Op, layer: Op) -> Op:
    made = layer.creates[0]
    stream = next(v for v in op.arguments if isinstance(v, View) and v.base != made)
    return replace(
        layer, id=op.id, name=op.name, target=f"{layer.target}_add", arguments=(stream, *layer.arguments),
        reads=tuple(sorted({*layer.reads, stream.base})), creates=op.creates, results=op.results,
    )  # fmt: skip
