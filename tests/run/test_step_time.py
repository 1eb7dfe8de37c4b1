"""Forecast and observed time of a step: which runs count, what the report says, what stays as it is."""

import gc
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import Nanoseconds
from tightrope.plan import KeptPlans
from tightrope.plan.cache import graph_key
from tightrope.run.compile import compiled_of
from tightrope.run.execute import prepared
from tightrope.run.ledger.accounts import accounts

DATA = torch.ones(4096, 64)
TICK: Nanoseconds = 70_000


def ticking(pace: int) -> Callable[[], tuple[str, Callable[[], Nanoseconds]]]:
    """A clock on which every part of a step takes so many ticks."""
    now = count()
    return lambda: ("thread CPU time", lambda: next(now) * pace * TICK)


def net(budget: str | int) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return tightrope.compile(nn.Sequential(*layers), budget=budget, progress=False)


def train(model: nn.Module, steps: int) -> tightrope.Report:
    for _ in range(steps):
        model.zero_grad()
        model(DATA).square().mean().backward()
    return tightrope.report(model)


def test_two_steps_suffice_and_the_checked_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "clock_here", ticking(1))
    model = net(accounts().charged() + (64 << 20))
    first = train(model, 1).time
    assert first.observed_ns is None
    assert first.forecast_ns
    assert "observed: unknown before a step after the first" in str(tightrope.report(model))
    report = train(model, 1)
    found = report.time
    assert (found.observed_ns, found.num_steps) == (2 * TICK, 1)
    assert found.wall_ns
    assert found.ratio == pytest.approx(2 * TICK / found.forecast_ns)
    assert f"observed 140.00 us, {found.ratio:.2f} times the forecast (thread CPU time, one step" in str(
        report
    )
    assert report.to_dict()["time"] == {
        "forecast_ns": found.forecast_ns, "expected_ns": 2 * TICK, "observed_ns": 2 * TICK,
        "wall_ns": found.wall_ns, "clock": found.clock, "num_steps": 1, "ratio": found.ratio,
    }  # fmt: skip


def test_a_forward_without_its_backward_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "clock_here", ticking(1))
    model = net(accounts().charged() + (64 << 20))
    train(model, 2)
    loss = model(DATA).square().mean()
    del loss
    assert tightrope.report(model).time.observed_ns in (None, 2 * TICK)
    assert train(model, 1).time.observed_ns == 2 * TICK


@pytest.mark.slow
def test_another_budget_is_expected_at_the_pace_that_was_seen_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path))
    monkeypatch.setattr(prepared, "clock_here", ticking(3))
    gc.collect()
    budget = accounts().charged() + (12 << 20)
    large = net(accounts().charged() + (64 << 20))
    seen = train(large, 3).time
    assert seen.ratio
    small = net(budget)
    report = train(small, 1)
    assert report.num_recomputed
    assert report.time.forecast_ns > seen.forecast_ns
    assert report.time.expected_ns == pytest.approx(report.time.forecast_ns * seen.ratio, abs=1)
    graphs = [compiled_of(model).calls.captured[0].graph for model in (large, small)]
    assert graph_key(graphs[0]) == graph_key(graphs[1])
    plan = report.planned[0][1]
    assert plan.forecast.ns == report.time.forecast_ns
    train(large, 3)
    train(small, 3)
    train(later := net(budget), 1)
    graph = compiled_of(later).calls.captured[0].graph
    assert KeptPlans(0).exact(graph, budget=plan.budget, planner="auto") == plan


def test_calls_that_are_planned_one_by_one_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "clock_here", ticking(1))
    model = net(accounts().charged() + (64 << 20))
    for _ in range(3):
        model.zero_grad()
        (model(DATA).mean() + model(2 * DATA).mean()).backward()
    report = tightrope.report(model)
    assert report.time.forecast_ns == sum(plan.forecast.ns for _, plan in report.planned)
    assert report.time.observed_ns is not None
    assert report.time.observed_ns % (2 * TICK) == 0
