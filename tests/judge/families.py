"""Small graphs and valid plans for them, made without any planner, placer or judge."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.oracles import parted
from tightrope.core import (
    Allocation,
    Certificate,
    Compute,
    Flag,
    Forecast,
    Free,
    Graph,
    Op,
    OpId,
    Plan,
    Reason,
    Schedule,
    Step,
    Storage,
    StorageId,
)

Block = tuple[int, int, int, StorageId]
"""Charged bytes, first tick, tick of release, storage or -1."""


class Sketch:
    """A graph under construction."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.variants: list[tuple[OpId, tuple[StorageId, ...], tuple[StorageId, ...]]] = []

    def storage(self, **options: Any) -> StorageId:
        number = len(self.storages)
        self.storages.append(
            Storage(number, self.rng.randrange(1, 4000), label=f"float32[{number}]", **options)
        )
        return number

    def op(
        self, reads: Iterable[StorageId], creates: int, *, temporaries: bool = False, **options: Any
    ) -> Op:
        made = tuple(self.storage() for _ in range(creates))
        number = len(self.ops)
        allocations: list[Allocation] = []
        if temporaries:
            allocations.append(Allocation(self.rng.randrange(1, 3000), -1, 0, 2 + len(made)))
            allocations += [Allocation(self.storages[s].bytes, s, 1 + i) for i, s in enumerate(made)]
            allocations.append(Allocation(self.rng.randrange(1, 3000), -1, 3 + len(made), 4 + len(made)))
        self.ops.append(
            Op(
                number, f"op{number}", f"aten.op{number}.default", tuple(sorted(set(reads))), made,
                ns=self.rng.randrange(1, 100), allocations=tuple(allocations), source=f"model.py:{number}",
                module=f"block.{number}", **options,
            )
        )  # fmt: skip
        return self.ops[-1]

    def mark(self, storage: StorageId, **options: bool) -> None:
        old = self.storages[storage]
        flags = {name: getattr(old, name) for name in ("resident_at_end", "external", "outside")} | options
        self.storages[storage] = Storage(old.id, old.bytes, old.kind, old.alignment, label=old.label, **flags)

    def graph(self, split: int = -1) -> Graph:
        variants = []
        for position, (base, reads, creates) in enumerate(self.variants):
            number = len(self.ops) + position
            old = self.ops[base]
            self.ops[base] = Op(
                old.id, old.name, old.target, old.reads, old.creates, old.mutates, old.ns, old.allocations,
                old.flags, old.phase, old.module, old.source, number,
            )  # fmt: skip
            variants.append(Op(number, f"{old.name}_again", "tightrope.again", reads, creates, ns=old.ns + 1))
        made = Graph(tuple(self.ops), tuple(self.storages), tuple(variants), environment=(("threads", "1"),))
        return made if split < 0 else parted(made, split)


def random_graph(
    seed: int,
    *,
    num_ops: int = 14,
    randoms: bool = False,
    in_place: bool = False,
    temporaries: bool = False,
    split: bool = False,
) -> Graph:
    """Draw a graph; the options add ops with variants, changes in place, temporaries, a boundary."""
    rng = random.Random(seed)
    sketch = Sketch(rng)
    known = [sketch.storage(external=True) for _ in range(3)]
    for number in range(num_ops):
        reads = rng.sample(known[-6:], rng.randrange(1, min(4, len(known))))
        if in_place and number % 5 == 3:
            changed = rng.choice(reads)
            sketch.op(reads, rng.randrange(2), flags=Flag.IN_PLACE, mutates=(changed,))
        elif randoms and number % 4 == 1:
            drawn = sketch.op(reads, 2, flags=Flag.RANDOM)
            out, mask = drawn.creates
            sketch.variants.append((drawn.id, tuple(sorted({*drawn.reads, mask})), (out,)))
        else:
            sketch.op(reads, rng.choice((1, 1, 2)), temporaries=temporaries and number % 2 == 0)
        known += sketch.ops[-1].creates
    boundary = num_ops // 2
    for op in sketch.ops:
        for storage in op.creates:
            if split and op.id < boundary and rng.random() < 0.3:
                sketch.mark(storage, outside=True, resident_at_end=rng.random() < 0.5)
            elif rng.random() < 0.15 or op.id == num_ops - 1:
                sketch.mark(storage, resident_at_end=True)
    return sketch.graph(boundary if split else -1)


