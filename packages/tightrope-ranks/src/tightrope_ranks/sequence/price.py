"""Prices of a rank's ops: a roofline for its device, links for its collectives.

Idea        An op takes the longer of its arithmetic, counted from the shapes of its arguments, and of reading
            and writing them once. A collective goes around a ring: t - 1 messages one after
            the other, each with a t-th of the bytes; a sum goes around twice.
Source      The roofline model; Thakur et al., Optimization of collective communication in MPICH (2005)
Guarantee   None on time: estimates. Operations of products are exact.
Complexity  Linear.
Gaps        Nothing overlaps; no fused kernels, so elementwise ops cost more than where they are fused.
"""

import math
from typing import Final

from msgspec.structs import replace

from tightrope.core import DeviceLink, Graph, Machine, Nanoseconds, Op, View
from tightrope.core.graph import RETURN
from tightrope.core.values import ITEM_BYTES, views
from tightrope_ranks.sequence.graph import is_collective

_OVERHEAD_NS: Final = 3000
_FUSED: Final = {"attention": 4.0, "attention_backward": 10.0}
"""Operations per query, key and value of a head: two products forward, five backward."""


def priced(graph: Graph, machine: Machine, link: DeviceLink) -> Graph:
    """Give every op of a rank its time.

    Args:
        graph: see `tightrope_ranks.sequence.capture_rank`.
        machine: rates of the rank's device.
        link: between neighbours of the group.
    """

    def price(op: Op) -> Op:
        if op.target == RETURN:
            return op
        if is_collective(op):
            return replace(op, ns=collective_ns(graph, op, link))
        return replace(op, ns=_compute_ns(op, machine))

    return replace(graph, ops=tuple(map(price, graph.ops)), variants=tuple(map(price, graph.variants)))


def collective_ns(graph: Graph, op: Op, link: DeviceLink) -> Nanoseconds:
    """Time one collective on a ring.

    Args:
        graph: that it belongs to.
        op: a gather, scatter or sum.
        link: between neighbours.
    """
    ranks = ranks_of(op)
    whole = max(graph.storages[s].bytes for s in (*op.reads, *op.creates))
    turns = 2 if op.target.split(".")[1] == "sum" else 1
    return turns * (ranks - 1) * link.message_ns(whole // ranks)


def wire_bytes(graph: Graph, op: Op) -> int:
    """Bytes that one rank sends, and receives, in a collective."""
    ranks = ranks_of(op)
    whole = max(graph.storages[s].bytes for s in (*op.reads, *op.creates))
    return (2 if op.target.split(".")[1] == "sum" else 1) * (ranks - 1) * whole // ranks


def ranks_of(op: Op) -> int:
    """Number of ranks that take part in a collective."""
    ranks = op.arguments[1]
    assert isinstance(ranks, int)
    return ranks


def flops(op: Op) -> float:
    """Count the operations of the products in an op: two per multiply-add.

    >>> looks = [View(0, "float32", (2, 3), (3, 1)), View(1, "float32", (3, 4), (4, 1))]
    >>> flops(Op(0, "p", "aten.mm.default", arguments=tuple(looks)))
    48.0
    """
    name = op.target.split(".")[1] if op.target.count(".") > 1 else op.target
    given = [view for value in op.arguments for view in views(value)]
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        left, right = given[-2:]
        return 2.0 * math.prod(left.shape) * right.shape[-1]
    if "attention" in name:
        query = given[1] if "backward" in name else given[0]
        per = _FUSED["attention_backward" if "backward" in name else "attention"]
        return per * math.prod(query.shape) * query.shape[-2]
    return 0.0


def _compute_ns(op: Op, machine: Machine) -> Nanoseconds:
    given = [view for value in op.arguments for view in views(value)]
    made = [result.view for result in op.results]
    moved = sum(_bytes(view) for view in (*given, *made))
    dtype = made[0].dtype if made else ""
    rate = machine.flops.get(f"matmul-{dtype}", machine.flops.get("matmul", math.inf))
    seconds = max(moved / machine.tiers[0].read, flops(op) / rate)
    return int(1e9 * seconds) + _OVERHEAD_NS


def _bytes(view: View) -> int:
    """Bytes of a view's distinct elements."""
    sizes = (size for size, stride in zip(view.shape, view.strides, strict=True) if stride)
    return math.prod(sizes) * ITEM_BYTES[view.dtype]
