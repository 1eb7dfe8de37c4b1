"""Naive figures of re-runs in any order, and graphs that tests of several planners share."""

from collections.abc import Sequence
from random import Random

from tests.oracles import Pair
from tightrope.core import Graph, Op, Phase, Storage, round_up


def measure(graph: Graph, pairs: Sequence[Pair]) -> tuple[int, int]:
    """Find peak bytes in the arena and time of a sequence of re-runs, by looking at every copy at each."""
    runs: list[tuple[Op, bool]] = []
    for base in graph.ops:
        again = [graph.ops[op] for stage, op in pairs if stage == base.id]
        runs += [(graph.op(op.variant) if op.variant >= 0 else op, False) for op in again]
        runs.append((base, True))
    peak = max(
        _own(graph, op) + sum(graph.storages[s].size for s in _live(graph, runs, at))
        for at, (op, _) in enumerate(runs)
    )
    return peak, sum(op.ns for op, _ in runs)


def _live(graph: Graph, runs: list[tuple[Op, bool]], at: int) -> list[int]:
    """List the storages made before run ``at`` that it or a later run reads before they are made again."""
    live = []
    for storage in graph.storages:
        stays = storage.resident_at_end or storage.outside
        made = [k for k, (op, first) in enumerate(runs) if storage.id in op.creates and (first or not stays)]
        if storage.outside or not any(k < at for k in made):
            continue
        until = min((k for k in made if k >= at), default=len(runs))
        last = until if until < len(runs) else len(runs) - 1
        read = any(storage.id in runs[k][0].reads for k in range(at, last + 1))
        if read or storage.resident_at_end:
            live.append(storage.id)
    return live


def _own(graph: Graph, op: Op) -> int:
    rows = [a for a in graph.allocations(op) if a.storage < 0 or not graph.storages[a.storage].outside]
    ticks = {a.start for a in rows}
    return max(
        (sum(round_up(a.bytes) for a in rows if a.start <= t and (a.end < 0 or t < a.end)) for t in ticks),
        default=0,
    )


def chain(seed: int, length: int) -> Graph:
    """A training step over a chain: one op per layer forward, one backward, some with more to save."""
    rng = Random(seed)
    storages = [Storage(0, 64, external=True)]

    def new(**options: bool) -> int:
        storages.append(Storage(len(storages), 64 * rng.randint(1, 12), **options))  # type: ignore[arg-type]
        return len(storages) - 1

    ops: list[Op] = []
    values, extras = [0], list[list[int]]()
    own_output = rng.random() < 0.5
    for layer in range(length):
        made = [new() for _ in range(1 + (rng.random() < 0.4))]
        ops.append(Op(layer, f"f{layer}", "f", (values[-1],), tuple(made), ns=rng.randint(1, 9)))
        values.append(made[0])
        extras.append(made[1:])
    flow: list[int] = []
    for layer in reversed(range(length)):
        reads = {values[layer], *extras[layer], *flow}
        if own_output and rng.random() < 0.5:
            reads.add(values[layer + 1])
        flow = [new()]
        made = flow + [new(resident_at_end=True) for _ in range(rng.random() < 0.5)]
        number = len(ops)
        ops.append(
            Op(number, f"b{layer}", "b", tuple(sorted(reads)), tuple(made), ns=rng.randint(1, 9),
               phase=Phase.BACKWARD)
        )  # fmt: skip
    return Graph(tuple(ops), tuple(storages), name=f"chain{seed}")


def partial_ktree(num_ops: int, width: int, *, seed: int, near: bool = False, drop: float = 0.0) -> Graph:
    """A graph of unit bytes and times with treewidth at most ``width``, in a random base order.

    Each vertex reads ``width`` vertices of an earlier clique, less those dropped; ``near`` takes a recent
    clique, which makes it long and thin.
    """
    rng = Random(seed)
    cliques = [tuple(range(width + 1))]
    inputs = [tuple(range(v)) for v in range(width + 1)]
    for v in range(width + 1, num_ops):
        clique = cliques[max(0, len(cliques) - 1 - rng.randrange(4)) if near else rng.randrange(len(cliques))]
        base = sorted(rng.sample(clique, width))
        kept = tuple(u for u in base if rng.random() >= drop)
        inputs.append(kept or (base[-1],))
        cliques.append((*base, v))
    return _shuffled(inputs, rng)


def _shuffled(inputs: list[tuple[int, ...]], rng: Random) -> Graph:
    outputs: list[list[int]] = [[] for _ in inputs]
    missing = [len(sources) for sources in inputs]
    for v, sources in enumerate(inputs):
        for source in sources:
            outputs[source].append(v)
    ready, place = [v for v, count in enumerate(missing) if not count], dict[int, int]()
    reads: list[tuple[int, ...]] = []
    while ready:
        v = ready.pop(rng.randrange(len(ready)))
        place[v] = len(place)
        reads.append(tuple(sorted(place[source] for source in inputs[v])))
        for other in outputs[v]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    storages = tuple(Storage(v, 1, alignment=1) for v in range(len(inputs)))
    return Graph(
        tuple(Op(v, str(v), "unit", r, (v,), ns=1) for v, r in enumerate(reads)), storages, alignment=1
    )
