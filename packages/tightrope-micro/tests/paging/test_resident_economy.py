"""Re-runs in place of pages: judged, never dearer than none, beside POET's program, and limits that work."""

import random
import re
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.micro.energy import program
from tightrope.core import (
    Compute,
    Flag,
    Graph,
    InfeasibleError,
    Kind,
    Machine,
    Op,
    Plan,
    Storage,
    TightropeError,
)
from tightrope.lower import lowered
from tightrope_micro.paging.economy import Economy
from tightrope_micro.paging.resident import floor_bytes, plan_resident

MACHINE = Machine.parse(
    """
    name = "m"
    watts = 0.5
    tiers = [
        {name="ram", bytes=1048576, alignment=4},
        {name="card", bytes=1048576, alignment=4, read=1e6, write=1e6, watts=0.2, engines=0},
    ]
    """
)


def graph_of(seed: int, most: int = 12) -> Graph:
    """A chain of layers with weights of the caller, then a chain that reads its results in reverse."""
    draw = random.Random(seed)
    depth = draw.randint(2, most // 2)
    storages = [
        Storage(k, 4 * draw.randint(1, 60), Kind.PARAMETER, 4, external=True, home=1) for k in range(depth)
    ]
    ops: list[Op] = []

    def run(name: str, *reads: int, end: bool = False) -> int:
        made = len(storages)
        storages.append(Storage(made, 4 * draw.randint(1, 60), alignment=4, resident_at_end=end))
        ns = draw.choice((1_000, 50_000, 400_000))
        ops.append(Op(len(ops), f"{name}_{len(ops)}", "a.b", tuple(sorted(reads)), (made,), ns=ns))
        return made

    made = [run("begin")]
    for weight in range(depth):
        made.append(run("layer", weight, made[-1]))
    gradient = run("loss", made[-1])
    for weight in reversed(range(depth)):
        step = run("weight", made[weight], gradient)
        flags = Flag.IN_PLACE | Flag.NEVER_RECOMPUTE
        if weight:
            gradient = run("input", weight, gradient)
        both = tuple(sorted((weight, step)))
        ops.append(Op(len(ops), f"update_{len(ops)}", "a.c", both, (), (weight,), flags=flags, ns=100))
    return Graph(tuple(ops), tuple(storages), alignment=4)


def limit_of(graph: Graph, share: float) -> int:
    floor, _ = floor_bytes(graph)
    whole = sum(storage.size for storage in graph.storages)
    return round(1.1 * floor + share * (whole - 1.1 * floor)) // 4 * 4 + 64


def _num_runs(plan: Plan) -> int:
    return sum(isinstance(step, Compute) for step in plan.schedule.steps)


def planned(graph: Graph, limit: int, economy: Economy | None) -> Plan:
    return plan_resident(graph, budget=limit, machine=MACHINE, economy=economy)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.sampled_from(("seconds", "joules")))
@settings(max_examples=40, deadline=None)
def test_it_is_judged_and_never_dearer_than_running_once(
    seed: int, share: float, objective: Literal["seconds", "joules"]
) -> None:
    graph = graph_of(seed, 16)
    limit = limit_of(graph, share)
    once = planned(graph, limit, None).forecast
    cheap = planned(graph, limit, Economy(objective=objective, walks=200))
    assert cheap.forecast.total <= limit
    assert lowered(graph, cheap, MACHINE).verdict.ok
    if objective == "joules":
        assert cheap.forecast.joules <= once.joules
    else:
        assert cheap.forecast.ns <= once.ns


@pytest.mark.slow
def test_beside_poet_s_program_it_finds_the_optimum_and_never_less() -> None:
    """A wrong price on either side shows: less is impossible, more would be a bad search."""
    pytest.importorskip("tightrope_planners")
    ratios = []
    for seed in range(12):
        graph = graph_of(seed, 10)
        limit = limit_of(graph, 0.1)
        ours = planned(graph, limit, Economy(objective="joules"))
        answer, fixed = program(graph, limit, MACHINE, 20.0)
        assert answer.proved
        ratios.append(ours.forecast.joules / (answer.bound + fixed))
    assert min(ratios) >= 1 - 1e-6
    assert max(ratios) <= 1.005


@pytest.mark.slow
def test_some_ops_run_again_and_none_where_that_is_switched_off() -> None:
    num_again = 0
    for seed in range(6):
        graph = graph_of(seed, 16)
        limit = limit_of(graph, 0.05)
        again = planned(graph, limit, Economy(objective="joules"))
        once = planned(graph, limit, Economy(objective="joules", reruns=False))
        assert _num_runs(once) == len(graph.ops)
        num_again += _num_runs(again) - len(graph.ops)
    assert num_again > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["seconds", "joules"])
def test_a_limit_that_a_refusal_names_works(name: str) -> None:
    graph = graph_of(3, 16)
    limit = limit_of(graph, 0.1)
    unit = {"seconds": "s", "joules": "J"}[name]
    with pytest.raises(InfeasibleError) as caught:
        planned(graph, limit, Economy(objective="joules", **{name: 1e-9}))  # type: ignore[arg-type]
    found = re.search(rf"takes ([\d.e-]+) {unit} where", str(caught.value))
    assert found, str(caught.value)
    plan = planned(graph, limit, Economy(objective="joules", **{name: float(found[1])}))  # type: ignore[arg-type]
    figure = plan.forecast.joules if name == "joules" else plan.forecast.ns / 1e9
    assert figure <= float(found[1]) * (1 + 1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_limit_is_refused(value: float) -> None:
    with pytest.raises(TightropeError, match=r"seconds .* is no limit"):
        Economy(seconds=value)
    with pytest.raises(TightropeError, match=r"joules .* is no limit"):
        Economy(joules=value)
