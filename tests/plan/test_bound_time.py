"""The time bound never exceeds the true optimum, is exact where it should be, and the judge derives it."""

import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import random_graph
from tests.plan.bound_oracle import least_time, plain_graph, training_graph
from tightrope.core import (
    Case,
    Cover,
    Graph,
    JudgeError,
    Op,
    Split,
    Storage,
)
from tightrope.judge.cover import extra_time
from tightrope.plan import lower_bound, solve, whole_bytes
from tightrope.plan.bound.cover import TimeBound, time_bound
from tightrope.plan.bound.problem import problem


def drawn(seed: int, *, free_order: bool = False) -> tuple[Graph, int]:
    """A graph of at most 10 ops, and a budget between what it must and what it may hold."""
    draw = Random(seed)
    if seed % 3 == 1:
        graph = training_graph(seed, depth=draw.randint(2, 3 if free_order else 4))
    elif seed % 3:
        graph = plain_graph(seed, num_ops=draw.randint(3, 7 if free_order else 10))
    else:
        graph = random_graph(seed, num_ops=draw.randint(3, 5 if free_order else 6))
    low = lower_bound(graph, free_order=free_order)[0]
    high = whole_bytes(graph)
    return graph, low + int((high - low) * draw.random())


def derived(graph: Graph, bound: TimeBound, *, free_order: bool = False) -> int:
    """Let the judge derive a bound from its numbers."""
    assert bound.stages is None
    return extra_time(graph, bound.cover, free_order=free_order) if bound.cover is not None else 0


def check(seed: int, *, free_order: bool) -> bool:
    """Compare with the optimum; tell whether the bound said anything."""
    graph, budget = drawn(seed, free_order=free_order)
    truth = least_time(graph, budget, free_order=free_order)
    told = 0
    for nodes in (0, 3, None):
        bound = time_bound(graph, budget=budget, free_order=free_order, nodes=nodes, stages=False)
        assert truth is None or graph.base_ns + bound.extra_ns <= truth, (seed, truth, bound)
        assert derived(graph, bound, free_order=free_order) == bound.extra_ns
        told = bound.extra_ns
    return told > 0


def test_one_row_of_a_huge_graph_never_exceeds_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[time_bound.__module__], "_PROGRAM_OPS", 0)
    told = 0
    for seed in range(120):
        graph, budget = drawn(seed)
        bound = time_bound(graph, budget=budget, nodes=0)
        truth = least_time(graph, budget)
        assert truth is None or graph.base_ns + bound.extra_ns <= truth, (seed, truth, bound)
        assert derived(graph, bound) == bound.extra_ns
        told += bound.extra_ns > 0
    assert told > 20


@pytest.mark.few(4)
@pytest.mark.parametrize("block", range(10))
def test_the_bound_never_exceeds_the_optimum(block: int) -> None:
    told = [check(seed, free_order=False) for seed in range(20 * block, 20 * block + 20)]
    assert any(told)


def test_the_bound_for_any_order_never_exceeds_the_optimum() -> None:
    told = [check(seed, free_order=True) for seed in range(60)]
    assert any(told)


@pytest.mark.slow
def test_the_bound_never_exceeds_the_optimum_of_2000_graphs() -> None:
    told = [check(seed, free_order=False) for seed in range(200, 2200)]
    assert sum(told) > 300


