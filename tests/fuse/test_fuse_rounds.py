"""Planning again with fused prices."""

import pytest
from msgspec.structs import replace

from tests import oracles
from tightrope.core import Bytes, FusedStretch, Graph, InfeasibleError, Plan
from tightrope.fuse import rounds
from tightrope.fuse.choose import Chosen
from tightrope.plan import solve


@pytest.mark.parametrize(("slower", "num_searches"), [(0, 0), (1, 0), (5, 1)])
def test_a_plan_is_searched_again_only_where_more_than_two_percent_can_be_gained(
    slower: int, num_searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = oracles.trunk(30)
    plan = solve(graph, budget=2**30, planner="given")
    slow = replace(plan.forecast, ns=graph.base_ns * (100 + slower) // 100)
    fused = replace(plan, forecast=slow, stretches=(FusedStretch(0, 2, (), 1),))
    searched: list[Bytes] = []

    def search(_: Graph, budget: Bytes) -> Plan:
        searched.append(budget)
        raise InfeasibleError("none", asked=budget, smallest_found=None, lower_bound=0, op="none")

    monkeypatch.setattr(rounds, "at_pace", lambda graph, _: graph)
    found = rounds.fused_rounds(graph, plan, budget=2**30, search=search, fuse=lambda _: Chosen(fused))
    assert found.plan is fused
    assert len(searched) == num_searches
