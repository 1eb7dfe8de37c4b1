"""Farthest next use on random graphs: within the limit, judged, and no page where there is room."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightrope.core import (
    Compute,
    Flag,
    Free,
    Graph,
    InfeasibleError,
    Kind,
    Machine,
    Op,
    PageIn,
    PageOut,
    Storage,
    Wait,
)
from tightrope.lower import lowered, walked
from tightrope_micro.paging.resident import floor_bytes, plan_resident, resident_schedule

MACHINE = Machine.parse(
    'name = "m"\ntiers = [{name="ram", bytes=1048576, alignment=4}, '
    '{name="card", bytes=1048576, alignment=512, engines=0}]'
)


def graph_of(seed: int) -> Graph:
    """Layers that read weights of the caller and earlier results, then updates of the weights."""
    draw = random.Random(seed)
    num_weights, num_ops = draw.randint(1, 5), draw.randint(1, 10)
    storages = [
        Storage(k, 4 * draw.randint(1, 50), Kind.PARAMETER, 4, external=True, home=1)
        for k in range(num_weights)
    ]
    ops: list[Op] = []
    for _ in range(num_ops):
        made = len(storages)
        reads = tuple(sorted(draw.sample(range(made), min(made, draw.randint(1, 3)))))
        storages.append(
            Storage(made, 4 * draw.randint(1, 50), alignment=4, resident_at_end=draw.random() < 0.1)
        )
        ops.append(Op(len(ops), f"op_{len(ops)}", "a.b", reads, (made,)))
        if draw.random() < 0.5:
            weight = draw.randrange(num_weights)
            also = tuple(sorted({weight, made}))
            flags = Flag.IN_PLACE | Flag.NEVER_RECOMPUTE
            ops.append(Op(len(ops), f"update_{len(ops)}", "a.c", also, (), (weight,), flags=flags))
    return Graph(tuple(ops), tuple(storages), alignment=4)


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_it_stays_within_the_limit_and_the_judge_accepts_it(seed: int, share: float) -> None:
    graph = graph_of(seed)
    floor, _ = floor_bytes(graph)
    whole = sum(storage.size for storage in graph.storages)
    limit = round(floor + share * (whole - floor)) // 4 * 4
    assert walked(graph, resident_schedule(graph, limit), MACHINE).peak <= limit


@given(st.integers(0, 10**6))
def test_with_room_for_all_only_the_caller_s_are_copied_once_each_way(seed: int) -> None:
    graph = graph_of(seed)
    steps = resident_schedule(graph, sum(storage.size for storage in graph.storages)).steps
    coming = [step.storage for step in steps if isinstance(step, PageIn)]
    going = [step.storage for step in steps if isinstance(step, PageOut)]
    changed = {storage for op in graph.ops for storage in op.mutates}
    assert len(set(coming)) == len(coming)
    assert set(coming) == {s for op in graph.ops for s in op.reads if graph.storages[s].home}
    assert sorted(going) == sorted(changed)


@given(st.integers(0, 10**6))
def test_plans_are_placed_and_what_a_refusal_names_works(seed: int) -> None:
    graph = graph_of(seed)
    floor, _ = floor_bytes(graph)
    with pytest.raises(InfeasibleError) as caught:
        plan_resident(graph, budget=floor - 4, machine=MACHINE)
    named = caught.value.smallest_found
    assert named is not None
    plan = plan_resident(graph, budget=named, machine=MACHINE)
    assert plan.forecast.total <= named
    assert lowered(graph, plan, MACHINE).verdict.ok


def test_the_planner_gives_what_the_judge_accepts() -> None:
    weight, made = Storage(0, 64, Kind.PARAMETER, external=True, home=1), Storage(1, 64)
    flags = Flag.IN_PLACE | Flag.NEVER_RECOMPUTE
    ops = Op(0, "use", "a.b", (0,), (1,)), Op(1, "update", "a.c", (0, 1), (), (0,), flags=flags)
    graph = Graph(ops, (weight, made))
    assert floor_bytes(graph) == (128, 0)
    right = (PageIn(0), Wait(0), Compute(0), Compute(1), Free(1), PageOut(0), Wait(0))
    assert sorted(map(repr, resident_schedule(graph, 128).steps)) == sorted(map(repr, right))
