"""Orders of first runs: precedences against the judge, peaks and joint plans against brute force."""

from itertools import permutations
from random import Random

import msgspec
import pytest

from benchmarks.planners.exhaustive import accepted, topological
from tests import oracles
from tightrope.core import (
    Compute,
    Flag,
    Graph,
    InfeasibleError,
    Limits,
    Op,
    Schedule,
    Storage,
    TightropeError,
)
from tightrope.lower import lower, problems
from tightrope.plan import PLANNERS, Options, lower_bound, solve
from tightrope.plan.engine import open_solver
from tightrope.plan.model import build, pairs_of
from tightrope.plan.schedule import base_schedule, restore
from tightrope_planners.judge.reorder import in_base_order
from tightrope_planners.orders.joint import roll, unroll
from tightrope_planners.orders.precedence import precedences, reorder
from tightrope_planners.orders.search import list_order, orders, tables
from tightrope_planners.solvers.order import OrderSolver

FREE = Options(order="free")


def without_hand_over(seed: int, num_ops: int) -> Graph:
    return msgspec.structs.replace(oracles.random_graph(seed, num_ops=num_ops), parts=())


@pytest.mark.parametrize("seed", range(15))
def test_precedences_allow_exactly_what_the_judge_accepts(seed: int) -> None:
    graph = without_hand_over(seed, 5)
    allowed = set(topological(graph))
    for order in permutations(range(5)):
        try:
            schedule = restore(base_schedule(reorder(graph, order)), order)
        except KeyError:
            assert order not in allowed
            continue
        try:
            in_base_order(graph, lower(graph, schedule))
        except TightropeError:
            assert order not in allowed
        else:
            assert order in allowed


@pytest.mark.parametrize("seed", range(10))
def test_the_hand_over_stays_where_it_is(seed: int) -> None:
    graph = oracles.parted(msgspec.structs.replace(without_hand_over(seed, 5)), 3)
    for order in topological(graph):
        assert set(order[:4]) == {0, 1, 2, 3}
        assert order[3] == 3
        assert accepted(graph, order)


def _renamed(graph: Graph, moved: Graph, schedule: Schedule) -> Schedule:
    """The schedule in terms of the graph whose ops stand in another order."""
    position = {op.name: op.id for op in moved.ops}
    return Schedule(
        tuple(
            Compute(position[graph.ops[step.op].name], step.drop)
            if isinstance(step, Compute) and step.op < len(graph.ops)
            else step
            for step in schedule.steps
        )
    )


def test_ops_with_effects_keep_their_order() -> None:
    flags = (Flag.RANDOM, Flag.NONE, Flag.COLLECTIVE, Flag.SIDE_EFFECT)
    ops = tuple(Op(i, str(i), "op", creates=(i,), flags=flag) for i, flag in enumerate(flags))
    graph = Graph(ops, tuple(Storage(i, 64) for i in range(4)))
    assert precedences(graph) == ((), (), (0,), (2,))


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(25))
def test_the_smallest_peak_is_found(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=7)
    peaks = [oracles.evaluate(reorder(graph, order), ())[0] for order in topological(graph)]
    found = [oracles.evaluate(reorder(graph, order), ())[0] for order in orders(graph, min(peaks), FREE)]
    assert min(found) == min(peaks)
    assert all(accepted(graph, order) for order in orders(graph, 0, FREE))


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_exact_after_many_moves(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=30)
    model, before = build(graph), precedences(graph)
    solver, start = OrderSolver(tables(model, before)), list_order(model, before)
    peak, over = solver.load(start, 0)
    solver.begin(peak, seed=seed, iterations=3000, shrink=seed % 2 == 0, heat=2.0)
    assert solver.run(10_000) == 0
    order = solver.best()
    now = solver.load(order, peak)
    state = open_solver(build(reorder(graph, order))).state(peak)
    assert (state.peak, state.excess) == now
    assert now[0] <= peak
    assert now[1] <= over


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_joint_plans_equal_brute_force(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=5)
    every = [reorder(graph, order) for order in topological(graph)]
    given = oracles.evaluate(graph, ())[0]
    for percent in (95, 75, 55):
        capacity = given * percent // 100
        limits = Limits(
            bytes=(graph.persistent + sum(s.size for s in graph.storages if s.outside) + capacity,)
        )
        schedule = PLANNERS["order"](graph, None, limits, FREE)
        moved, _ = in_base_order(graph, lower(graph, schedule))
        pairs = pairs_of(moved, _renamed(graph, moved, schedule))
        live, ns = oracles.evaluate(moved, pairs)
        times = [best for g in every if (best := oracles.best_time(g, capacity, size=3)) is not None]
        if sum(s.size for s in graph.storages if s.outside) == 0:
            assert (live <= capacity) >= bool(times)
            assert not times or ns <= min(times)
            assert live > capacity or len(pairs) > 3 or ns >= min(times)


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(6))
def test_a_free_order_is_never_slower_and_passes_the_judge(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=14)
    least = lower_bound(graph)[0]
    budget = (solve(graph, budget=2**40).forecast.total + least) // 2
    try:
        given = solve(graph, budget=budget)
    except InfeasibleError:
        given = None
    try:
        free = solve(graph, budget=budget, order="free")
    except InfeasibleError:
        assert given is None
        return
    assert problems(graph, free) == []
    assert given is None or free.forecast.ns <= given.forecast.ns
    assert solve(graph, budget=budget, order="free") == free


@pytest.mark.parametrize("seed", range(20))
def test_unrolled_runs_roll_up_again(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=9)
    count = len(graph.ops)
    model = build(graph)
    allowed = oracles.allowed_pairs(graph)
    pairs = tuple(sorted(Random(seed).sample(allowed, min(5, len(allowed)))))
    runs = unroll(model, precedences(graph), pairs)
    assert roll(runs, count, runs.sequence) == (tuple(range(count)), pairs)
    solver = OrderSolver(runs.tables)
    assert solver.load(runs.sequence, 0)[0] == oracles.evaluate(graph, pairs)[0]
