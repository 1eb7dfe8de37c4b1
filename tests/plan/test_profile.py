"""The byte profile, native and in Python, against naive evaluation; schedules against the judge."""

from collections.abc import Callable
from random import Random

import pytest

import oracles
from tightrope.core import Compute, Free, Graph, Op, Schedule, Storage, TightropeError
from tightrope.lower import lower, timeline, walked, without_writes
from tightrope.native.solvers.solver import NUM_RULES
from tightrope.plan import base_schedule
from tightrope.plan.engine import GreedySearch, open_solver
from tightrope.plan.model import Model, build, pairs_of
from tightrope.plan.schedule import expand, useful

PythonSolver = pytest.importorskip("tightrope_planners.python").PythonSolver
SEEDS = range(40)


def random_sets(graph: Graph, seed: int, count: int = 12) -> list[tuple[tuple[int, int], ...]]:
    rng, pairs = Random(seed), oracles.allowed_pairs(graph)
    return [tuple(rng.sample(pairs, rng.randint(0, min(8, len(pairs))))) for _ in range(count)]


@pytest.mark.parametrize("opened", [open_solver, PythonSolver])
@pytest.mark.parametrize("seed", SEEDS)
def test_profile_equals_naive_evaluation(seed: int, opened: Callable[[Model], GreedySearch]) -> None:
    graph = oracles.random_graph(seed, num_ops=10)
    solver = opened(build(graph))
    for pairs in random_sets(graph, seed):
        peak, ns = oracles.evaluate(graph, pairs)
        solver.load(pairs)
        state = solver.state(peak)
        assert (state.peak, state.ns + graph.base_ns, state.excess) == (peak, ns, 0)
        assert solver.state(peak - 1).excess > 0
        assert solver.pairs() == tuple(sorted(pairs))


@pytest.mark.few(1)
@pytest.mark.parametrize("opened", [open_solver, PythonSolver])
def test_profile_knows_what_is_written_over(opened: Callable[[Model], GreedySearch]) -> None:
    fewer = 0
    for seed in SEEDS:
        graph = oracles.writing_graph(seed, num_ops=16, parts=seed % 3 == 0)
        solver = opened(build(graph))
        for pairs in random_sets(graph, seed):
            kept = useful(graph, pairs)
            peak = timeline(lower(graph, expand(graph, kept))).peak
            fewer += peak < timeline(lower(without_writes(graph), expand(graph, kept))).peak
            for added in (kept, *random_sets(graph, seed, 1), kept):  # the last two remove and add again
                solver.load(added)
            assert solver.state(0).peak == peak
            assert solver.state(peak).excess == 0 < solver.state(peak - 1).excess
    assert fewer > 200


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_equal_the_rules(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=9)
    model = build(graph)
    num = len(graph.ops)
    every = [(t, u) for u in range(num) for t in range(num) if t > u]
    assert [p for p in every if model.allowed(p)] == oracles.allowed_pairs(graph)


