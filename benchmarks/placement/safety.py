"""Reuse of memory across parallel streams: is it right, how fast, how close to the bound, how few waits.

Run ``python -m benchmarks placement_safety``. Times are CPU seconds of one thread, medians of five seeds.
Every answer is checked here: relations against a closure, bounds against brute force, waits and
addresses by the judge, which shares no code with the placer.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.zoo import build
from tightrope.core import Bytes, Graph, JudgeError, Op, Phase
from tightrope_planners.judge.safety import Tenant, ancestors, check_sharing
from tightrope_planners.place.streams import (
    StreamGraph,
    StreamPlacement,
    StreamStorage,
    bounded_lag,
    live_bound,
    place_streams,
    reuse_relation,
    side_streams,
    stream_graph,
)
from tightrope_planners.place.streams.relation import last_uses

NETS = ("resnet18", "unet", "mobilenetv2", "resnet50", "densenet121")
SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
"""Budgets, as shares of the way from the bound of one op after another to that of free streams."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    bar: str
    question: str
    figure: str
    wanted: str
    held: bool


def draw_large(num_ops: int, num_streams: int, seed: int, *, reach: int = 40) -> StreamGraph:
    """Draw runs of 8 ops on streams; 1.2 storages an op, 2 reads an op, a wait per read across streams."""
    draw = np.random.default_rng(seed)
    streams = np.repeat(draw.integers(0, num_streams, num_ops // 8 + 1), 8)[:num_ops]
    count = num_ops * 6 // 5
    writers = np.concatenate([np.arange(num_ops), draw.integers(0, num_ops, count - num_ops)])
    storages = draw.integers(0, count, 2 * num_ops)
    ops = writers[storages] + draw.geometric(1 / reach, 2 * num_ops)
    reads = np.stack([storages, ops], axis=1)[ops < num_ops]
    pairs = np.stack([writers[reads[:, 0]], reads[:, 1]], axis=1)
    waits = np.unique(pairs[streams[pairs[:, 0]] != streams[pairs[:, 1]]], axis=0)
    return StreamGraph(
        streams=streams,
        waits=waits,
        sizes=64 * draw.integers(1, 1000, count),
        writers=writers,
        reads=reads,
        mutates=np.zeros((0, 2), dtype=np.int64),
        resident=np.zeros(count, dtype=np.bool_),
    )


def draw_small(seed: int, *, num_ops: int = 9, num_storages: int = 10, most_reads: int = 3) -> StreamGraph:
    """Draw a graph that brute force can answer, with the waits that its reads need."""
    draw = Random(seed)
    num_streams = draw.randint(1, 3)
    streams = [draw.randrange(num_streams) for _ in range(draw.randint(2, num_ops))]
    storages, waits = [], set()
    for _ in range(draw.randint(1, num_storages)):
        writer = draw.randrange(len(streams))
        after = range(writer + 1, len(streams))
        reads = draw.sample(after, min(len(after), draw.randint(0, most_reads)))
        storages.append(StreamStorage(draw.randint(1, 9), writer, tuple(reads)))
        waits |= {(writer, op) for op in reads if streams[op] != streams[writer]}
    return StreamGraph.of(streams, storages, sorted(waits))


def cpu(call: Callable[[], object]) -> float:
    """Time one call without the garbage collector."""
    gc.collect()
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def orders_of(graph: StreamGraph) -> set[Pair]:
    """List (a, b) where b may take the addresses of a, by the judge's closure."""
    ended, storages = ancestors(graph.streams.tolist(), graph.wait_pairs()), graph.storages()
    uses = [sum(1 << op for op in {s.writer, *s.reads}) for s in storages]
    numbers = range(len(storages))
    return {(a, b) for a in numbers for b in numbers if not uses[a] & ~ended[storages[b].writer]}


def heaviest_clique(graph: StreamGraph) -> Bytes:
    """Try every set of storages of which none may take the addresses of another."""
    orders, sizes = orders_of(graph), graph.sizes.tolist()

    def extend(weight: Bytes, rest: list[int]) -> Bytes:
        best = weight
        for place, a in enumerate(rest):
            free = [b for b in rest[place + 1 :] if (a, b) not in orders and (b, a) not in orders]
            best = max(best, extend(weight + sizes[a], free))
        return best

    return extend(0, list(range(len(sizes))))


def closure_and_all_pairs(graph: StreamGraph) -> int:
    """Count ordered pairs with a bit set of ancestors per op and a test per pair of storages."""
    num_ops = len(graph.streams)
    ended = np.zeros((num_ops, num_ops // 8 + 1), dtype=np.uint8)
    before: list[list[int]] = [[] for _ in range(num_ops)]
    for earlier, later in graph.waits.tolist():
        before[later].append(earlier)
    latest: dict[int, int] = {}
    for op, stream in enumerate(graph.streams.tolist()):
        for other in [*before[op], *([latest[stream]] if stream in latest else [])]:
            np.bitwise_or(ended[op], ended[other], out=ended[op])
            ended[op, other >> 3] |= 128 >> (other & 7)
        latest[stream] = op
    ops = np.append(np.argsort(graph.issue.stream, kind="stable"), num_ops)
    last = last_uses(graph)
    uses = ops[np.where(last < 0, num_ops, graph.issue.base[:-1] + last)].T.copy()
    known = np.ones(num_ops + 1, dtype=np.bool_)
    ordered = 0
    for writer in graph.writers.tolist():
        known[:num_ops] = np.unpackbits(ended[writer], count=num_ops)
        ordered += int(np.logical_and.reduce([known[row] for row in uses]).sum())
    return ordered


def relation_rows(*, quick: bool) -> Iterator[Row]:
    same = sum(as_pairs(graph) == orders_of(graph) for graph in map(draw_small, range(1000)))
    yield Row("F7", "relation = closure on 1,000 random graphs", f"{same}/1000", "1000", same == 1000)
    for num_ops, most in ((40_000, 0.05), *(() if quick else ((1_000_000, 2.0),))):
        times = times_of(num_ops)
        spread = f"{median(times):.4f} s (worst {max(times):.4f})"
        yield Row("F7", f"relation, {num_ops:,} ops x 4", spread, f"<= {most} s", median(times) <= most)
    if not quick:
        used = memory_of(draw_large(1_000_000, 4, 0))
        yield Row(
            "F7", "its memory, 1,000,000 ops x 4, input included", f"{used} MB", "<= 300 MB", used <= 300
        )
    graph = draw_large(20_000, 4, 0)
    counts: list[int] = []
    slow = cpu(lambda: counts.append(closure_and_all_pairs(graph)))
    fast = median(times_of(20_000))
    count = len(graph.sizes)
    agree = count * (count - 1) // 2 - counts[0] == reuse_relation(graph).num_conflicts()
    figure = f"{slow / fast:.0f} x ({slow:.2f} s, {fast:.4f} s), {'equal' if agree else 'DIFFERENT'} counts"
    yield Row(
        "F7", "against closure + all pairs, 20,000 ops", figure, ">= 100 x", agree and slow >= 100 * fast
    )


def times_of(num_ops: int) -> list[float]:
    """Time the relation of five fresh graphs."""
    return [cpu(partial(reuse_relation, draw_large(num_ops, 4, seed))) for seed in range(5)]


def as_pairs(graph: StreamGraph) -> set[Pair]:
    relation = reuse_relation(graph)
    rows, columns = np.nonzero(relation.matrix())
    return set(zip(relation.storages[rows].tolist(), relation.storages[columns].tolist(), strict=True))


def memory_of(graph: StreamGraph) -> int:
    """Megabytes that a fresh process adds by reading the arrays and computing the relation."""
    columns = ("streams", "waits", "sizes", "writers", "reads", "mutates", "resident")
    with tempfile.TemporaryDirectory() as folder:
        for name in columns:
            np.save(Path(folder) / f"{name}.npy", getattr(graph, name))
        run = [sys.executable, "-m", "benchmarks.placement.safety", "--memory", folder]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)


def print_memory(folder: Path) -> None:
    """Do the work of `memory_of` in this process."""
    reuse_relation(draw_small(0))
    before = resident("VmRSS")
    graph = StreamGraph(**{file.stem: np.load(file) for file in folder.glob("*.npy")})
    reuse_relation(graph)
    print((resident("VmHWM") - before) // 10**6)


def resident(which: str) -> Bytes:
    """Read a figure of this process; the highest one of `getrusage` includes that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which))


def bound_rows() -> Iterator[Row]:
    same = 0
    for seed in range(500):
        graph = draw_small(seed)
        bound = live_bound(reuse_relation(graph))
        clique = all(pair not in orders_of(graph) for pair in combinations(bound.witness, 2))
        weight = sum(graph.sizes[list(bound.witness)].tolist())
        same += clique and bound.bytes == weight == heaviest_clique(graph)
    yield Row("F8", "bound and witness = heaviest clique", f"{same}/500", "500", same == 500)
    relations = [reuse_relation(draw_large(16_667, 4, seed)) for seed in range(5)]
    times = [cpu(partial(live_bound, relation)) for relation in relations]
    figure = f"{median(times):.4f} s (worst {max(times):.4f})"
    yield Row("F8", "bound, 20,000 storages x 4 streams", figure, "<= 1 s", median(times) <= 1)


def captured(name: str) -> Graph:
    """Capture a net's step and give every op of the backward pass that makes a weight gradient a twin.

    One op then makes the gradient of the activations, the other that of the weights, as two calls
    with an output mask do; without that, a convolution's weight gradient could not run aside.
    """
    import torch

    import tightrope

    case = build(name)
    graph = tightrope.capture(case.model, *case.inputs)
    torch._dynamo.reset()
    ops: list[Op] = []
    for op in graph.ops:
        weights = tuple(made for made in op.creates if graph.storages[made].resident_at_end)
        others = tuple(made for made in op.creates if made not in weights)
        apart = op.phase is Phase.BACKWARD and weights and others and not op.mutates
        for creates in (others, weights) if apart else (op.creates,):
            ops.append(msgspec.structs.replace(op, id=len(ops), creates=creates, allocations=(), variant=-1))
    return Graph(tuple(ops), graph.storages, name=name)


def judge(graph: StreamGraph, placement: StreamPlacement, waits: list[Pair] | None = None) -> bool:
    """Ask the judge about a placement under the graph's waits, or under others."""
    tenants = [Tenant(*storage) for storage in graph.storages()]
    try:
        check_sharing(
            graph.streams.tolist(),
            graph.wait_pairs() if waits is None else waits,
            tenants,
            placement.offsets,
            arena=placement.peak,
        )
    except JudgeError:
        return False
    return True


def placed_rows(graphs: list[Graph]) -> Iterator[Row]:
    for graph in graphs:
        alone = stream_graph(graph, [0] * len(graph.ops))
        serial, sequential = live_bound(reuse_relation(alone)).bytes, place_streams(alone)
        for num_streams, most in ((2, 1.01), (3, 1.03)):
            ratios, right, times = [], True, []
            for seed in range(5):
                found = stream_graph(graph, side_streams(graph, num_streams=num_streams, seed=seed))
                placement = place_streams(found, seed=seed)
                right &= judge(found, placement) and not judge(found, sequential)
                ratios.append(placement.peak / placement.lower_bound)
                times.append(placement.cpu_seconds)
            figure = (
                f"{max(ratios):.4f} of the bound (median {median(ratios):.4f}, {median(times):.2f} s); "
                f"bound / serial {placement.lower_bound / serial:.3f}"
            )
            question = f"{graph.name}, {num_streams} streams, {len(found.sizes)} storages"
            yield Row("F8", question, figure, f"<= {most}", right and max(ratios) <= most)


def every_nth(graph: StreamGraph, budget: Bytes) -> int:
    """Count the waits of the largest uniform lag that fits: side work at most that many ops behind."""
    streams = graph.streams.tolist()
    for lag in sorted({int(1.2**power) for power in range(46)}, reverse=True):
        added, done, last = [], -1, -1
        for op, stream in enumerate(streams):
            if stream == 0 and op - max(done, 0) >= lag and last > done:
                added.append((last, op))
                done = op
            last = op if stream else last
        if live_bound(reuse_relation(graph.with_waits([*graph.wait_pairs(), *added]))).bytes <= budget:
            return len(added)
    return -1


def lag_rows(graphs: list[Graph]) -> Iterator[Row]:
    for graph in graphs:
        serial = live_bound(reuse_relation(stream_graph(graph, [0] * len(graph.ops)))).bytes
        free = stream_graph(graph, side_streams(graph))
        loose = live_bound(reuse_relation(free)).bytes
        counts, fits, proved, begun = [], 0, 0, time.thread_time()
        for share in SHARES:
            budget = int(serial + share * (loose - serial))
            lag = bounded_lag(free, budget)
            fits += lag.bound.bytes <= budget and judge(lag.graph, place_streams(lag.graph, seconds=0.2))
            proved += lag.proved
            counts.append(f"{len(lag.added)}/{every_nth(free, budget)}")
        figure = (
            f"{fits}/5 fit and pass, {proved}/5 proved fewest; waits / those of a uniform lag: "
            f"{', '.join(counts)} ({time.thread_time() - begun:.1f} s)"
        )
        yield Row("F9", f"{graph.name}, budgets at {SHARES}", figure, "5/5", fits == len(SHARES))


def fewest_rows() -> Iterator[Row]:
    tried = right = more = 0
    for seed in range(400):
        graph = draw_small(seed, num_ops=8, num_storages=9, most_reads=1)
        budget = live_bound(reuse_relation(StreamGraph.of([0] * len(graph.streams), graph.storages()))).bytes
        found = len(bounded_lag(graph, budget).added)
        streams = graph.streams.tolist()
        every = [(u, v) for u, v in combinations(range(len(streams)), 2) if streams[u] != streams[v]]
        fewer = (added for count in range(found) for added in combinations(every, count))
        own = graph.wait_pairs()
        beaten = any(heaviest_clique(graph.with_waits([*own, *added])) <= budget for added in fewer)
        tried, right, more = tried + 1, right + (not beaten), more + (found > 1)
    figure = f"{right}/{tried} ({more} with two waits or more)"
    yield Row("F9", "fewest waits by brute force over all waits", figure, "all", right == tried)


def mutant_rows(graphs: list[Graph]) -> Iterator[Row]:
    """Drop waits whose loss brute force finds unsafe; move storages onto others alive with them."""
    draw = Random(0)
    cases = []
    for graph in graphs[:3]:
        free = stream_graph(graph, side_streams(graph, num_streams=3))
        serial = live_bound(reuse_relation(stream_graph(graph, [0] * len(graph.ops)))).bytes
        lag = bounded_lag(free, serial + (live_bound(reuse_relation(free)).bytes - serial) // 10)
        placement = place_streams(lag.graph, seconds=0.2)
        assert judge(lag.graph, placement)
        cases.append((lag.graph, free.wait_pairs(), placement))
    caught = 0
    for _ in range(1000):
        found, needed, placement = draw.choice(cases)
        dropped = draw.choice(needed)  # data needs each of them: none follows from the others
        caught += not judge(found, placement, [wait for wait in found.wait_pairs() if wait != dropped])
    yield Row("F10", "dropped waits that data needs, refused", f"{caught}/1000", "1000", caught == 1000)
    caught = 0
    for _ in range(1000):
        found, _, placement = draw.choice(cases)
        caught += not judge(found, move_onto_another(found, placement, draw))
    yield Row("F10", "storages moved onto live ones, refused", f"{caught}/1000", "1000", caught == 1000)


def move_onto_another(graph: StreamGraph, placement: StreamPlacement, draw: Random) -> StreamPlacement:
    """Give a storage of the witness the address of another one."""
    sizes = graph.sizes.tolist()
    first, second = draw.sample([number for number in placement.witness if sizes[number]], 2)
    offsets = list(placement.offsets)
    offsets[first] = min(offsets[second], placement.peak - sizes[first])
    overlap = offsets[first] + sizes[first] > offsets[second]
    offsets[first] = offsets[first] if overlap else offsets[second]
    return StreamPlacement(
        **{**{name: getattr(placement, name) for name in placement.__slots__}, "offsets": tuple(offsets)}
    )


def rows_of(bars: set[str], *, quick: bool) -> Iterator[Row]:
    if "F7" in bars:
        yield from relation_rows(quick=quick)
    if "F8" in bars:
        yield from bound_rows()
    if not bars & {"F8", "F9", "F10"}:
        return
    graphs = [captured(name) for name in (NETS[:2] if quick else NETS)]
    if "F8" in bars:
        yield from placed_rows(graphs)
    if "F9" in bars:
        yield from lag_rows(graphs)
        yield from fewest_rows()
    if "F10" in bars:
        yield from mutant_rows(graphs)


def run(arguments: list[str], console: Console) -> int:
    """Print the table; return 1 with ``--strict`` when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks placement_safety", description=__doc__)
    parser.add_argument("--only", default="F7,F8,F9,F10", help="bars to run, with commas")
    parser.add_argument("--quick", action="store_true", help="two nets, no graph of 10^6 ops")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.memory:
        print_memory(options.memory)
        return 0
    rows: list[Row] = []
    for row in rows_of(set(options.only.split(",")), quick=options.quick):
        rows.append(row)
        verdict = "held" if row.held else "MISSED"
        console.print(
            f"{row.bar:<4} {verdict:<7} {row.question}: {row.figure} (wanted {row.wanted})", soft_wrap=True
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(options.strict and not all(row.held for row in rows))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], Console()))
