"""Plans of one rank: prices of collectives, and what the planner makes of them."""

from functools import cache

import pytest

from tightrope.core import DeviceLink, Graph, Machine, Phase, Tier
from tightrope.lower import lower, simulate
from tightrope.lower.judged import problems
from tightrope.plan import solve
from tightrope_ranks.judge.collectives import check_collectives
from tightrope_ranks.sequence import (
    Division,
    capture_rank,
    cores_again,
    flops,
    gather_again,
    is_collective,
    priced,
    schedule_of,
    wire_bytes,
)
from tightrope_shared.attention import TransformerShape

SHAPE = TransformerShape(s=256, b=1, h=256, a=8, layers=2)
DEVICE = Machine("device", (Tier("memory", 1 << 34, read=1e12),), {"matmul": 1e13})
FAST, SLOW = DeviceLink("fast", bandwidth=1e12), DeviceLink("slow", latency=1e-3, bandwidth=1e8)


@cache
def graph(link: DeviceLink, *, again: bool = True) -> Graph:
    return priced(capture_rank(SHAPE, Division(mode="sequence", ranks=4), again=again), DEVICE, link)


def gathers(plan_graph: Graph, budget: int) -> int:
    plan = solve(plan_graph, budget=budget)
    assert problems(plan_graph, plan) == []
    check_collectives([lower(plan_graph, plan)] * 4, {"world": range(4)})
    found = sum(is_collective(plan_graph.op(op)) for op in plan.schedule.computes())
    return found - sum(map(is_collective, plan_graph.ops))


def test_a_collective_costs_what_it_sends() -> None:
    whole = SHAPE.s * SHAPE.b * SHAPE.h * 2
    gather = next(op for op in graph(SLOW).ops if is_collective(op))
    assert wire_bytes(graph(SLOW), gather) == 3 * whole // 4
    assert gather.ns == 3 * (1_000_000 + 10 * whole // 4)


def test_operations_are_those_of_the_paper() -> None:
    """24 b s h^2 (1 + s / 6h) a layer, divided among the ranks."""
    s, b, h = SHAPE.s, SHAPE.b, SHAPE.h
    forward = sum(flops(op) for op in graph(FAST).ops if op.phase is Phase.FORWARD)
    assert forward == pytest.approx(SHAPE.layers * 24 * b * s * h * h * (1 + s / (6 * h)) / 4)


def test_a_fast_link_is_used_again_and_a_slow_one_is_not() -> None:
    fast, slow = graph(FAST), graph(SLOW)
    figures = simulate(lower(fast, schedule_of(fast)))
    budget = fast.persistent + figures.outside + int(0.75 * figures.arena)
    assert gathers(fast, budget) > gathers(slow, budget)


def test_without_variants_no_collective_runs_again() -> None:
    kept = graph(FAST, again=False)
    figures = simulate(lower(kept, schedule_of(kept)))
    assert gathers(kept, kept.persistent + figures.outside + int(0.75 * figures.arena)) == 0


def test_a_plan_at_the_papers_memory_is_as_fast_as_the_papers_rules() -> None:
    given = graph(FAST)
    rules = schedule_of(given, gather_again(given), cores_again(given))
    figures = simulate(lower(given, rules))
    arena = solve(given, budget=given.persistent + figures.outside + figures.peak, placed=False)
    assert arena.forecast.ns <= figures.ns