def chain_graph(seed: int, *, depth: int = 6) -> Graph:
    """A training step: a chain forward, a loss, the chain backward with one gradient per layer."""
    rng = random.Random(seed)
    sketch = Sketch(rng)
    weights = [sketch.storage(external=True) for _ in range(depth)]
    values = [sketch.storage(external=True)]
    for weight in weights:
        values += sketch.op((weight, values[-1]), 1, temporaries=rng.random() < 0.5).creates
    (loss,) = sketch.op(values[-1:], 1).creates
    sketch.mark(loss, resident_at_end=True)
    (flow,) = sketch.op((values[-1],), 1).creates
    for layer in reversed(range(depth)):
        flow, gradient = sketch.op((weights[layer], values[layer], flow), 2).creates
        sketch.mark(gradient, resident_at_end=True)
    return sketch.graph()


FAMILIES: dict[str, Callable[[int], Graph]] = {
    "chain": chain_graph,
    "plain": random_graph,
    "random": lambda seed: random_graph(seed, randoms=True),
    "in_place": lambda seed: random_graph(seed, in_place=True, randoms=True),
    "temporaries": lambda seed: random_graph(seed, temporaries=True),
    "split": lambda seed: random_graph(seed, split=True, randoms=True, temporaries=True),
}


def again(graph: Graph, op: OpId) -> Op:
    return graph.op(graph.ops[op].variant) if graph.ops[op].variant >= 0 else graph.ops[op]


def possible_pairs(graph: Graph) -> list[tuple[int, OpId]]:
    """List the re-runs (before which op, which op) that keep every value."""
    producer = {s: op.id for op in graph.ops for s in op.creates}
    changed = {s for op in graph.ops for s in op.mutates}
    pairs = []
    for op in graph.ops:
        rerun = again(graph, op.id)
        if not op.recomputable or changed & {*rerun.reads, *rerun.creates, *op.reads}:
            continue
        earliest = max((op.id, *(producer.get(s, -1) for s in rerun.reads))) + 1
        pairs += [(t, op.id) for t in range(earliest, len(graph.ops))]
    return pairs


def build_schedule(graph: Graph, pairs: Iterable[tuple[int, OpId]], rng: random.Random) -> Schedule:
    """Run the base order with the re-runs; release every copy right after its last reader."""
    runs: list[tuple[Op, bool]] = []
    chosen = sorted(pairs)
    for op in graph.ops:
        runs += [(again(graph, u), False) for t, u in chosen if t == op.id]
        runs.append((op, True))
    never = len(runs)
    last: dict[Any, Any] = {}
    latest: dict[Any, Any] = {}
    for position, (op, first) in enumerate(runs):
        for storage in op.reads:
            if not graph.storages[storage].external:
                last[latest[storage]] = max(last[latest[storage]], position)
        if first and op.id + 1 in graph.boundaries:
            for key in latest.values():
                if graph.storages[key[1]].outside:
                    last[key] = max(last[key], position)
        for storage in op.creates:
            sticky = graph.storages[storage].resident_at_end or graph.storages[storage].outside
            if first or not sticky:
                latest[storage] = (position, storage)
                last[latest[storage]] = never if graph.storages[storage].resident_at_end else -1
    return Schedule(tuple(_steps(graph, runs, last, rng)))


def _steps(
    graph: Graph, runs: list[tuple[Op, bool]], last: dict[tuple[int, StorageId], int], rng: random.Random
) -> list[Step]:
    steps: list[Step] = []
    for position, (op, first) in enumerate(runs):
        unread = [s for s in op.creates if last.get((position, s), -1) == -1]
        drop = tuple(s for s in unread if not first or rng.random() < 0.5)
        steps.append(Compute(op.id, drop))
        steps += [Free(s) for s in unread if s not in drop]
        steps += [Free(s) for (made, s), end in last.items() if end == position and made <= position]
    return steps


