"""What people do by rule, as sets of re-runs: to compare plans with, and to start from.

Source      Korthikanti et al. (2022) for gathering again and for attention cores; Chen et al., Training deep
            nets with sublinear memory cost (2016), for layers as wholes
Guarantee   Every op runs at most twice.
Complexity  Linear in the graph
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from tightrope.core import Graph, OpId, Phase, Schedule, StorageId
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.schedule import expand, useful
from tightrope_ranks.sequence.dropout import DRAW
from tightrope_ranks.sequence.graph import is_collective
from tightrope_shared.attention import attention_cores, core_pairs

_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


def gather_again(graph: Graph) -> tuple[Pair, ...]:
    """Run each gather of the forward again before the first op of the backward that reads from it."""
    model = build(graph)
    gathers = (op for op in graph.ops if is_collective(op) and op.phase is Phase.FORWARD)
    return _again(graph, model, ((op.id,) for op in gathers))


def cores_again(graph: Graph) -> tuple[Pair, ...]:
    """Run the core of each attention again, its mask drawn again: the paper's selective recomputation."""
    draws = {op.creates[0]: op.id for op in graph.ops if op.target.startswith(DRAW)}
    cores = tuple(
        tuple(sorted({*core, *(draws[s] for op in core for s in graph.ops[op].reads if s in draws)}))
        for core in attention_cores(graph)
    )
    return core_pairs(graph, build(graph), cores)


def layers_again(graph: Graph, chosen: Callable[[int], bool] = lambda _: True) -> tuple[Pair, ...]:
    """Run whole layers again, before the first op of the backward that reads from one.

    Args:
        graph: of a model whose layers are ``layers.0``, ``layers.1`` ...
        chosen: which of them.
    """
    model = build(graph)
    producer = {storage: op.id for op in graph.ops for storage in op.creates}
    layers: dict[int, list[OpId]] = {}
    for op in graph.ops:
        found = _LAYER.search(op.module)
        if found and op.phase is Phase.FORWARD and chosen(int(found[1])):
            layers.setdefault(int(found[1]), []).append(op.id)
    borders: set[StorageId] = set()
    for ops in layers.values():
        inputs = {s for op in ops for s in graph.ops[op].reads if producer.get(s) not in ops}
        borders |= inputs
    inner = [
        tuple(op for op in ops if not borders.intersection(graph.ops[op].creates)) for ops in layers.values()
    ]
    return _again(graph, model, inner)


def ops_again(graph: Graph, groups: Iterable[tuple[OpId, ...]]) -> tuple[Pair, ...]:
    """Run groups of ops again, each before the first op of the backward that reads from one.

    What other layers read stays, as where a layer is a region of its own.
    """
    layer_of = {op.id: found[1] for op in graph.ops if (found := _LAYER.search(op.module))}
    producer = {storage: op.id for op in graph.ops for storage in op.creates}
    borders = {
        storage
        for op in graph.ops
        if op.phase is Phase.FORWARD
        for storage in op.reads
        if layer_of.get(producer.get(storage, -1)) != layer_of.get(op.id)
    }
    inner = [tuple(op for op in group if not borders.intersection(graph.ops[op].creates)) for group in groups]
    return _again(graph, build(graph), inner)


def schedule_of(graph: Graph, *sets: Iterable[Pair]) -> Schedule:
    """The schedule of several sets of re-runs together.

    >>> schedule_of(Graph((), ())).steps
    ()
    """
    return expand(graph, sorted({pair for pairs in sets for pair in pairs}))


def _again(graph: Graph, model: Model, groups: Iterable[tuple[OpId, ...]]) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    readers: dict[StorageId, OpId] = {}
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            for storage in op.reads:
                readers.setdefault(storage, op.id)
    for group in groups:
        made = [storage for op in group for storage in graph.ops[op].creates]
        stage = min((readers[storage] for storage in made if storage in readers), default=-1)
        pairs += [(stage, op) for op in group if model.allowed((stage, op))]
    return useful(graph, pairs)
