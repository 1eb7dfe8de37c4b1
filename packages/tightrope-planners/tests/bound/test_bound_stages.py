"""Stages never prove too much, prove more than the cover alone, and the judge derives them again."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tightrope
from tests.plan.bound_oracle import least_time, plain_graph, priced
from tests.plan.test_bound_time import drawn
from tightrope.core import (
    Choice,
    Fixing,
    Graph,
    InputPath,
    JudgeError,
    Op,
    StageCase,
    Stages,
    Storage,
    format_bytes,
)
from tightrope.judge.cover import extra_time
from tightrope.lower import problems
from tightrope.plan import solve, whole_bytes
from tightrope.plan.bound.cover import TimeBound, time_bound
from tightrope.record import forecast
from tightrope_planners.bound.close import close_bound
from tightrope_planners.judge.stages import staged_time


def derived(graph: Graph, bound: TimeBound) -> int:
    """Let the judge derive a bound from its numbers."""
    if bound.stages is not None:
        assert bound.cover is None
        return staged_time(graph, bound.stages)
    return extra_time(graph, bound.cover) if bound.cover is not None else 0


def check(seed: int) -> bool:
    """Compare with the optimum; tell whether the bound said anything."""
    graph, budget = drawn(seed)
    bound = time_bound(graph, budget=budget)
    truth = least_time(graph, budget)
    assert truth is None or graph.base_ns + bound.extra_ns <= truth, (seed, truth, bound)
    for nodes, stages in ((0, True), (3, True), (None, False)):
        weaker = time_bound(graph, budget=budget, nodes=nodes, stages=stages)
        assert truth is None or graph.base_ns + weaker.extra_ns <= truth
        assert derived(graph, weaker) == weaker.extra_ns
    if truth is not None:
        closest = close_bound(graph, budget=budget, upper_ns=2**50) or bound
        assert graph.base_ns + closest.extra_ns <= truth
        assert derived(graph, closest) == closest.extra_ns
    assert derived(graph, bound) == bound.extra_ns
    return bound.extra_ns > 0


@pytest.mark.few(4)
@pytest.mark.parametrize("block", range(10))
def test_the_bound_with_stages_never_exceeds_the_optimum(block: int) -> None:
    told = [check(seed) for seed in range(20 * block, 20 * block + 20)]
    assert any(told)


@pytest.mark.slow
def test_the_bound_with_stages_never_exceeds_the_optimum_of_2000_graphs() -> None:
    told = [check(seed) for seed in range(200, 2200)]
    assert sum(told) > 300


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=50, deadline=None)
def test_no_staged_weights_make_the_judge_derive_too_much(seed: int, data: st.DataObject) -> None:
    graph, budget = drawn(seed)
    op, weight = st.integers(0, len(graph.ops) - 1), st.integers(0, 9)
    storage, row = st.integers(0, len(graph.storages) - 1), st.integers(0, 2)
    rows = sorted(data.draw(st.sets(op, min_size=1, max_size=3)))
    names = {
        "rows": st.tuples(row, st.integers(0, 40), weight),
        "kept": st.tuples(storage, row, weight),
        "used": st.tuples(storage, row, weight),
        "fed": st.tuples(op, storage, row, weight),
        "held": st.tuples(storage, row, weight),
        "during": st.tuples(op, row, weight),
        "paths": st.tuples(st.integers(0, 1), weight),
        "choices": st.tuples(st.just(0), weight),
    }
    weights = {name: data.draw(st.lists(entry, max_size=4).map(tuple)) for name, entry in names.items()}
    budget_only = {name: weights[name] if data.draw(st.booleans()) else () for name in names}
    tree: list[Choice | Fixing | StageCase] = [StageCase(**budget_only)]
    if data.draw(st.booleans()):
        items = data.draw(st.lists(storage, min_size=1, max_size=3, unique=True).map(tuple))
        what = data.draw(st.sampled_from(["live", "run"]))
        tree = [Choice(what, items, data.draw(row), data.draw(st.integers(0, 1))), *tree]
        tree.append(StageCase(**weights))
    else:
        tree = [StageCase(**(budget_only | {"choices": ()}))]
    if data.draw(st.booleans()):
        tree = [Fixing(StageCase(**(weights | {"choices": ()}))), *tree]
    path = st.builds(InputPath, row, row, st.lists(storage, min_size=1, max_size=3).map(tuple))
    stages = Stages(
        budget,
        data.draw(st.integers(1, 4)),
        tuple(rows),
        tuple(tree),
        data.draw(st.lists(path, max_size=2).map(tuple)),
        data.draw(st.integers(0, 2 * graph.base_ns)),
    )
    try:
        extra = staged_time(graph, stages)
    except JudgeError:
        return
    truth = least_time(graph, budget)
    assert truth is None or graph.base_ns + extra <= truth


def shaken(stages: Stages, draw: Random) -> Stages:
    """Change weights, names and budgets of sound numbers; what is left must still be sound, or refused."""

    def entry(numbers: tuple[int, ...]) -> tuple[int, ...]:
        *name, weight = numbers
        if draw.random() < 0.05:
            name[draw.randrange(len(name))] += draw.choice((-1, 1))
        return (*name, draw.choice((0, weight // 2, weight, weight, 2 * weight)))

    def shaken_case(case: StageCase) -> StageCase:
        return StageCase(*(tuple(map(entry, getattr(case, field))) for field in StageCase.__struct_fields__))

    tree: list[Choice | Fixing | StageCase] = []
    for node in stages.tree:
        match node:
            case Choice():
                tree.append(node)
            case Fixing(case):
                tree.append(Fixing(shaken_case(case)))
            case StageCase():
                tree.append(shaken_case(node))
    scale, target = max(1, stages.scale // draw.choice((1, 1, 2))), stages.target * draw.choice((1, 1, 2))
    paths = tuple(
        InputPath(path.row, path.last, path.storages[draw.choice((0, 0, 0, 1)) :]) for path in stages.paths
    )
    return Stages(stages.budget, scale, stages.ops, tuple(tree), paths, target)


@pytest.mark.slow
def test_shaken_numbers_never_prove_too_much() -> None:
    refused = told = 0
    for seed in range(300):
        graph, budget = drawn(seed)
        truth = least_time(graph, budget)
        bounds = (time_bound(graph, budget=budget), close_bound(graph, budget=budget, upper_ns=2**50))
        stages = bound.stages if (bound := bounds[seed % 2]) is not None else None
        for number in range(12 if stages is not None and truth is not None else 0):
            assert stages is not None
            assert truth is not None
            try:
                extra = staged_time(graph, shaken(stages, Random(1000 * seed + number)))
            except JudgeError:
                refused += 1
                continue
            told += extra > 0
            assert graph.base_ns + extra <= truth
    assert min(refused, told) > 20


def test_a_re_run_pays_for_what_it_reads() -> None:
    ops = (
        Op(0, "a", "a", (), (0,), ns=5),
        Op(1, "b", "b", (0,), (1,), ns=7),
        Op(2, "wide", "wide", (), (2,), ns=1),
        Op(3, "use", "use", (1,), (3,), ns=1),
    )
    graph = Graph(ops, (Storage(0, 64), Storage(1, 64), Storage(2, 128), Storage(3, 64)))
    bound = time_bound(graph, budget=128)
    assert least_time(graph, 128) == graph.base_ns + 12
    assert bound.extra_ns == derived(graph, bound) == 12
    assert bound.stages is not None


@pytest.mark.parametrize("seed", [10, 34, 60, 134, 229, 346, 361])
def test_bytes_during_re_runs_close_the_gap_to_the_optimum(seed: int) -> None:
    graph, budget = drawn(seed)
    truth = least_time(graph, budget)
    closest = close_bound(graph, budget=budget, upper_ns=2**50)
    assert truth is not None
    assert closest is not None
    assert time_bound(graph, budget=budget).extra_ns < closest.extra_ns == truth - graph.base_ns


def test_the_bound_is_not_closed_where_nothing_is_short_or_nothing_fits() -> None:
    graph = Graph((Op(0, "a", "a", (), (0,), ns=5),), (Storage(0, 64),))
    assert close_bound(graph, budget=64, upper_ns=5) is None
    assert close_bound(graph, budget=63, upper_ns=5) is None


@pytest.mark.parametrize("seed", [10, 229, 346])
def test_a_plan_asked_for_with_its_bound_is_proved_by_looking_closer(seed: int) -> None:
    graph, budget = drawn(seed)
    plan = solve(graph, budget=budget, placed=False, bound=True)
    assert plan.certificate.proved
    assert plan.forecast.ns - graph.base_ns > time_bound(graph, budget=budget).extra_ns
    assert not problems(graph, plan)


def test_a_known_plan_ends_the_search_early_and_is_never_passed() -> None:
    graph = plain_graph(3, num_ops=120)
    peak = whole_bytes(graph) - graph.persistent
    full = time_bound(graph, budget=peak * 8 // 10)
    assert full.stages is not None
    half = time_bound(graph, budget=peak * 8 // 10, upper_ns=full.extra_ns // 2)
    assert half.stages is not None
    assert half.extra_ns >= full.extra_ns // 2
    assert len(half.stages.tree) < len(full.stages.tree)
    assert time_bound(graph, budget=peak * 8 // 10, upper_ns=0).extra_ns == 0


def test_the_price_of_fewer_bytes_is_exact_where_stages_prove_it() -> None:
    layers = [
        layer
        for wide in (4, 8, 8, 8)
        for layer in (nn.Conv2d(wide, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    graph = priced(tightrope.capture(nn.Sequential(*layers), torch.ones(4, 4, 32, 32)))
    plan = solve(graph, budget=2 * whole_bytes(graph))
    less = solve(graph, budget=plan.forecast.total * 9 // 10, bound=True)
    assert less.certificate.proved
    explain = pytest.importorskip("tightrope_trace").explain
    assert f"more, exactly: the plan for {format_bytes(less.budget)}" in str(
        explain(forecast(graph, plan, others=(less,)), save=plan.forecast.total - less.budget).saving
    )
