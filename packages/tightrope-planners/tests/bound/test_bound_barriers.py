"""Barriers never prove too much, prove what nothing else does, and wrong ones are refused."""

import itertools
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import random_graph
from tests.plan.bound_oracle import least_time, plain_graph, training_graph
from tests.plan.test_bound_time import drawn
from tightrope.core import Allocation, Barrier, Flag, Graph, JudgeError, Op, StageCase, Stages, Storage
from tightrope.plan import lower_bound, solve, whole_bytes
from tightrope.plan.bound.problem import Problem, problem
from tightrope.plan.model import build
from tightrope_planners.bound.barriers import Barriers
from tightrope_planners.bound.close import close_bound
from tightrope_planners.bound.program import Effort
from tightrope_planners.bound.rows import realised
from tightrope_planners.bound.staged import StagedSearch
from tightrope_planners.bound.stages import Lineage, staged_problem
from tightrope_planners.judge.stages import staged_time

EFFORT = 300_000


def found_in(
    graph: Graph, budget: int, rows: list[int], expensive: frozenset[int]
) -> tuple[Problem, Lineage, list[Barrier]]:
    """Every barrier between rows, with some ops set aside."""
    of = problem(graph)
    lineage = Lineage.of(graph, of)
    barriers = Barriers(graph, of, lineage, budget)
    for op in sorted(set(lineage.inputs) - expensive):
        for first, last in itertools.pairwise(rows):
            if op <= first:
                barriers.look(op, first, last, expensive)
    return of, lineage, barriers.between(rows)


def searched(
    graph: Graph, of: Problem, lineage: Lineage, budget: int, rows: list[int], barriers: list[Barrier]
) -> tuple[int, Stages]:
    staged = staged_problem(graph, of, rows, budget, lineage=lineage, barriers=barriers)
    search = StagedSearch(staged, of, float("inf"), Effort(EFFORT))
    search.run()
    return search.result()


def repriced(seed: int) -> tuple[Graph, int, list[int], frozenset[int]]:
    """A graph of at most 10 ops of which some are expensive, a budget, a few rows, the expensive ops."""
    draw = Random(seed)
    if seed % 2:
        graph = training_graph(seed, depth=draw.randint(3, 4))
    else:
        graph = plain_graph(seed, num_ops=draw.randint(6, 10))
    expensive = frozenset(op.id for op in graph.ops if draw.random() < 0.4)
    ops = tuple(
        msgspec.structs.replace(op, ns=1000 if op.id in expensive else draw.randint(1, 3)) for op in graph.ops
    )
    graph = msgspec.structs.replace(graph, ops=ops)
    low = lower_bound(graph)[0]
    high = whole_bytes(graph)
    budget = low + int((high - low) * draw.random())
    rows = sorted(draw.sample(range(len(ops)), min(len(ops), draw.randint(2, 4))))
    return graph, budget, rows, expensive


def compared(seeds: range) -> tuple[int, int]:
    """Compare with the optimum; return in how many graphs barriers counted, and in how many they gained."""
    counted = gained = 0
    for seed in seeds:
        graph, budget, rows, expensive = repriced(seed)
        of, lineage, barriers = found_in(graph, budget, rows, expensive)
        if not barriers:
            continue
        extra, stages = searched(graph, of, lineage, budget, rows, barriers)
        without, _ = searched(graph, of, lineage, budget, rows, [])
        assert staged_time(graph, stages) == extra
        counted += bool(stages.barriers)
        gained += extra > without
        truth = least_time(graph, budget)
        assert truth is None or graph.base_ns + extra <= truth, seed
    return counted, gained


@pytest.mark.slow
def test_barriers_never_exceed_the_optimum() -> None:
    counted, gained = compared(range(1300))
    assert counted >= 4
    assert gained >= 3


@pytest.mark.slow
def test_barriers_never_exceed_the_optimum_of_50000_graphs() -> None:
    assert compared(range(1300, 51_300))[1] > 100


def test_a_barrier_says_what_nothing_else_does() -> None:
    graph, budget, rows, expensive = repriced(834)
    of, lineage, barriers = found_in(graph, budget, rows, expensive)
    extra, stages = searched(graph, of, lineage, budget, rows, barriers)
    assert searched(graph, of, lineage, budget, rows, [])[0] == 1
    assert extra == staged_time(graph, stages) == 1000
    assert least_time(graph, budget) == graph.base_ns + 1001


