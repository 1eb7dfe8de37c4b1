"""DTR against a naive replay of its rule, and its guarantee."""

from typing import get_args

import pytest

from tests.oracles import Pair, evaluate, random_graph
from tests.plan.brute import Brute
from tests.plan.sequences import measure, partial_ktree
from tightrope.core import Graph, Limits
from tightrope.lower import walked
from tightrope.plan.model import build, pairs_of
from tightrope.plan.options import Options
from tightrope_planners.peers.dtr import DtrKnobs, DtrScore, dtr, dtr_runs

SCORES = get_args(DtrScore)


class Naive:
    """The rule as the paper tells it, for graphs in which every op may run again."""

    def __init__(self, graph: Graph, limit: int, score: str) -> None:
        self.graph, self.limit, self.score = graph, limit, score
        self.maker = {s: op for op in graph.ops for s in op.creates}
        self.here: set[int] = set()
        self.locked: list[int] = []
        self.used: dict[int, int] = {}
        self.clock = 0
        self.now = 0
        self.classes: dict[int, tuple[int, ...]] = {}
        self.sums: dict[tuple[int, ...], int] = {}
        self.fresh = 0
        self.runs: list[Pair] = []

    def run(self) -> list[Pair]:
        for op in self.graph.ops:
            self.now = op.id
            self.locked += op.reads
            for storage in op.reads:
                self.bring(storage)
            self.execute(op.id)
            for storage in op.reads:
                self.locked.remove(storage)
            self.release(set(self.here))
        return self.runs

    def bring(self, storage: int) -> None:
        if storage in self.here or storage not in self.maker:
            return
        op = self.maker[storage]
        self.locked += op.reads
        for source in op.reads:
            self.bring(source)
        self.runs.append((self.now, op.id))
        self.execute(op.id)
        for source in op.reads:
            self.locked.remove(source)
        self.release(set(op.reads))

    def execute(self, number: int) -> None:
        op = self.graph.ops[number]
        need = sum(self.graph.storages[s].size for s in op.creates)
        while sum(self.graph.storages[s].size for s in self.here) + need > self.limit:
            free = [s for s in self.here if s not in self.locked]
            if not free:
                raise MemoryError
            self.evict(min(free, key=lambda s: (self.rank(s), s)))
        self.clock += max(op.ns, 1)
        for storage in (*op.creates, *op.reads):
            self.used[storage] = self.clock
        for storage in op.creates:
            if storage not in self.here:
                self.here.add(storage)
                if storage in self.classes:
                    self.sums[self.classes.pop(storage)] -= op.ns

    def release(self, storages: set[int]) -> None:
        for storage in sorted(storages & self.here):
            last = max((op.id for op in self.graph.ops if storage in op.reads), default=-1)
            if last <= self.now and storage not in self.locked:
                self.evict(storage)

    def evict(self, storage: int) -> None:
        self.here.discard(storage)
        self.fresh += 1
        merged = (self.fresh,)
        self.sums[merged] = self.maker[storage].ns
        joined = {self.classes[s] for s in self.touching(storage)}
        for old in joined:
            self.sums[merged] += self.sums.pop(old)
        self.classes = {s: merged if c in joined else c for s, c in self.classes.items()} | {storage: merged}

    def touching(self, storage: int) -> set[int]:
        around = {*self.maker[storage].reads}
        around |= {s for s, op in self.maker.items() if storage in op.reads}
        return around & set(self.classes)

    def rank(self, storage: int) -> float:
        size, age = self.graph.storages[storage].size, self.clock - self.used[storage] + 1
        own = self.maker[storage].ns
        if self.score in ("lru", "size"):
            return 1 / age if self.score == "lru" else 1 / size
        if self.score == "eq":
            own += sum(self.sums[c] for c in {self.classes[s] for s in self.touching(storage)})
        if self.score == "full":
            own += sum(self.maker[s].ns for s in self.closure(storage, up=True))
            own += sum(self.maker[s].ns for s in self.closure(storage, up=False))
        return own / (size * age)

    def closure(self, storage: int, *, up: bool) -> set[int]:
        found: set[int] = set()
        edge = {storage}
        while edge:
            ups = {s for e in edge for s in self.maker[e].reads}
            downs = {s for s, op in self.maker.items() if edge & set(op.reads)}
            edge = ((ups if up else downs) & set(self.classes)) - found
            found |= edge
        return found


@pytest.mark.parametrize("score", SCORES)
def test_it_evicts_what_the_paper_says(score: DtrScore) -> None:
    compared = 0
    for seed in range(40):
        graph = random_graph(seed, num_ops=10, rich=False)
        for percent in (90, 75, 60):
            limit = evaluate(graph, ())[0] * percent // 100
            found = dtr_runs(build(graph), limit, knobs=DtrKnobs(score=score))
            try:
                naive = Naive(graph, limit, score).run()
            except MemoryError:
                assert not found.finished
                continue
            assert list(found.pairs) == naive
            compared += bool(naive)
    assert compared > 20


def check(seed: int, score: DtrScore) -> int:
    graph = random_graph(seed, num_ops=7, rich=seed % 4 != 0)
    plain, done = evaluate(graph, ())[0], 0
    for percent in (90, 75, 60):
        limit = plain * percent // 100
        found = dtr_runs(build(graph), limit, knobs=DtrKnobs(score=score))
        peak, ns = measure(graph, found.pairs)
        if found.finished:
            assert peak <= limit
            best = Brute(graph, any_order=True).least_ns(limit)
            assert best is not None
            assert ns >= best
            done += bool(found.pairs)
    return done


@pytest.mark.parametrize("score", SCORES)
def test_what_finishes_fits_and_never_beats_the_optimum(score: DtrScore) -> None:
    assert sum(check(seed, score) for seed in range(25)) > 2


@pytest.mark.parametrize("score", SCORES)
def test_it_ends_where_a_second_run_reads_what_only_the_first_makes(score: DtrScore) -> None:
    graph = random_graph(487, num_ops=7)
    model = build(graph)
    first = model.again_reads[0]
    assert set(first) <= set(graph.ops[0].creates) - set(model.again_creates[0])
    assert not check(487, score)


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_what_finishes_fits_and_never_beats_the_optimum_on_500_graphs(score: DtrScore) -> None:
    assert sum(check(seed, score) for seed in range(500)) > 50


@pytest.mark.parametrize("seed", range(10))
def test_the_judge_accepts_its_schedule(seed: int) -> None:
    graph = random_graph(seed, num_ops=9)
    total = graph.persistent + evaluate(graph, ())[0]
    schedule = dtr(graph, None, Limits(bytes=(total * 8 // 10,)), Options())
    walk = walked(graph, schedule)
    assert walk.ns >= graph.base_ns
    assert len(pairs_of(graph, schedule)) <= len(schedule.computes())


def test_it_gives_up_where_it_only_recomputes() -> None:
    graph = partial_ktree(60, 4, seed=1, near=True, drop=0.2)
    found = dtr_runs(build(graph), 8, knobs=DtrKnobs(score="lru", patience=1.0))
    assert not found.finished
    assert len(found.pairs) < 100 * len(graph.ops)
