"""The least time of any schedule at all, by Dijkstra's algorithm over what is live. Slow and obvious.

A state is how far the first runs are, and which storages are live in which version. Every run that the
rules allow is tried at every point, and every storage may be freed at any time.
"""

import heapq
from random import Random

import msgspec

from tightrope.core import Flag, Graph, Op, OpId, Storage, round_up
from tightrope.core.graph import RETURN

MS = 1_000_000

Live = frozenset[tuple[int, int]]
_ONCE = Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE


def least_time(graph: Graph, budget: int, *, free_order: bool = False) -> int | None:
    """Find the least time of a schedule whose live bytes never exceed ``budget``; None = there is none."""
    versions, final = _versions(graph)
    start: tuple[int, Live] = (0, frozenset())
    everything = (1 << len(graph.ops)) - 1
    best = {start: 0}
    heap: list[tuple[int, int, int, Live]] = [(0, 0, *start)]
    count = 0
    while heap:
        ns, _, done, live = heapq.heappop(heap)
        if best[done, live] < ns:
            continue
        if done == everything and _ends(graph, live, final):
            return ns
        for cost, state in _moves(graph, budget, versions, done, live, free_order=free_order):
            if ns + cost < best.get(state, 2**62):
                best[state] = ns + cost
                count += 1
                heapq.heappush(heap, (ns + cost, count, *state))
    return None


def _moves(
    graph: Graph,
    budget: int,
    versions: dict[OpId, dict[int, int]],
    done: int,
    live: Live,
    *,
    free_order: bool,
) -> list[tuple[int, tuple[int, Live]]]:
    held = dict(live)
    found: list[tuple[int, tuple[int, Live]]] = []
    for storage, version in live:
        if not graph.storages[storage].resident_at_end:
            found.append((0, (done, live - {(storage, version)})))
    for base in graph.ops:
        first = not done >> base.id & 1
        if first and not free_order and done != (1 << base.id) - 1:
            continue
        if first:
            runs = [base]
        else:
            runs = [base] * (not (base.flags & _ONCE or base.mutates))
            runs += [graph.op(base.variant)] if base.variant >= 0 else []
        for run in runs:
            after = _run(graph, budget, versions, run, held, first=first)
            if after is not None:
                found.append((run.ns, (done | 1 << base.id, after)))
    return found


def _run(
    graph: Graph,
    budget: int,
    versions: dict[OpId, dict[int, int]],
    run: Op,
    held: dict[int, int],
    *,
    first: bool,
) -> Live | None:
    """Run an op; every storage that it makes must be gone, except that a re-run may drop its copies."""
    for storage in run.reads:
        if not graph.storages[storage].external and held.get(storage) != versions[run.id][storage]:
            return None
    if first and run.id in graph.boundaries:
        given = {s for op in graph.ops[: run.id] for s in op.creates if graph.storages[s].outside}
        if not given <= set(held):
            return None
    bytes_live = graph.persistent + sum(graph.storages[s].size for s in held)
    if bytes_live + need(graph, run) > budget:
        return None
    after = dict(held)
    for storage in run.creates:
        if storage not in after:
            after[storage] = 0
    for storage in run.mutates:
        if storage in after:
            after[storage] += 1
    return frozenset(after.items())


def _ends(graph: Graph, live: Live, final: dict[int, int]) -> bool:
    kept = {s.id for s in graph.storages if s.resident_at_end and not s.external}
    return {s for s, _ in live} == kept and all(final.get(s, 0) == version for s, version in live)


def _versions(graph: Graph) -> tuple[dict[OpId, dict[int, int]], dict[int, int]]:
    now: dict[int, int] = {}
    reads: dict[OpId, dict[int, int]] = {}
    for op in graph.ops:
        reads[op.id] = {s: now.get(s, 0) for s in op.reads}
        if op.variant >= 0:
            reads[op.variant] = {s: now.get(s, 0) for s in graph.op(op.variant).reads}
        for s in op.mutates:
            now[s] = now.get(s, 0) + 1
    return reads, now


def need(graph: Graph, op: Op) -> int:
    """Largest number of bytes that an op holds of its own allocations."""
    rows = [
        (graph.storages[a.storage].size if a.storage >= 0 else round_up(a.bytes), a.start, a.end)
        for a in graph.allocations(op)
    ]
    ticks = {tick for _, start, end in rows for tick in (start, end) if tick >= 0}
    return max(
        (sum(size for size, start, end in rows if start <= t and (end < 0 or t < end)) for t in ticks),
        default=0,
    )


def plain_graph(seed: int, *, num_ops: int) -> Graph:
    """Draw a graph with one storage per op, charged to the byte, as published graphs have them."""
    draw = Random(seed)
    ops, storages = [], []
    for number in range(num_ops):
        reads = sorted(draw.sample(range(number), min(number, draw.randint(0, 3))))
        kept = draw.random() < 0.1
        storages.append(Storage(number, draw.randint(1, 30), alignment=1, resident_at_end=kept))
        ops.append(Op(number, f"op{number}", "op", tuple(reads), (number,), ns=draw.randint(0, 20)))
    return Graph(tuple(ops), tuple(storages), name=f"plain{seed}", alignment=1)


def training_graph(seed: int, *, depth: int) -> Graph:
    """Draw a chain forward and its chain backward: each backward op reads what its forward op made."""
    draw = Random(seed)
    ops, storages = [], []
    for number in range(2 * depth):
        reads = [number - 1] if number else []
        if number >= depth and 2 * depth - 1 - number != number - 1:
            reads.append(2 * depth - 1 - number)
        storages.append(Storage(number, draw.randint(1, 30), alignment=1))
        ops.append(Op(number, f"op{number}", "op", tuple(sorted(reads)), (number,), ns=draw.randint(0, 20)))
    return Graph(tuple(ops), tuple(storages), name=f"training{seed}", alignment=1)


def priced(graph: Graph) -> Graph:
    """Convolutions are expensive, normalization is not cheap, everything else nearly free."""

    def ns(target: str) -> int:
        if target == RETURN:
            return 0
        return 6 * MS if "conv" in target else MS if "norm" in target else MS // 25

    every = [msgspec.structs.replace(op, ns=ns(op.target)) for op in graph.all_ops()]
    num = len(graph.ops)
    return msgspec.structs.replace(graph, ops=tuple(every[:num]), variants=tuple(every[num:]))
