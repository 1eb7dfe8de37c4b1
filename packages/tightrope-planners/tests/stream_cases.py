"""Small graphs on streams, and slow and obvious answers about them. Shares no code with the package."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tightrope.core import NativeError
from tightrope_planners.place.streams import StreamGraph, StreamStorage
from tightrope_planners.solvers import safety as native

Pair = tuple[int, int]

FILE: dict[str, Any] = {
    "format": "tightrope-streams",
    "streams": [0, 1, 1, 0],
    "waits": [[0, 1]],
    "storages": [
        {"bytes": 128, "writer": 0, "reads": [1]},
        {"bytes": 64, "writer": 1},
        {"bytes": 64, "writer": 3, "alignment": 64},
    ],
}
"""What a file of four ops on two streams says."""


@dataclass(frozen=True)
class Case:
    """Plain values of a graph; ``waits`` make every use safe."""

    streams: list[int]
    storages: list[StreamStorage]
    waits: list[Pair]


def draw_case(
    seed: int,
    *,
    most_ops: int = 9,
    most_streams: int = 3,
    most_storages: int = 8,
    most_uses: int = 3,
) -> Case:
    """Draw ops on streams, storages that they use, and one wait per dependence across streams."""
    draw = random.Random(seed)
    num_streams = draw.randint(1, most_streams)
    streams = [draw.randrange(num_streams) for _ in range(draw.randint(1, most_ops))]
    storages = []
    for _ in range(draw.randint(1, most_storages)):
        writer = draw.randrange(-1, len(streams))
        after = range(writer + 1, len(streams))
        uses = draw.sample(after, min(len(after), draw.randint(0, most_uses)))
        split = draw.randint(0, len(uses)) if draw.random() < 0.3 else len(uses)
        storages.append(
            StreamStorage(
                draw.randint(0, 9), writer, tuple(uses[:split]), tuple(uses[split:]), draw.random() < 0.1
            )
        )
    wanted = {pair for storage in storages for pair in dependences(storage)}
    return Case(streams, storages, sorted((u, v) for u, v in wanted if streams[u] != streams[v]))


def larger(seed: int, *, num_ops: int = 400, num_streams: int = 3) -> Case:
    """Draw a graph with long reuse chains, so that the flow needs several phases."""
    draw = np.random.default_rng(seed)
    streams = np.repeat(draw.integers(0, num_streams, num_ops // 4 + 1), 4)[:num_ops].tolist()
    storages = []
    for writer in range(num_ops):
        reads = sorted(set((writer + draw.geometric(0.1, 2)).tolist()))
        storages.append(
            StreamStorage(64 * int(draw.integers(1, 50)), writer, tuple(r for r in reads if r < num_ops))
        )
    waits = {(s.writer, r) for s in storages for r in s.reads if streams[s.writer] != streams[r]}
    return Case(streams, storages, sorted(waits))


def graph_of(case: Case) -> StreamGraph:
    """Make the graph of a case."""
    return StreamGraph.of(case.streams, case.storages, case.waits)


def _refuse(*_: object, **__: object) -> None:
    raise NativeError("no C++ compiler")


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every native function say that there is no compiler."""
    for name in ("clocks", "note_uses", "deaths", "hazard", "antichain", "place_births"):
        monkeypatch.setattr(native, name, _refuse)


def dependences(storage: StreamStorage) -> list[Pair]:
    """List the pairs of ops that must run one after the other because one of them writes."""
    writes = {storage.writer, *storage.mutates} - {-1}
    uses = sorted({*writes, *storage.reads})
    return [(u, v) for u, v in combinations(uses, 2) if u in writes or v in writes]


def closure(streams: Sequence[int], waits: Sequence[Pair]) -> list[list[bool]]:
    """Tabulate "u has ended when v starts", by Floyd and Warshall."""
    num_ops = len(streams)
    table = [[u < v and streams[u] == streams[v] for v in range(num_ops)] for u in range(num_ops)]
    for u, v in waits:
        table[u][v] = True
    for k in range(num_ops):
        for u in range(num_ops):
            for v in range(num_ops):
                table[u][v] = table[u][v] or (table[u][k] and table[k][v])
    return table


def may_follow(case: Case, ended: list[list[bool]], first: int, second: int) -> bool:
    """Tell whether ``second`` may take the addresses of ``first``."""
    storage, writer = case.storages[first], case.storages[second].writer
    uses = {storage.writer, *storage.reads, *storage.mutates}
    return not storage.resident and all(ended[use][writer] for use in uses)


def conflicts(case: Case, waits: Sequence[Pair]) -> set[Pair]:
    """List the pairs of storages that may be alive at once under ``waits``."""
    ended = closure(case.streams, waits)
    ours = [number for number, storage in enumerate(case.storages) if storage.writer >= 0]
    return {
        (a, b)
        for a, b in combinations(ours, 2)
        if not may_follow(case, ended, a, b) and not may_follow(case, ended, b, a)
    }


def heaviest_clique(case: Case, waits: Sequence[Pair]) -> int:
    """Try every set of storages that may all be alive at once."""
    together = conflicts(case, waits)
    ours = [number for number, storage in enumerate(case.storages) if storage.writer >= 0]
    best = 0

    def extend(chosen: list[int], rest: list[int], weight: int) -> None:
        nonlocal best
        best = max(best, weight)
        for place, number in enumerate(rest):
            if all((other, number) in together for other in chosen):
                extend([*chosen, number], rest[place + 1 :], weight + case.storages[number].bytes)

    extend([], ours, 0)
    return best


def fewest_waits(case: Case, budget: int, *, most: int) -> int | None:
    """Try every set of up to ``most`` more waits, neighbours in issue order or not."""
    every = [
        (u, v) for u, v in combinations(range(len(case.streams)), 2) if case.streams[u] != case.streams[v]
    ]
    for count in range(most + 1):
        for added in combinations(every, count):
            if heaviest_clique(case, [*case.waits, *added]) <= budget:
                return count
    return None


def overlaps(case: Case, offsets: Sequence[int], a: int, b: int) -> bool:
    """Tell whether two storages share an address."""
    low, high = sorted((a, b), key=lambda number: offsets[number])
    sizes = case.storages[low].bytes, case.storages[high].bytes
    return min(sizes) > 0 and offsets[low] + sizes[0] > offsets[high]
