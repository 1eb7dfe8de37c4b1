"""Prices from a table, for graphs that cannot run here.

Idea        An op takes the longer of moving its bytes and doing its arithmetic. Arithmetic is read
            off the sizes: a product of m x k and k x n has mkn = sqrt(mk * kn * mn) multiply-adds.
Source      The roofline model; transcendental functions cost several passes over their data on a
            CPU (one pass of 4 M floats, relative to addition: log 3.3, exp 3.4, sin 5, erf 5.3,
            tanh 10).
Guarantee   None on time: these are estimates. Bytes are exact; temporaries of kernels are unknown.
Complexity  Linear.
Gaps        Cache effects, small-op overheads beyond a constant, overlap.
"""

import math
import re

from msgspec.structs import replace

from tightrope.core import Graph, Machine, Nanoseconds, Op, Storage, View, fitted
from tightrope.core.graph import RETURN

_PASSES = {
    "log": 3.3,
    "exp": 3.4,
    "softmax": 4.0,
    "sin": 5.0,
    "cos": 5.0,
    "erf": 5.3,
    "gelu": 6.0,
    "tanh": 10.2,
    "sigmoid": 4.0,
}
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "attention")
_OVERHEAD_NS = 3000
_LABEL = re.compile(r"(\w+)\[([\dx]*|scalar)\]")


def price_graph(graph: Graph, machine: Machine) -> Graph:
    """Fill in the time of every op that has none, from the machine's rates.

    Ops that carry a measured time keep it.

    >>> price_graph(Graph((), ()), Machine.here()).ops
    ()
    """
    graph = fitted(graph, machine.tiers[0].alignment)
    return replace(
        graph,
        ops=tuple(_priced(graph, op, machine) for op in graph.ops),
        variants=tuple(_priced(graph, op, machine) for op in graph.variants),
    )


def _priced(graph: Graph, op: Op, machine: Machine) -> Op:
    if op.ns or op.target == RETURN:
        return op
    return replace(op, ns=estimate_ns(graph, op, machine))


def estimate_ns(graph: Graph, op: Op, machine: Machine) -> Nanoseconds:
    """Estimate the time of one op on ``machine``."""
    touched = sum(graph.storages[storage].bytes for storage in {*op.reads, *op.creates})
    name = op.target.rsplit(".", 2)[-2] if op.target.count(".") >= 2 else op.target
    passes = max((cost for word, cost in _PASSES.items() if word in name), default=1.0)
    seconds = touched * passes / machine.tiers[0].read
    flops = _flops(graph, op, name)
    if flops:
        kind = "conv" if "conv" in name else "matmul"
        narrow = f"{kind}-{_dtype(graph.storages[op.creates[0]])}"
        seconds = max(seconds, flops / machine.flops.get(narrow, machine.flops.get(kind, 50e9)))
    return int(seconds * 1e9) + _OVERHEAD_NS


def _flops(graph: Graph, op: Op, name: str) -> float:
    reads = [graph.storages[storage] for storage in op.reads]
    creates = [graph.storages[storage] for storage in op.creates]
    if not creates or len(reads) < 2:
        return 0.0
    if "conv" in name:
        return _convolution_flops(op, name)
    if any(word in name.split("_") for word in _PRODUCTS):
        largest = sorted((_elements(s) for s in reads), reverse=True)[:2]
        return 2.0 * math.sqrt(largest[0] * largest[1] * max(_elements(s) for s in creates))
    return 0.0


def _convolution_flops(op: Op, name: str) -> float:
    """Two per element of the output, of the weight of one output channel, and of each large result."""
    looks = [view for view in op.arguments if isinstance(view, View) and len(view.shape) > 2]
    made = [result for result in op.results if len(result.view.shape) > 2]
    if not looks or not made:
        return 0.0
    backward = "backward" in name or name.endswith("_input")
    output, weight = looks[0] if backward else made[0].view, looks[-1]
    if any(value is True for value in op.arguments):  # transposed: one per element of the input instead
        output = made[0].view if name.endswith("_input") else looks[1 if backward else 0]
    return 2.0 * len(made) * math.prod(output.shape) * math.prod(weight.shape) / max(weight.shape[0], 1)


def _shape(storage: Storage) -> tuple[int, ...]:
    match = _LABEL.fullmatch(storage.label)
    return tuple(int(part) for part in match[2].split("x") if part.isdigit()) if match else ()


def _dtype(storage: Storage) -> str:
    match = _LABEL.fullmatch(storage.label)
    return match[1] if match else ""


def _elements(storage: Storage) -> float:
    return float(math.prod(_shape(storage)) if _shape(storage) else max(storage.bytes // 4, 1))
