"""Valid plans pass, with the figures that an independent simulation gives."""

import random

import pytest
from families import FAMILIES, build_plan, build_schedule, draw_plan, peak_of, simulate

from tightrope.core import Graph, Op, Plan, Schedule, Storage
from tightrope.lower import lowered, problems, walked


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(25))
def test_valid_plans_pass(family: str, seed: int) -> None:
    graph = FAMILIES[family](seed)
    plan = draw_plan(graph, seed)
    verdict = lowered(graph, plan).verdict
    assert verdict.ok
    assert not problems(graph, plan)
    assert (verdict.peak, verdict.total, verdict.ns) == (
        plan.forecast.peak,
        plan.forecast.total,
        plan.forecast.ns,
    )
    assert len(verdict.checks) == 10


@pytest.mark.parametrize("family", FAMILIES)
def test_some_plan_of_every_family_recomputes(family: str) -> None:
    plans = [draw_plan(FAMILIES[family](seed), seed) for seed in range(25)]
    assert sum(plan.forecast.ns > plan.forecast.base_ns for plan in plans) >= 10


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(5))
def test_the_walk_matches_the_simulation(family: str, seed: int) -> None:
    graph = FAMILIES[family](seed)
    schedule = draw_plan(graph, seed).schedule
    walk = walked(graph, schedule)
    blocks = simulate(graph, schedule)
    assert [(i.size, i.storage) for i in walk.intervals] == [
        (size, storage) for size, _, _, storage in blocks
    ]
    assert walk.peak == max(walk.profile) == peak_of(blocks)
    assert len(walk.profile) == len(blocks) + sum(end < len(walk.profile) for _, _, end, _ in blocks)


def test_an_empty_graph_has_an_empty_plan() -> None:
    graph = Graph((), (Storage(0, 100, external=True),))
    verdict = lowered(graph, build_plan(graph, Schedule(()))).verdict
    assert (verdict.peak, verdict.total) == (0, 128)


def test_bytes_of_a_hand_made_schedule(rng_free_chain: tuple[Graph, Plan]) -> None:
    graph, plan = rng_free_chain
    walk = walked(graph, plan.schedule)
    assert walk.profile == (128, 320, 192, 448, 256)
    assert (walk.peak, walk.ns) == (448, 6)
    assert walk.copies == (0, 1, 1, 1)


@pytest.fixture
def rng_free_chain() -> tuple[Graph, Plan]:

    storages = (
        Storage(0, 64, external=True),
        Storage(1, 100),
        Storage(2, 180),
        Storage(3, 256, resident_at_end=True),
    )
    ops = (
        Op(0, "a", "aten.a", (0,), (1,), ns=1),
        Op(1, "b", "aten.b", (1,), (2,), ns=2),
        Op(2, "c", "aten.c", (2,), (3,), ns=3),
    )
    graph = Graph(ops, storages)
    return graph, build_plan(graph, build_schedule(graph, (), random.Random(0)))