def simulate(graph: Graph, schedule: Schedule) -> list[Block]:
    """List the blocks of a valid schedule, one tick per allocation and per release."""
    tick, blocks = 0, list[Any]()
    live: dict[Any, Any] = {}
    for step in schedule.steps:
        if isinstance(step, Free):
            blocks[live.pop(step.storage)][2] = tick
            tick += 1
            continue
        assert isinstance(step, Compute)
        op = graph.op(step.op)
        allocations = op.allocations or [
            Allocation(graph.storages[s].bytes, s, i) for i, s in enumerate(op.creates)
        ]
        inside: dict[int, int] = {}
        for inner in range(1 + max((max(a.start, a.end) for a in allocations), default=-1)):
            for number, allocation in enumerate(allocations):
                if allocation.end == inner:
                    blocks[inside[number]][2] = tick
                    tick += 1
            for number, allocation in enumerate(allocations):
                if allocation.start == inner:
                    inside[number] = len(blocks)
                    blocks.append([(allocation.bytes + 63) // 64 * 64, tick, -1, allocation.storage])
                    tick += 1
        mine = {a.storage: inside[number] for number, a in enumerate(allocations) if a.storage >= 0}
        for storage in step.drop:
            blocks[mine.pop(storage)][2] = tick
            tick += 1
        live.update(mine)
    return [(size, start, tick if end < 0 else end, storage) for size, start, end, storage in blocks]


def peak_of(blocks: Iterable[Block]) -> int:
    chosen = list(blocks)
    return max((sum(b[0] for b in chosen if b[1] <= a[1] < b[2]) for a in chosen), default=0)


def first_fit(blocks: list[Block]) -> tuple[int, ...]:
    """Place large blocks first, each at the lowest address that is free for its lifetime."""
    placed: dict[int, int] = {}
    for number in sorted(range(len(blocks)), key=lambda i: (-blocks[i][0], i)):
        size, start, end, _ = blocks[number]
        offset = 0
        for at, other in sorted((at, n) for n, at in placed.items()):
            if blocks[other][1] < end and start < blocks[other][2] and at < offset + size:
                offset = max(offset, at + blocks[other][0])
        placed[number] = offset
    return tuple(placed[number] for number in range(len(blocks)))


def naive_bound(graph: Graph) -> tuple[int, OpId]:
    """Evaluate, op by op, what must be live while it runs for the first time."""
    size = [(s.bytes + 63) // 64 * 64 for s in graph.storages]
    persistent = sum(size[s.id] for s in graph.storages if s.external)
    best = (persistent, -1)
    for op in graph.ops:
        must = {s for s in op.reads if not graph.storages[s].external}
        for earlier in graph.ops[: op.id]:
            later = {s for other in graph.ops[op.id :] for s in other.reads}
            must |= {s for s in earlier.creates if graph.storages[s].resident_at_end}
            must |= {s for s in earlier.creates if not earlier.recomputable and s in later}
        alone = simulate(graph, Schedule((Compute(op.id),)))
        best = max(best, (persistent + sum(size[s] for s in must) + peak_of(alone), op.id))
    return best


def build_plan(graph: Graph, schedule: Schedule) -> Plan:
    """Fill in every figure of a plan for a valid schedule."""
    blocks = simulate(graph, schedule)
    outside = [block[3] >= 0 and graph.storages[block[3]].outside for block in blocks]
    inside = [block for block, out in zip(blocks, outside, strict=True) if not out]
    packed = iter(first_fit(inside))
    offsets = tuple(-1 if out else next(packed) for out in outside)
    arena = max((o + b[0] for o, b in zip(offsets, blocks, strict=True) if o >= 0), default=0)
    bound, witness = naive_bound(graph)
    runs = schedule.computes()
    forecast = Forecast(
        persistent=sum((s.bytes + 63) // 64 * 64 for s in graph.storages if s.external),
        peak=peak_of(blocks),
        arena=arena,
        outside=peak_of(block for block, out in zip(blocks, outside, strict=True) if out),
        ns=sum(graph.op(op).ns for op in runs),
        base_ns=sum(op.ns for op in graph.ops),
    )
    copies = [sum(block[3] == s.id for block in blocks) for s in graph.storages]
    reasons = tuple(
        Reason(s.id, "kept" if copies[s.id] == 1 else "recomputed", s.bytes, 1, copies[s.id], "because")
        for s in graph.storages
        if not s.external
    )
    return Plan(
        graph.fingerprint, schedule, offsets, forecast.total, forecast,
        Certificate(bound, witness, ns_bound=forecast.base_ns), reasons,
    )  # fmt: skip


def draw_plan(graph: Graph, seed: int) -> Plan:
    """Draw some re-runs and build the plan with them."""
    rng = random.Random(seed)
    pairs = possible_pairs(graph)
    chosen = rng.sample(pairs, min(len(pairs), rng.randrange(7)))
    return build_plan(graph, build_schedule(graph, chosen, rng))
