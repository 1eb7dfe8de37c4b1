"""The curve of time against budget: fits, falls, ends where nothing fits."""

import time

import pytest

from tightrope.core import Graph, Op, Storage
from tightrope.lower import problems
from tightrope.plan import lower_bound, plan_curve, whole_bytes


def chain(length: int) -> Graph:
    """A chain of ops forward and back: each backward op reads the output of its forward op."""
    storages = [Storage(k, 6400) for k in range(2 * length)]
    forward = [
        Op(k, f"f{k}", "aten.gelu", reads=(k - 1,) if k else (), creates=(k,), ns=100) for k in range(length)
    ]
    backward = [
        Op(
            length + k,
            f"b{k}",
            "aten.mul",
            reads=tuple(sorted({length - 1 - k, length + k - 1})),
            creates=(length + k,),
            ns=200,
        )
        for k in range(length)
    ]
    return Graph((*forward, *backward), tuple(storages), name="chain")


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 9, 16])
def test_plans_fit_and_time_never_rises_with_the_budget(length: int) -> None:
    graph = chain(length)
    plans = plan_curve(graph, seconds=3)
    assert [plan.budget for plan in plans] == sorted(plan.budget for plan in plans)
    assert plans[-1].budget == whole_bytes(graph)
    times = [plan.forecast.ns for plan in plans]
    assert times == sorted(times, reverse=True)
    for plan in plans:
        assert plan.forecast.total <= plan.budget
        assert problems(graph, plan, None) == []
    assert plans[0].budget >= lower_bound(graph)[0]


def test_the_time_is_kept_and_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    began = time.monotonic()
    plan_curve(chain(40), seconds=1, progress=lambda *now: told.append(now))
    assert time.monotonic() - began < 6
    assert told[0] == (0, 11, "at 100 %")
