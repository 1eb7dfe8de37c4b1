"""Budgets near the smallest: what is searched for when addresses do not fit."""

from importlib import import_module
from typing import Any

import msgspec
import pytest

from tests import oracles
from tightrope.core import Bytes, InfeasibleError, Plan
from tightrope.plan import smallest, solve
from tightrope.plan.assemble import assemble

anneal_module, job_module = (import_module(f"tightrope.plan.{name}") for name in ("anneal", "job"))


def waste(
    monkeypatch: pytest.MonkeyPatch, live: Bytes, size: Bytes, *, unless_thorough: bool = False
) -> None:
    """Let the arena of every plan within a budget that holds more than ``live`` bytes waste so many."""

    def wasteful(*args: Any, budget: Bytes | None, effort: float = 1.0, **rest: Any) -> Plan:
        plan = assemble(*args, budget=budget, effort=effort, **rest)
        if budget is None or plan.forecast.peak <= live or (unless_thorough and effort > 1):
            return plan
        forecast = msgspec.structs.replace(plan.forecast, arena=plan.forecast.arena + size)
        return msgspec.structs.replace(plan, forecast=forecast)

    monkeypatch.setattr(job_module, "assemble", wasteful)


def count(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    calls: list[str] = []
    real = getattr(anneal_module, name)

    def counted(*args: Any, **rest: Any) -> Any:
        calls.append(name)
        return real(*args, **rest)

    for module in (anneal_module, job_module):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.parametrize("seed", [0, 1])
def test_where_most_addresses_miss_few_searches_find_more_than_the_smallest_plan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = oracles.random_graph(seed, num_ops=30)
    least = smallest(graph)
    waste(monkeypatch, least.forecast.peak * 103 // 100, least.budget)
    searches, lowest = count(monkeypatch, "anneal_pairs"), count(monkeypatch, "shrink")
    plan = solve(graph, budget=least.budget * 11 // 10)
    assert plan.forecast.ns < least.forecast.ns
    assert len(lowest) == 1
    assert len(searches) <= 8


@pytest.mark.parametrize("seed", [0, 4])
def test_a_refusal_above_the_bound_takes_few_searches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = oracles.random_graph(seed, num_ops=30)
    least = smallest(graph)
    waste(monkeypatch, 0, least.budget)
    searches = count(monkeypatch, "anneal_pairs")
    with pytest.raises(InfeasibleError, match=str(least.budget)):
        solve(graph, budget=least.budget - 64)
    assert len(searches) <= 8


def test_addresses_that_just_miss_are_looked_for_at_more_length(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = oracles.random_graph(2, num_ops=30)
    budget = smallest(graph).budget * 11 // 10
    expected = solve(graph, budget=budget, placed=False).forecast.ns
    waste(monkeypatch, 0, budget // 100, unless_thorough=True)
    assert solve(graph, budget=budget).forecast.ns == expected
