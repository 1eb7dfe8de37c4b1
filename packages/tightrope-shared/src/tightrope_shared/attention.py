"""Cores of attention in a graph: scores, softmax, their dropout, and a transformer in letters.

Idea        From each softmax of the forward pass up to the product of queries and keys, and down to the
            product with the values, which stays.
Source      Korthikanti et al., Reducing activation recomputation in large transformer models (2022)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, Graph, Op, OpId, Phase
from tightrope.plan.model import Model, Pair
from tightrope.plan.schedule import useful

_SOFTMAX: Final = "softmax"
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
