"""The program of joint recomputation and paging against brute force and the search."""

from typing import Literal

import pytest

from tests.judge.families import FAMILIES
from tests.plan.test_paging_search import FEW, asked, best_of_all, board, small, value
from tightrope.core import Graph, Limits, Machine, Op, Storage, Tier, TightropeError
from tightrope.plan.paging.search import PagingKnobs, paging, search_paged
from tightrope_planners.peers.poet import PoetKnobs, poet, solve_poet


@pytest.mark.parametrize("joules", [True, False], ids=["joules", "seconds"])
def test_program_and_search_find_the_best_of_all_sets(joules: bool) -> None:
    solved = 0
    for seed in range(14):
        graph, of = small(seed), board(seed)
        limits = asked(graph, seed)
        objective: Literal["joules", "seconds"] = "joules" if joules else "seconds"
        best = best_of_all(graph, of, limits, joules=joules)
        answer = solve_poet(graph, of, limits, knobs=PoetKnobs(objective=objective))
        found = search_paged(graph, of, limits, knobs=PagingKnobs(objective=objective), options=FEW)
        assert answer.proved
        exact = value(graph, of, answer.chosen, limits, joules=joules)
        heuristic = value(graph, of, found, limits, joules=joules)
        if best is None:
            assert answer.chosen is None
            continue
        solved += 1
        assert exact == pytest.approx(best, rel=1e-6)
        assert exact == pytest.approx(answer.bound, rel=1e-6)
        assert heuristic == pytest.approx(best, rel=1e-6)
    assert solved >= 8


def test_switches_restrict_both_and_joint_is_never_dearer() -> None:
    for seed in range(10):
        graph, of = small(seed + 100), board(seed)
        limits = asked(graph, seed)
        found = {}
        for recompute, pages in ((True, False), (False, True), (True, True)):
            knobs = PagingKnobs(objective="joules", recompute=recompute, paging=pages)
            chosen = search_paged(graph, of, limits, knobs=knobs, options=FEW)
            exact = solve_poet(graph, of, limits, knobs=PoetKnobs(recompute=recompute, paging=pages))
            assert (chosen is None) == (exact.chosen is None)
            assert chosen is None or ((recompute or not chosen.pairs) and (pages or not chosen.pages))
            found[recompute, pages] = value(graph, of, chosen, limits, joules=True) or float("inf")
            expected = value(graph, of, exact.chosen, limits, joules=True) or float("inf")
            assert found[recompute, pages] == pytest.approx(expected, rel=1e-6)
        assert found[True, True] <= min(found[True, False], found[False, True])


def test_a_machine_without_a_slower_tier_or_with_engines_is_refused() -> None:
    graph = FAMILIES["chain"](0)
    plain = Machine("plain", (Tier("ram", 2**20),))
    for planner in (paging, poet):
        with pytest.raises(TightropeError, match="'plain' has one tier"):
            planner(graph, plain, Limits((2**20,)), FEW)
        with pytest.raises(TightropeError, match="no machine was given"):
            planner(graph, None, Limits((2**20,)), FEW)
    with pytest.raises(TightropeError, match='has 1: use planner="paging"'):
        poet(graph, board(0, engines=1), Limits((2**20,)), FEW)
    with pytest.raises(TightropeError, match="the limit is 10"):
        solve_poet(graph, board(0), Limits((2**20,)), knobs=PoetKnobs(max_columns=10))


def test_planners_return_the_base_schedule_where_the_budget_is_ample() -> None:
    graph = FAMILIES["plain"](2)
    for planner in (paging, poet):
        schedule = planner(graph, board(1), Limits((2**40,)), FEW)
        assert schedule.computes() == tuple(op.id for op in graph.ops)


def test_where_ops_write_over_inputs_the_program_bounds_with_fewer_bytes() -> None:
    ops = [Op(0, "a", "a", creates=(0,), ns=10)]
    ops += [Op(k, "b", "b", reads=(k - 1,), creates=(k,), ns=10) for k in (1, 2, 3)]
    ops.append(Op(4, "c", "c", reads=(3, 1), creates=(4,), ns=10))
    storages = [Storage(k, 64) for k in range(4)] + [Storage(4, 64, resident_at_end=True)]
    graph = Graph(tuple(ops), tuple(storages))
    knobs = PoetKnobs(objective="seconds")
    over = PoetKnobs(objective="seconds", in_place={1: 0, 2: 1, 3: 2, 4: 3})
    plain, free = (solve_poet(graph, board(0), Limits((128,)), knobs=one) for one in (knobs, over))
    assert plain.chosen is None
    assert plain.proved
    assert free.proved
    assert free.chosen is None
    assert free.bound == 50
    roomy = [solve_poet(graph, board(0), Limits((192,)), knobs=one) for one in (knobs, over)]
    assert [answer.bound for answer in roomy] == [50, 50]
    assert solve_poet(graph, board(0), Limits((64,)), knobs=over).bound == float("inf")
