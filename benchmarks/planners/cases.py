"""Small graphs of the two parts of a step, the best choice among all, and layers of attention."""

import random
from itertools import combinations

import msgspec

from tests.judge.families import random_graph
from tightrope.core import Flag, Graph, Op, Phase, Storage
from tightrope.plan.model import Model
from tightrope_planners.peers.mincut_prices import Prices
from tightrope_planners.peers.recovery import recovery
from tightrope_shared.attention import TransformerShape

LAYER_OPS = 10


def phased(graph: Graph, begin: int) -> Graph:
    """Call the ops from ``begin`` on the backward."""
    ops = tuple(
        msgspec.structs.replace(op, phase=Phase.BACKWARD if op.id >= begin else Phase.FORWARD)
        for op in graph.ops
    )
    return msgspec.structs.replace(graph, ops=ops)


def two_parts(seed: int) -> Graph:
    """At most 14 ops, the later ones backward; random draws, changes in place, several results per op."""
    rng = random.Random(seed)
    kind = rng.choice(("plain", "randoms", "in_place", "temporaries"))
    graph = random_graph(seed, num_ops=rng.randrange(6, 15), **({} if kind == "plain" else {kind: True}))
    return phased(graph, len(graph.ops) // 2 + rng.randrange(3))


def best_of_all(model: Model, begin: int, prices: Prices) -> float:
    """Try every set of kept storages; run the rest again as far as the backward needs it."""
    made = [s for s, op in enumerate(model.producer) if 0 <= op < begin]
    pinned = {s for s in made if model.pinned[s]}
    returns = recovery(model).returns
    free = [s for s in made if s not in pinned]
    needed = {s for op in range(begin, len(model.need)) for s in model.reads[op]} & set(made)
    values = []
    for count in range(len(free) + 1):
        for kept in combinations(free, count):
            there, ops, stack, possible = {*kept, *pinned}, set(), list(needed), True
            while stack and possible:
                storage = stack.pop()
                if storage in there:
                    continue
                possible = returns[storage]
                there.add(storage)
                ops.add(model.producer[storage])
                stack += model.again_reads[model.producer[storage]]
            if possible:
                values.append(sum(prices.keep[s] for s in kept) + sum(prices.again[op] for op in ops))
    return min(values)


def layer(shape: TransformerShape, layers: int) -> Graph:
    """Transformer layers in 16 bits, as the paper counts them, and one op of backward for each."""
    storages = [Storage(0, 2 * shape.s * shape.b * shape.h, external=True)]
    ops: list[Op] = []
    unit, scores = shape.s * shape.b * shape.h, shape.a * shape.s * shape.s * shape.b

    def op(target: str, reads: tuple[int, ...], *sizes: int, **more: object) -> tuple[int, ...]:
        made = tuple(range(len(storages), len(storages) + len(sizes)))
        storages.extend(Storage(s, size) for s, size in zip(made, sizes, strict=True))
        ops.append(Op(len(ops), target, target, tuple(sorted(reads)), made, ns=10, **more))  # type: ignore[arg-type]
        return made

    entry, kept, cores = 0, list[list[int]](), list[tuple[int, ...]]()
    for _ in range(layers):
        (normed,) = op("native_layer_norm", (entry,), 2 * unit)
        qkv = op("linear", (normed,), 2 * unit, 2 * unit, 2 * unit)
        first = len(ops)
        (product,) = op("bmm", qkv[:2], 2 * scores)
        (soft,) = op("_softmax", (product,), 2 * scores)
        dropped, mask = op("native_dropout", (soft,), 2 * scores, scores, flags=Flag.RANDOM)
        cores.append(tuple(range(first, len(ops))))
        (context,) = op("bmm", (dropped, qkv[2]), 2 * unit)
        (projected,) = op("linear", (context,), 2 * unit)
        (again,) = op("native_layer_norm", (projected,), 2 * unit)
        wide = op("linear", (again,), 8 * unit)
        (active,) = op("gelu", wide, 8 * unit)
        (entry,) = op("linear", (active,), 2 * unit)
        kept.append([normed, *qkv, soft, dropped, mask, context, projected, again, *wide, active])
    flow: tuple[int, ...] = (entry,)
    for saved in reversed(kept):
        flow = op("backward", (*saved, *flow), 64, phase=Phase.BACKWARD)
    replays: list[Op] = []
    for core in cores:
        dropout = ops[core[-1]]
        number = len(ops) + len(replays)
        replays.append(
            Op(
                number,
                "again",
                "dropout_again",
                (*dropout.reads, dropout.creates[1]),
                dropout.creates[:1],
                ns=5,
            )
        )
        ops[core[-1]] = Op(
            dropout.id,
            "d",
            dropout.target,
            dropout.reads,
            dropout.creates,
            ns=10,
            flags=Flag.RANDOM,
            variant=number,
        )
    return Graph(tuple(ops), tuple(storages), tuple(replays))