@pytest.mark.slow
def test_the_bound_for_any_order_never_exceeds_the_optimum_of_500_graphs() -> None:
    told = [check(seed, free_order=True) for seed in range(60, 560)]
    assert sum(told) > 50


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=40, deadline=None)
def test_no_multipliers_make_the_judge_derive_too_much(seed: int, data: st.DataObject) -> None:
    graph, budget = drawn(seed)
    names = list(zip(*(v.tolist() for v in (problem(graph).storage, problem(graph).until)), strict=True))
    weights = st.tuples(st.integers(0, len(graph.ops) - 1), st.integers(0, 40), st.integers(0, 9))
    shares = st.tuples(st.sampled_from(names), st.integers(0, 9)).map(lambda drew: (*drew[0], drew[1]))
    case = st.builds(
        Case,
        st.lists(weights, max_size=6).map(tuple),
        st.lists(shares, max_size=2).map(tuple) if names else st.just(()),
    )
    tree = [data.draw(case)]
    if names and data.draw(st.booleans()):
        tree = [Split(*data.draw(st.sampled_from(names))), *tree, data.draw(case)]
    cover = Cover(budget, data.draw(st.integers(1, 4)), tuple(tree))
    try:
        extra = extra_time(graph, cover)
    except JudgeError:
        return
    truth = least_time(graph, budget)
    assert truth is None or graph.base_ns + extra <= truth


def test_a_chain_that_must_be_run_again_is_bounded_exactly() -> None:
    ops = (
        Op(0, "a", "a", (), (0,), ns=5),
        Op(1, "b", "b", (), (1,), ns=7),
        Op(2, "c", "c", (0,), (2,), ns=1),
    )
    graph = Graph(ops, (Storage(0, 64), Storage(1, 128), Storage(2, 64)))
    assert time_bound(graph, budget=191).extra_ns == 5
    assert time_bound(graph, budget=192).extra_ns == 0
    assert time_bound(graph, budget=192) == TimeBound(0)
    assert least_time(graph, 191) == 18


def test_two_outputs_of_one_run_are_charged_once() -> None:
    ops = (
        Op(0, "pair", "pair", (), (0, 1), ns=10),
        Op(1, "wide", "wide", (), (2,), ns=1),
        Op(2, "use", "use", (0, 1), (3,), ns=1),
    )
    graph = Graph(ops, (Storage(0, 64), Storage(1, 64), Storage(2, 128), Storage(3, 64)))
    bound = time_bound(graph, budget=192, stages=False)
    assert bound.extra_ns == derived(graph, bound) == 10
    assert time_bound(graph, budget=200).extra_ns == 10


def test_what_cannot_be_made_again_is_held_and_not_charged() -> None:
    ops = (
        Op(0, "a", "a", (), (0,), ns=5),
        Op(1, "a_", "a_", (0,), (), (0,), ns=1),
        Op(2, "b", "b", (), (1,), ns=7),
        Op(3, "c", "c", (0,), (2,), ns=1),
    )
    graph = Graph(ops, (Storage(0, 64), Storage(1, 128), Storage(2, 64)))
    assert problem(graph).fixed.tolist() == [64, 64, 192, 128]
    assert problem(graph).num_gaps == 0


@pytest.mark.parametrize("seed", [3])
def test_a_known_plan_ends_the_search_early_and_is_never_passed(seed: int) -> None:
    graph = plain_graph(seed, num_ops=120)
    budget = (whole_bytes(graph) - graph.persistent) * 8 // 10
    full = time_bound(graph, budget=budget, stages=False)
    assert full.cover is not None
    half = time_bound(graph, budget=budget, upper_ns=full.extra_ns // 2, stages=False)
    assert half.cover is not None
    assert half.extra_ns >= full.extra_ns // 2
    assert len(half.cover.tree) < len(full.cover.tree)
    assert time_bound(graph, budget=budget, upper_ns=0).extra_ns == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_bound_falls_with_the_budget_and_stays_below_plans(seed: int) -> None:
    graph = plain_graph(seed, num_ops=60)
    peak = whole_bytes(graph) - graph.persistent
    low, previous = lower_bound(graph)[0], None
    for percent in (80, 90, 100):
        budget = peak * percent // 100
        if budget < low:
            continue
        plan = solve(graph, budget=budget, planner="greedy", placed=False, bound=True)
        assert plan.certificate.ns_bound <= plan.forecast.ns
        assert previous is None or plan.certificate.ns_bound <= previous
        previous = plan.certificate.ns_bound
    assert previous == graph.base_ns