@pytest.mark.parametrize("seed", SEEDS)
def test_schedules_pass_the_judge_and_match_the_timeline(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=10)
    for pairs in random_sets(graph, seed):
        schedule = expand(graph, pairs)
        walk, trace = walked(graph, schedule), timeline(lower(graph, schedule))
        peak, ns = oracles.evaluate(graph, pairs, arena_only=False)
        assert (walk.peak, trace.peak, walk.ns) == (peak, peak, ns)
        assert [(b.start, b.end, b.storage) for b in trace.buffers] == [
            (i.start, i.end, i.storage) for i in walk.intervals
        ]
        assert pairs_of(graph, schedule) == tuple(sorted(pairs))


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_is_the_same_in_both_languages(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=24)
    model = build(graph)
    native, python = open_solver(model), PythonSolver(model)
    peak = native.state(0).peak
    for rule in range(NUM_RULES):
        for percent in (95, 80, 65, 50):
            limit = peak * percent // 100
            for far in (False, True):
                assert native.greedy(limit, rule, far=far) == python.greedy(limit, rule, far=far)
                assert native.pairs() == python.pairs()
                assert native.state(limit) == python.state(limit)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_of_events_are_counted_as_events_are(seed: int) -> None:
    """Of several hundred events, the native profile notes whole blocks at once; Python never does."""
    model = build(oracles.random_graph(seed, num_ops=300))
    native, python, fresh = open_solver(model), PythonSolver(model), open_solver(model)
    peak = native.state(0).peak
    for percent in (95, 70, 50):
        limit = peak * percent // 100
        assert native.greedy(limit, 0) == python.greedy(limit, 0)
        assert (native.pairs(), native.state(limit)) == (python.pairs(), python.state(limit))
        native.begin(limit, seed=seed, iterations=3_000)
        while native.run(1_000) > 0:
            fresh.load(native.pairs())
            assert native.state(limit) == fresh.state(limit)
            assert native.state(peak // 2) == fresh.state(peak // 2)


def test_the_python_greedy_gives_up_long_chains_in_time() -> None:
    solver = PythonSolver(build(oracles.trunk(600)))
    assert not solver.greedy(oracles.WIDE, 1, far=True)


def test_both_greedy_searches_recompute_from_far_back() -> None:
    model = build(oracles.trunk(60))
    for solver in (open_solver(model), PythonSolver(model)):
        assert not solver.greedy(oracles.WIDE, 0)
        assert solver.greedy(oracles.WIDE, 0, far=True)
        assert len(solver.pairs()) == 60


def test_base_schedule_frees_after_the_last_reader() -> None:
    ops = (
        Op(0, "a", "a", creates=(0, 1)),
        Op(1, "b", "b", reads=(0,), creates=(2,)),
        Op(2, "c", "c", reads=(0,), creates=(3,)),
    )
    storages = tuple(Storage(i, 64, resident_at_end=i == 2) for i in range(4))
    steps = base_schedule(Graph(ops, storages)).steps
    assert steps == (Compute(0), Free(1), Compute(1), Compute(2), Free(0), Free(3))


def test_outside_storage_stays_until_the_boundary() -> None:
    ops = (Op(0, "a", "a", creates=(0,)), Op(1, "b", "b", creates=(1,)), Op(2, "c", "c", creates=(2,)))
    storages = (Storage(0, 64, outside=True), Storage(1, 64), Storage(2, 64))
    graph = oracles.parted(Graph(ops, storages), 2)
    assert base_schedule(graph).steps[-2:] == (Free(0), Free(2))
    walked(graph, base_schedule(graph))


def test_second_copy_and_foreign_order_are_refused() -> None:
    graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 64),))
    with pytest.raises(TightropeError, match="second live copy"):
        lower(graph, Schedule((Compute(0), Compute(0))))
    with pytest.raises(TightropeError, match="not live"):
        lower(graph, Schedule((Compute(0), Free(0), Free(0))))
    with pytest.raises(TightropeError, match="not a plan of pairs"):
        pairs_of(graph, Schedule(()))


def test_graph_out_of_order_is_refused() -> None:
    graph = Graph(
        (Op(0, "a", "aten.add", reads=(1,), creates=(0,)), Op(1, "b", "b", creates=(1,))),
        (Storage(0, 64), Storage(1, 64)),
    )
    with pytest.raises(TightropeError, match=r"aten\.add reads storage 1"):
        build(graph)


@pytest.mark.parametrize("seed", SEEDS)
def test_useless_reruns_are_left_out_and_nothing_else_changes(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=10)
    for pairs in random_sets(graph, seed):
        kept = useful(graph, pairs)
        assert set(kept) <= set(pairs)
        before, after = oracles.evaluate(graph, pairs), oracles.evaluate(graph, kept)
        assert after[0] <= before[0]
        assert after[1] <= before[1]
        for step in expand(graph, kept).steps:
            if isinstance(step, Compute) and step.drop:
                assert set(step.drop) < set(graph.op(step.op).creates)
