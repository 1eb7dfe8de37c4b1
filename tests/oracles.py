"""Judges that are slow and obvious: naive evaluation of a set of recomputations, and brute force."""

from collections.abc import Iterator
from itertools import combinations
from random import Random

from msgspec.structs import replace

from tightrope.core import Allocation, Flag, Graph, Op, Part, Result, Storage, View, round_up
from tightrope.core.graph import RETURN
from tightrope.lower import with_writes

Pair = tuple[int, int]


def random_graph(seed: int, *, num_ops: int = 7, rich: bool = True) -> Graph:
    """Draw a small step; ``rich`` adds temporaries, two outputs, variants, residents, mutation, a part."""
    rng = Random(seed)
    storages = [Storage(0, 64 * rng.randint(1, 4), external=True)]
    ops: list[Op] = []
    variants: list[Op] = []
    for number in range(num_ops):
        made = [s.id for s in storages]
        reads = sorted(set(rng.sample(made, min(len(made), rng.randint(1, 3)))))
        outputs = 2 if rich and rng.random() < 0.3 else 1
        creates = tuple(range(len(storages), len(storages) + outputs))
        for storage in creates:
            resident = rich and rng.random() < 0.15
            outside = resident and rng.random() < 0.3 and number < num_ops // 2
            size = rng.randint(1, 40) * 16
            storages.append(Storage(storage, size, resident_at_end=resident, outside=outside))
        allocations: tuple[Allocation, ...] = ()
        if rich and rng.random() < 0.5:
            allocations = _measured(rng, [(s, storages[s].bytes) for s in creates])
        mutates = (reads[-1],) if rich and rng.random() < 0.1 else ()
        flags = Flag.IN_PLACE if mutates else Flag.NONE
        variant = -1
        if rich and not mutates and outputs == 2 and rng.random() < 0.5:
            flags, variant = Flag.RANDOM, num_ops + len(variants)
            sources = tuple(sorted({*reads, creates[1]}))
            variants.append(
                Op(variant, f"variant{number}", "again", sources, creates[:1], ns=rng.randint(1, 9))
            )
        ns = rng.randint(0, 9)
        name = f"op{number}"
        ops.append(
            Op(
                number,
                name,
                "fake.op",
                tuple(reads),
                creates,
                mutates,
                ns=ns,
                allocations=allocations,
                flags=flags,
                variant=variant,
            )
        )
    graph = Graph(tuple(ops), tuple(storages), tuple(variants), name=f"random{seed}")
    return parted(graph, num_ops // 2) if rich and rng.random() < 0.5 else graph


WIDE = 6400 * 8
"""Bytes of the widest op of `trunk`."""


def trunk(length: int) -> Graph:
    """Draw a chain whose end is read again after an op beside which nothing of it fits in `WIDE` bytes."""
    ops = [Op(i, f"layer{i}", "aten.layer", (i - 1,) if i else (), (i,), ns=1000) for i in range(length)]
    wide = Op(length, "wide", "aten.wide", (), (length,), ns=1000)
    end = Op(length + 1, "end", "aten.end", (length - 1,), (length + 1,), ns=1000)
    storages = [Storage(i, 6400) for i in range(length)]
    storages += [Storage(length, WIDE), Storage(length + 1, 64, resident_at_end=True)]
    return Graph((*ops, wide, end), tuple(storages), name="trunk")


def parted(graph: Graph, split: int) -> Graph:
    """Put a return to the caller after the first ``split`` ops; the numbers of later ops rise by one."""
    made = {s for op in graph.ops[:split] for s in op.creates}
    given = tuple(sorted(s for s in made if graph.storages[s].outside))
    handing = Op(split, "return", RETURN, given, flags=Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE)

    def moved(op: Op) -> Op:
        variant = op.variant + 1 if op.variant >= 0 else -1
        return replace(op, id=op.id + (op.id >= split), variant=variant)

    ops = (*map(moved, graph.ops[:split]), handing, *map(moved, graph.ops[split:]))
    outputs = tuple(View(s, "uint8", (1,), (1,)) for s in given)
    parts = (Part(split + 1, outputs=outputs), Part(len(ops)))
    return replace(graph, ops=ops, variants=tuple(map(moved, graph.variants)), parts=parts)


def _measured(rng: Random, creates: list[tuple[int, int]]) -> tuple[Allocation, ...]:
    temporary = 16 * rng.randint(1, 40)
    rows = [Allocation(temporary, -1, 0, len(creates) + 1)]
    rows += [Allocation(size, storage, 1 + i) for i, (storage, size) in enumerate(creates)]
    return tuple(rows)


def allowed_pairs(graph: Graph) -> list[Pair]:
    """List every (t, u) for which running u again just before t gives what it gave before."""
    producer = {s: op.id for op in graph.ops for s in op.creates}
    pairs: list[Pair] = []
    for op in graph.ops:
        run = graph.op(op.variant) if op.variant >= 0 else op
        touched = {*op.creates, *run.creates, *run.reads}
        for stage in range(op.id + 1, len(graph.ops)):
            ready = all(producer.get(s, -1) < stage for s in run.reads)
            same = not any(touched & set(m.mutates) for m in graph.ops[op.id + 1 : stage])
            if op.recomputable and ready and same:
                pairs.append((stage, op.id))
    return pairs


def runs_of(graph: Graph, pairs: tuple[Pair, ...]) -> list[tuple[Op, bool]]:
    """List what runs, and whether it is a first run."""
    runs: list[tuple[Op, bool]] = []
    for op in graph.ops:
        for _, again in sorted(p for p in pairs if p[0] == op.id):
            base = graph.ops[again]
            runs.append((graph.op(base.variant) if base.variant >= 0 else base, False))
        runs.append((op, True))
    return runs


def evaluate(graph: Graph, pairs: tuple[Pair, ...], *, arena_only: bool = True) -> tuple[int, int]:
    """Measure a set: peak bytes above what the caller holds, and time."""
    runs = runs_of(graph, pairs)
    copies = _copies(graph, runs)
    peak = 0
    for position, (op, _) in enumerate(runs):
        live = sum(
            graph.storages[s].size
            for s, made, last in copies
            if made < position <= last and not (arena_only and graph.storages[s].outside)
        )
        peak = max(peak, live + _need(graph, op, arena_only))
    return peak, sum(op.ns for op, _ in runs)


def _copies(graph: Graph, runs: list[tuple[Op, bool]]) -> list[tuple[int, int, int]]:
    """List (storage, run that made it, last run that needs that copy)."""
    result: list[tuple[int, int, int]] = []
    for storage in graph.storages:
        stays = storage.resident_at_end or storage.outside
        makers = [
            i for i, (op, first) in enumerate(runs) if storage.id in op.creates and (first or not stays)
        ]
        for number, made in enumerate(makers):
            until = makers[number + 1] if number + 1 < len(makers) else len(runs)
            readers = [i for i in range(made + 1, until) if storage.id in runs[i][0].reads]
            end = len(runs) if storage.resident_at_end else made
            result.append((storage.id, made, max([end, *readers])))
    return result


def _need(graph: Graph, op: Op, arena_only: bool) -> int:
    rows = [
        a
        for a in graph.allocations(op)
        if not (arena_only and a.storage >= 0 and graph.storages[a.storage].outside)
    ]
    ticks = range(max((max(a.start, a.end) for a in rows), default=0) + 1)
    return max(
        (sum(round_up(a.bytes) for a in rows if a.start <= t and (a.end < 0 or t < a.end)) for t in ticks),
        default=0,
    )


def every_set(graph: Graph, size: int) -> Iterator[tuple[Pair, ...]]:
    """Enumerate the sets of at most ``size`` allowed pairs."""
    pairs = allowed_pairs(graph)
    for count in range(size + 1):
        yield from combinations(pairs, count)


def best_time(graph: Graph, capacity: int, *, size: int) -> int | None:
    """Find the least time of all sets of at most ``size`` pairs whose live bytes fit, or None."""
    fitting = (ns for s in every_set(graph, size) for peak, ns in [evaluate(graph, s)] if peak <= capacity)
    return min(fitting, default=None)


WRITING = (
    "aten.relu.default", "aten.tanh.default", "aten.exp.default",
    "aten.add.Tensor", "aten.mul.Tensor", "aten.threshold_backward.default",
)  # fmt: skip
"""Ops that may write over what they read; those of two inputs last."""


def whole_view(storage: int) -> View:
    return View(storage, "float32", (4, 8), (8, 1))


def writing_graph(seed: int, *, num_ops: int = 14, parts: bool = False) -> Graph:
    """A graph of ops that may write over what they read, of all the same size."""
    rng = Random(seed)
    storages = [Storage(0, 128, external=True), Storage(1, 128, external=True)]
    ops: list[Op] = []
    half = num_ops // 2
    for number in range(num_ops):
        if parts and number == half:
            ops.append(Op(number, "return", RETURN))
            continue
        target = rng.choice(WRITING)
        reads = rng.choices(range(max(0, len(storages) - 4), len(storages)), k=1 + (target in WRITING[3:]))
        made = len(storages)
        storages.append(Storage(made, 128, resident_at_end=rng.random() < 0.1))
        ops.append(
            Op(
                number, f"op{number}", target, tuple(sorted(set(reads))), (made,), ns=1,
                arguments=tuple(whole_view(s) for s in reads), results=(Result(-1, whole_view(made)),),
            )
        )  # fmt: skip
    cut = (Part(half + 1), Part(num_ops)) if parts else ()
    return with_writes(Graph(tuple(ops), tuple(storages), (), cut))
