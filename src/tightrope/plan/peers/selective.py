"""Selective activation recomputation: run the core of attention again, keep everything else.

Idea        Scores, softmax, their dropout: many bytes, little time. Each core is dropped after its first
            run and runs again just before the first op of the backward pass that reads from it. As many
            cores as the limit needs are treated so, first layers first.
Source      Korthikanti et al., Reducing activation recomputation in large transformer models (2022)
Guarantee   Every op runs at most twice. `activation_bytes` and `flops_ratio` are the paper's closed forms.
Complexity  Linear in the graph, one evaluation per core
Gaps        A fused attention kernel stores no scores: there is nothing left to drop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tightrope.core import Bytes, Graph, Limits, Machine, Op, OpId, Phase, Schedule, TightropeError
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand, useful

_SOFTMAX, _FUSED = "softmax", "scaled_dot_product"
_CONTRACTIONS: Final = ("mm", "matmul", "einsum", "linear")


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """A transformer in the paper's letters, 16-bit values.

    Attributes:
        s: sequence length.
        b: sequences per batch.
        h: hidden size.
        a: attention heads.
        layers: of the transformer.
        v: size of the vocabulary.
        t: devices that share the tensors of a layer, sequence parallelism included.
    """

    s: int
    b: int
    h: int
    a: int
    layers: int = 1
    v: int = 0
    t: int = 1


def activation_bytes(shape: TransformerShape, *, recompute: Literal["none", "selective", "full"]) -> float:
    """Bytes of activations that the backward pass of all layers needs, per device (equations 1, 4, 6).

    Example:
        >>> gpt3 = TransformerShape(s=2048, b=1, h=12288, a=96)
        >>> saved = activation_bytes(gpt3, recompute="selective") / activation_bytes(gpt3, recompute="none")
        >>> round(1 - saved, 2)
        0.7
    """
    each = shape.s * shape.b * shape.h / shape.t
    if recompute == "full":
        return shape.layers * 2 * shape.s * shape.b * shape.h
    scores = 5 * shape.a * shape.s / shape.h if recompute == "none" else 0.0
    return shape.layers * each * (34 + scores)


def flops_ratio(shape: TransformerShape) -> float:
    """Operations with selective recomputation over those without (equations 7 and 9).

    Example:
        >>> round(flops_ratio(TransformerShape(s=2048, b=1, h=12288, a=96, layers=96, v=51200)), 3)
        1.027
    """
    s, h = shape.s, shape.h
    head = shape.v / (12 * h * shape.layers)
    return (1 + s / (3 * h) + head) / (1 + s / (6 * h) + head)


def selective(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Run attention cores again; the fewest that fit, else all.

    Raises:
        TightropeError: the graph has no attention.
    """
    del machine
    model, limit = build(graph), live_limit(graph, limits)
    cores = attention_cores(graph)
    if not cores and not any(_FUSED in op.target for op in graph.ops):
        raise TightropeError(
            f"selective recomputes attention, and none of the {len(graph.ops)} ops is a softmax of the "
            'forward pass. Use planner="auto".'
        )
    solver = open_solver(model, native=options.native)
    pairs: tuple[Pair, ...] = ()
    for number in range(len(cores) + 1):
        pairs = core_pairs(graph, model, cores[:number])
        solver.load(pairs)
        if solver.state(limit).excess == 0:
            break
    return expand(graph, pairs)


def core_pairs(graph: Graph, model: Model, cores: tuple[tuple[OpId, ...], ...]) -> tuple[Pair, ...]:
    """Run each core again before the first op of the backward pass that reads from it."""
    pairs: list[Pair] = []
    for core in cores:
        made = {storage for op in core for storage in graph.ops[op].creates}
        later = (op.id for op in graph.ops if op.phase is Phase.BACKWARD and made.intersection(op.reads))
        stage = next(later, -1)
        pairs += [(stage, op) for op in core if model.allowed((stage, op))]
    return useful(graph, pairs)


def attention_cores(graph: Graph) -> tuple[tuple[OpId, ...], ...]:
    """Find the ops around each softmax of the forward pass, from the product of queries and keys on.

    Walks from the softmax up to that product and down to the product with the values, which stays, over
    ops that make at least half as many bytes as the softmax.
    """
    producer = {storage: op for op in graph.ops for storage in op.creates}
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op)
    cores = []
    for op in graph.ops:
        if _SOFTMAX in op.target and op.phase is Phase.FORWARD:
            least = _bytes(graph, op) // 2
            up = _walk(
                graph, op, least, lambda o: [producer[s] for s in o.reads if s in producer], product=True
            )
            down = _walk(graph, op, least, lambda o: [r for s in o.creates for r in readers.get(s, ())])
            cores.append(tuple(sorted(up | down)))
    return tuple(cores)


def _walk(
    graph: Graph, start: Op, least: Bytes, onward: Callable[[Op], list[Op]], *, product: bool = False
) -> set[OpId]:
    found, waiting = {start.id}, [start]
    while waiting:
        for op in onward(waiting.pop()):
            contraction = any(name in op.target for name in _CONTRACTIONS)
            if op.id in found or op.phase is not Phase.FORWARD or _bytes(graph, op) < least:
                continue
            if not contraction or product:
                found.add(op.id)
            if not contraction:
                waiting.append(op)
    return found


def _bytes(graph: Graph, op: Op) -> Bytes:
    return max((graph.storages[storage].bytes for storage in op.creates), default=0)