@pytest.fixture(scope="module")
def proved() -> list[tuple[Graph, int, Stages]]:
    """Bounds of larger graphs that rest on barriers, as they are found when a bound is pursued."""
    found = []
    for seed, depth, percent in ((7, 16, 40), (21, 16, 40), (22, 16, 50), (23, 8, 50)):
        graph = training_graph(seed, depth=depth)
        whole = whole_bytes(graph)
        budget = -(-whole * percent // 100)
        upper = solve(graph, budget=budget, placed=False, bound=False).forecast.ns - graph.base_ns
        bound = close_bound(graph, budget=budget, upper_ns=upper)
        assert bound is not None
        assert bound.stages is not None
        assert bound.stages.barriers
        assert staged_time(graph, bound.stages) == bound.extra_ns <= upper
        found.append((graph, bound.extra_ns, bound.stages))
    return found


def later_read() -> Graph:
    """The replay of op 0 reads what op 3 makes, which cannot be made again."""
    once, wide = Flag.NEVER_RECOMPUTE, (Allocation(64, 2, 0), Allocation(256, -1, 1, 2))
    ops = (
        Op(0, "a", "a", (), (0,), ns=1, flags=Flag.RANDOM, variant=5),
        Op(1, "x", "x", (), (1,), ns=1, allocations=(Allocation(128, -1, 0, 2), Allocation(128, 1, 1))),
        Op(2, "y", "y", (), (2,), ns=9, flags=once, allocations=wide),
        Op(3, "m", "m", (1,), (3,), ns=9, flags=once),
        Op(4, "e", "e", (0, 2, 3), (4,), ns=1),
    )  # fmt: skip
    sizes = (64, 128, 64, 64, 64)
    storages = tuple(Storage(n, size, alignment=1, resident_at_end=n == 4) for n, size in enumerate(sizes))
    return Graph(ops, storages, (Op(5, "a again", "a", (3,), (0,), ns=1),), alignment=1)


def test_what_a_replay_reads_of_later_ops_is_in_no_chain() -> None:
    graph, budget, rows = later_read(), 320, [2, 3]
    assert least_time(graph, budget) == graph.base_ns + 2
    of, lineage, barriers = found_in(graph, budget, rows, frozenset({2, 3}))
    assert searched(graph, of, lineage, budget, rows, barriers)[0] <= 2
    wrong = Barrier(1, 0, (), (((64, (0, 3)), (64, (2,))),))
    case = StageCase(used=((1, 0, 9),), rows=((0, 0, 9),), barriers=((0, 9),))
    with pytest.raises(JudgeError, match="not one before op 3"):
        staged_time(graph, Stages(budget, 1, tuple(rows), (case,), barriers=(wrong,)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [496])
def test_storages_that_nothing_makes_again_are_counted_once_in_a_choice(seed: int) -> None:
    graph = random_graph(seed, num_ops=Random(seed).randint(6, 40))
    low = lower_bound(graph)[0]
    high = whole_bytes(graph)
    for share in range(1, 10):
        bound = close_bound(graph, budget=low + (high - low) * share // 10, upper_ns=2**40, effort=400_000)
        if bound is not None and bound.stages is not None:
            assert staged_time(graph, bound.stages) == bound.extra_ns


def test_re_runs_are_realised_as_late_as_they_can_be() -> None:
    ops = (
        Op(0, "a", "a", (), (0,), ns=5),
        Op(1, "b", "b", (0,), (1,), ns=7),
        Op(2, "wide", "wide", (), (2,), ns=1),
        Op(3, "rest", "rest", (), (3,), ns=1),
        Op(4, "use", "use", (1,), (4,), ns=1),
    )
    graph = Graph(ops, tuple(Storage(n, size) for n, size in enumerate((64, 64, 128, 64, 64))))
    of = problem(graph)
    staged = staged_problem(graph, of, [2], 128, lineage=Lineage.of(graph, of))
    search = StagedSearch(staged, of, float("inf"), Effort(EFFORT))
    search.run()
    excess = realised(build(graph), search.program, search.cheapest().answer.values, 100)
    assert excess.tolist() == [-36, 28, 28, -36, 28]  # both re-runs stand right before op 4


Corruption = Callable[[Barrier, Graph], Barrier]


def changed(barrier: Barrier, **fields: object) -> Barrier:
    return msgspec.structs.replace(barrier, **fields)


CORRUPTIONS: dict[str, Corruption] = {
    "no others": lambda b, g: changed(b, others=()),
    "others twice": lambda b, g: changed(b, others=(*b.others, *b.others, 0, 0)),
    "no chains": lambda b, g: changed(b, chains=((),) * len(b.chains)),
    "an op too few": lambda b, g: changed(b, chains=b.chains[1:]),
    "an op too many": lambda b, g: changed(b, chains=(*b.chains, b.chains[0])),
    "the last row": lambda b, g: changed(b, row=10**6),
    "no such op": lambda b, g: changed(b, op=10**6),
    "bytes twice": lambda b, g: changed(
        b, chains=tuple(tuple((2 * n + 64, s) for n, s in c) for c in b.chains)
    ),
    "bytes below 0": lambda b, g: changed(b, chains=tuple((*c, (-1, c[0][1])) for c in b.chains if c)),
    "the same chain again": lambda b, g: changed(b, chains=tuple((*c, *c) for c in b.chains)),
    "nothing in a chain": lambda b, g: changed(b, chains=tuple((*c, (10**6, ())) for c in b.chains)),
    "no such storage": lambda b, g: changed(b, chains=tuple((*c, (64, (10**6,))) for c in b.chains)),
    "chains from below": lambda b, g: changed(
        b, chains=tuple(tuple((n, (*s[::-1], s[0])) for n, s in c) for c in b.chains)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_wrong_barrier_is_refused(name: str, proved: list[tuple[Graph, int, Stages]]) -> None:
    refused = 0
    for graph, extra, stages in proved:
        wrong = tuple(CORRUPTIONS[name](barrier, graph) for barrier in stages.barriers)
        if wrong == stages.barriers:
            continue
        try:
            assert staged_time(graph, msgspec.structs.replace(stages, barriers=wrong)) <= extra
        except JudgeError:
            refused += 1
    assert refused >= 1


def test_a_case_that_names_no_barrier_is_refused(proved: list[tuple[Graph, int, Stages]]) -> None:
    graph, _, stages = proved[0]
    with pytest.raises(JudgeError, match="barrier"):
        staged_time(graph, msgspec.structs.replace(stages, barriers=()))


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_no_barrier_makes_the_judge_derive_too_much(seed: int, data: st.DataObject) -> None:
    graph, budget = drawn(seed)
    op = st.integers(0, len(graph.ops) - 1)
    rows = sorted(data.draw(st.sets(op, min_size=2, max_size=4)))
    storages = st.lists(st.integers(0, len(graph.storages) - 1), min_size=1, max_size=3).map(tuple)
    chain = st.tuples(st.integers(0, 3).map(lambda n: 64 * n), storages)
    row = data.draw(st.integers(0, len(rows) - 2))
    chains = tuple(
        data.draw(st.lists(chain, max_size=4).map(tuple)) for _ in range(rows[row + 1] - rows[row])
    )
    others = data.draw(st.lists(op, max_size=2, unique=True).map(tuple))
    barrier = Barrier(data.draw(op), row, others, chains)
    weight = st.integers(0, 9)
    storage, place = st.integers(0, len(graph.storages) - 1), st.integers(0, len(rows) - 1)
    case = StageCase(
        used=data.draw(st.lists(st.tuples(storage, place, weight), max_size=4).map(tuple)),
        kept=data.draw(st.lists(st.tuples(storage, place, weight), max_size=4).map(tuple)),
        rows=data.draw(st.lists(st.tuples(place, st.integers(0, 40), weight), max_size=4).map(tuple)),
        barriers=((0, data.draw(weight)),),
    )
    try:
        extra = staged_time(graph, Stages(budget, 1, tuple(rows), (case,), barriers=(barrier,)))
    except JudgeError:
        return
    truth = least_time(graph, budget)
    assert truth is None or graph.base_ns + extra <= truth
