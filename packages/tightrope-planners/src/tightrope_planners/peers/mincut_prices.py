"""What keeping a storage and running an op again cost, with and without a compiler that fuses.

Without fusion, keeping costs nothing and a re-run its measured time. With fusion, a pointwise op that
runs again is part of a kernel that reads its inputs anyway: it costs arithmetic only, while keeping
its result costs a write in the forward and a read in the backward.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from tightrope.core import Graph, Op, OpId, StorageId
from tightrope.plan.model import again

_MOST_READS: Final = 4
_MOST_READS_ONCE: Final = 8
_MOST_STEPS: Final = 30
_STEPS: Final = 2
_LABEL: Final = re.compile(r"(?:[a-z]+?)(\d+)\w*\[")
_EXPENSIVE: Final = {
    "exp": ("exp", "exp2", "expm1", "sigmoid", "silu", "softplus", "logsumexp", "mish", "elu"),
    "log": ("log", "log1p", "log2", "log10", "pow", "rsqrt", "sqrt"),
    "sin": ("sin", "cos", "tan"),
    "erf": ("erf", "erfc", "gelu"),
    "tanh": ("tanh",),
}
_CHEAP: Final = (
    "add", "sub", "mul", "div", "neg", "abs", "relu", "threshold", "where", "maximum", "minimum", "clamp",
    "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "logical_not", "reciprocal", "sign", "square",
    "_to_copy", "convert_element_type", "clone", "fill", "full_like", "zeros_like", "ones_like", "leaky_relu",
    "hardtanh", "masked_fill",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prices:
    """Nanoseconds per storage kept and per op run again."""

    keep: tuple[float, ...]
    again: tuple[float, ...]


def _class_ns() -> Mapping[str, float]:
    return {"cheap": 0.05, "exp": 0.59, "log": 0.56, "sin": 1.0, "erf": 1.08, "tanh": 2.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRates:
    """Rates of one device for fused pointwise code; measure them with `tightrope.price.pointwise`.

    The defaults are those of one x86 core with float32.

    Attributes:
        bytes_per_ns: memory bandwidth of one pass.
        element_ns: arithmetic per element by class, beyond the traffic: ``cheap``, ``exp``, ``log``,
            ``sin``, ``erf``, ``tanh``.
    """

    bytes_per_ns: float = 32.0
    element_ns: Mapping[str, float] = field(default_factory=_class_ns)


def measured_prices(graph: Graph) -> Prices:
    """Price re-runs by the times of the graph, and keeping at nothing but its bytes."""
    return Prices((0.0,) * len(graph.storages), tuple(float(again(graph, op.id).ns) for op in graph.ops))


def fused_prices(graph: Graph, rates: FusedRates | None = None) -> Prices:
    """Price what a fusing compiler would run.

    A pointwise re-run costs its arithmetic; every other re-run its measured time. Keeping a storage
    costs one write and one read.

    Example:
        >>> from tightrope.core import Storage
        >>> ops = (Op(0, "e", "aten.exp.default", creates=(0,), ns=1000),)
        >>> fused_prices(Graph(ops, (Storage(0, 400, label="float32[100]"),)))
        Prices(keep=(25.0,), again=(59.0,))
    """
    rates = rates or FusedRates()
    keep = tuple(2 * storage.bytes / rates.bytes_per_ns for storage in graph.storages)
    return Prices(keep, tuple(_fused_ns(graph, again(graph, op.id), rates) for op in graph.ops))


def inlined(graph: Graph, fusible: Set[OpId], pointwise: Set[OpId]) -> frozenset[StorageId]:
    """Find the storages that a fusing compiler does not write unless the backward is to read them.

    What a pointwise op makes is computed again inside every reader that is fused with it. It is written
    where something else reads it, where it stays to the end, and where several readers would repeat
    more than 4 reads, 30 operations or an exponential; one reader alone may repeat 8 reads.

    Args:
        graph: of a step.
        fusible: ops that may be fused with what they read.
        pointwise: those of them that make one element from one element of each input.
    """
    readers: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for s in op.reads:
            readers.setdefault(s, []).append(op.id)
    reads: dict[StorageId, int] = {}
    work: dict[StorageId, int] = {}
    for op in graph.ops:
        if op.id not in pointwise or not op.recomputable:
            continue
        count = sum(reads.get(s, 1) for s in op.reads)
        steps = _STEPS + sum(work.get(s, 1) for s in op.reads)
        for s in op.creates:
            many = len(readers.get(s, ())) > 1
            heavy = many and (steps > _MOST_STEPS or pointwise_class(op) == "exp")
            written = heavy or count > (_MOST_READS if many else _MOST_READS_ONCE)
            seen = graph.storages[s].resident_at_end or graph.storages[s].outside
            if not (written or seen or any(reader not in fusible for reader in readers.get(s, ()))):
                reads[s], work[s] = max(count, 1), steps
    return frozenset(reads)


def pointwise_class(op: Op) -> str | None:
    """Name the class of a pointwise op in `FusedRates.element_ns`, None for every other op."""
    name = op.target.removeprefix("aten.").removeprefix("prims.").partition(".")[0]
    name = name.removesuffix("_backward")
    for kind, names in _EXPENSIVE.items():
        if name in names:
            return kind
    return "cheap" if name in _CHEAP else None


def _fused_ns(graph: Graph, op: Op, rates: FusedRates) -> float:
    kind = pointwise_class(op)
    if kind is None:
        return float(op.ns)
    elements = 0.0
    for storage in op.creates:
        made = graph.storages[storage]
        width = _LABEL.match(made.label)
        itemsize = max(int(width[1]) // 8, 1) if width else 1 if made.label.startswith("bool") else 4
        elements += made.bytes / itemsize
    return rates.element_ns[kind] * elements
