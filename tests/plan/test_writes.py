"""Bounds and plans of graphs whose ops may write over what they read, against every small set of pairs."""

import pytest

import oracles
from tightrope.core import Bytes, Graph, Nanoseconds
from tightrope.lower import lower, problems, simulate, without_writes
from tightrope.plan import lower_bound, smallest, solve
from tightrope.plan.bound.cover import time_bound
from tightrope.plan.schedule import expand, useful

SEEDS = range(25)


def points(graph: Graph) -> list[tuple[Bytes, Nanoseconds]]:
    """Total bytes and time of every set of at most three pairs."""
    found = set()
    for pairs in oracles.every_set(graph, 3):
        figures = simulate(lower(graph, expand(graph, useful(graph, pairs))))
        found.add((graph.persistent + figures.peak, figures.ns))
    return sorted(found)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_takes_less_than_a_bound(seed: int) -> None:
    graph = oracles.writing_graph(seed, num_ops=8, parts=seed % 4 == 0)
    every = points(graph)
    least, _ = lower_bound(graph)
    assert least <= every[0][0]
    assert least >= lower_bound(without_writes(graph))[0] - 128  # one result less at most
    for budget in sorted({total for total, _ in every}):
        fastest = min(ns for total, ns in every if total <= budget)
        assert time_bound(graph, budget=budget).extra_ns <= fastest - graph.base_ns


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_judged_with_their_certificates(seed: int) -> None:
    graph = oracles.writing_graph(seed, num_ops=12, parts=seed % 4 == 0)
    small = smallest(graph)
    assert small.forecast.total >= lower_bound(graph)[0]
    for budget in (small.budget, (small.budget + solve(graph, budget=2**40).forecast.total) // 2):
        for order in ("given", "free"):
            plan = solve(graph, budget=budget, order=order)
            assert problems(graph, plan) == []
            assert plan.forecast.total <= budget


def test_some_graphs_need_less_with_writes() -> None:
    graphs = [oracles.writing_graph(seed) for seed in SEEDS]
    saved = [smallest(without_writes(g)).forecast.total - smallest(g).forecast.total for g in graphs]
    assert min(saved) >= 0
    assert sum(gain > 0 for gain in saved) >= 10
