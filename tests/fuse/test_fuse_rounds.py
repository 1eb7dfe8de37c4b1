"""Planning again with fused prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import oracles
from tightrope.core import Bytes, FusedStretch, Graph, InfeasibleError, Plan
from tightrope.fuse import rounds
from tightrope.fuse.choose import Chosen, _largest
from tightrope.plan import solve


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_what_is_left_out_takes_least_and_no_more_than_allowed(spent: dict[str, int], left: int) -> None:
    kept = _largest(spent, left=left)
    out = [spent[key] for key in spent.keys() - kept]
    assert sum(out) <= left
    if kept:
        shortest = min(spent[key] for key in kept)
        assert max(out, default=0) <= shortest
        assert sum(out) + shortest > left


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
