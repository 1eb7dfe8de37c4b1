"""Every planner of this kind through the public way: placed plans that the judge accepts."""

from importlib.util import find_spec

import pytest

from tests.oracles import evaluate, random_graph
from tests.plan.brute import Brute
from tests.plan.sequences import chain
from tightrope.core import Graph, InfeasibleError, Plan
from tightrope.lower import lowered
from tightrope.plan import solve

EXACT = ["checkmate", *(["moccasin"] if find_spec("ortools") else [])]
HEURISTIC = ["checkmate-lp", "treewidth", "dtr"]
CHAIN = ["sqrt", "rotor", "revolve"]


def judged(graph: Graph, planner: str, percent: int) -> Plan | None:
    total = graph.persistent + evaluate(graph, (), arena_only=False)[0]
    try:
        plan = solve(graph, budget=total * percent // 100, planner=planner)
    except InfeasibleError:
        return None
    lowered(graph, plan)
    assert plan.forecast.total <= total * percent // 100
    return plan


@pytest.mark.parametrize("planner", HEURISTIC + EXACT[:1])
@pytest.mark.parametrize("seed", range(3))
def test_plans_of_any_graph_fit_and_pass_the_judge(planner: str, seed: int) -> None:
    graph = random_graph(seed, num_ops=7)
    assert judged(graph, planner, 100) is not None
    judged(graph, planner, 80)


@pytest.mark.parametrize("planner", CHAIN + HEURISTIC)
@pytest.mark.parametrize("seed", range(3))
def test_plans_of_chains_fit_and_pass_the_judge(planner: str, seed: int) -> None:
    graph = chain(seed, 8)
    plan = judged(graph, planner, 85)
    assert plan is None or plan.forecast.ns >= graph.base_ns


@pytest.mark.parametrize("planner", EXACT)
def test_an_exact_planner_reaches_the_optimum_through_the_public_way(planner: str) -> None:
    graph = random_graph(8, num_ops=6, rich=False)
    limit = Brute(graph, max_runs=2).least_peak()
    plan = solve(graph, budget=graph.persistent + limit, planner=planner, placed=False)
    lowered(graph, plan)
    assert plan.forecast.ns == Brute(graph, max_runs=2).least_ns(limit)
