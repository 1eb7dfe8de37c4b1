"""A plan for large sizes, used for smaller ones: the same addresses, never more bytes, judged."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import Allocation, Graph, Kind, Op, Plan, Storage
from tightrope.lower import lower, planned, problems
from tightrope.plan.resize import resized, same_ops
from tightrope.plan.search import smallest, solve

NUM = 6


def chain(size: int, *, temporary: int = 0, order: int = 1) -> Graph:
    """A forward of ``NUM`` ops, and the backward that reads what it made; each op has a temporary."""
    storages = [Storage(0, 64 * size, Kind.INPUT, external=True)]
    ops: list[Op] = []

    def op(name: str, reads: tuple[int, ...], made: int) -> None:
        at = len(storages)
        storages.append(Storage(at, made))
        inside = Allocation(temporary or 32 * size, -1, 1 - order, 2 + order)
        mine = Allocation(made, at, order, -1)
        ops.append(
            Op(len(ops), name, f"aten.{name}", reads, (at,), ns=10, allocations=tuple(
                sorted((inside, mine), key=lambda one: one.start)
            ))
        )  # fmt: skip

    for number in range(NUM):
        op(f"forward{number}", (number,), 256 * size)
    for number in range(NUM):
        op(f"backward{number}", tuple(sorted({NUM - number, NUM + number})), 128 * size)
    return Graph(tuple(ops), tuple(storages))


LARGE = chain(16)


@cache
def tight(graph: Graph) -> Plan:
    return solve(graph, budget=(smallest(graph).budget + solve(graph, budget=2**40).forecast.total) // 2)


def offsets_of(graph: Graph, plan: Plan) -> list[tuple[int, int]]:
    return [(one.storage, one.offset) for one in planned(lower(graph, plan))]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 16))
def test_smaller_sizes_take_no_more_and_are_accepted_by_the_judge(size: int) -> None:
    plan, small = tight(LARGE), chain(size)
    assert plan.forecast.ns > plan.forecast.base_ns
    found = resized(small, plan, LARGE)
    assert found is not None
    assert problems(small, found) == []
    assert found.forecast.arena <= plan.forecast.arena
    assert found.fingerprint == small.fingerprint


def test_sizes_that_need_recomputations_keep_schedule_and_addresses() -> None:
    plan, small = tight(LARGE), chain(15)
    found = resized(small, plan, LARGE)
    assert found is not None
    assert found.schedule == plan.schedule
    assert offsets_of(small, found) == offsets_of(LARGE, plan)


def test_sizes_that_fit_without_recomputation_run_every_op_once() -> None:
    found = resized(chain(4), tight(LARGE), LARGE)
    assert found is not None
    assert found.forecast.ns == found.forecast.base_ns


def test_a_kernel_that_allocates_more_for_smaller_sizes_gets_no_plan_that_takes_more() -> None:
    plan = tight(LARGE)
    assert resized(chain(15, temporary=2**20), plan, LARGE) is None


def test_temporaries_that_live_otherwise_are_placed_anew() -> None:
    plan, small = tight(LARGE), chain(13, order=0)
    found = resized(small, plan, LARGE)
    assert found is not None
    assert problems(small, found) == []
    assert found.forecast.arena <= plan.forecast.arena


@pytest.mark.parametrize("other", [Graph((), ()), Graph(LARGE.ops[:-1], LARGE.storages)])
def test_another_graph_gets_no_plan(other: Graph) -> None:
    assert not same_ops(other, LARGE)
    assert resized(other, tight(LARGE), LARGE) is None


def test_a_search_may_begin_from_the_plan_for_other_sizes() -> None:
    """What it begins from is a candidate: the answer is never slower."""
    near, graph = tight(LARGE), chain(24)
    budget = tight(graph).budget
    begun = solve(graph, budget=budget, planner="given", start=near)
    assert begun.forecast.total <= budget
    assert begun.forecast.ns == graph.base_ns + near.forecast.ns - LARGE.base_ns
