"""Plans under a budget: brute force, the judge, monotone time, refusals, determinism."""

from pathlib import Path

import msgspec
import pytest

import oracles
from tightrope.core import (
    Allocation,
    Flag,
    Graph,
    InfeasibleError,
    Limits,
    NativeError,
    Op,
    PlanFileError,
    Storage,
    TightropeError,
)
from tightrope.judge.bound import lower_bound as judged_bound
from tightrope.lower import problems
from tightrope.native.interface import load
from tightrope.plan import PLANNERS, Options, PlanCache, Progress, lower_bound, smallest, solve
from tightrope.plan.anneal import _PairSearch
from tightrope.plan.cache import graph_key
from tightrope.plan.engine import open_solver
from tightrope.plan.job import Job
from tightrope.plan.model import build, pairs_of


def chain(num_layers: int = 12, *, size: int = 6400) -> Graph:
    """Draw a forward and backward over equal layers; gradients of weights stay."""
    ops: list[Op] = []
    storages: list[Storage] = []

    def make(name: str, reads: tuple[int, ...], *, resident: bool = False, temporary: int = 0) -> int:
        storage = len(storages)
        storages.append(Storage(storage, 64 if resident else size, resident_at_end=resident))
        rows = (Allocation(storages[-1].bytes, storage, 0), Allocation(temporary, -1, 1, 2))
        allocations = rows if temporary else ()
        target = f"aten.{name}"
        ops.append(
            Op(len(ops), f"{name}{storage}", target, reads, (storage,), ns=1000, allocations=allocations)
        )
        return storage

    acts = [make("input", ())]
    for _ in range(num_layers):
        acts.append(make("layer", (acts[-1],)))
    grad = make("loss", (acts[-1],))
    for layer in range(num_layers, 0, -1):
        make("weight_grad", (acts[layer - 1], grad), resident=True, temporary=512)
        grad = make("input_grad", tuple(sorted((acts[layer], grad))))
    return Graph(tuple(ops), tuple(storages), name="chain")


def test_the_smallest_plan_recomputes_from_far_back() -> None:
    graph = oracles.trunk(60)
    least = smallest(graph)
    assert least.budget == lower_bound(graph)[0] == oracles.WIDE
    assert solve(graph, budget=least.budget).forecast.total == least.budget


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(25))
def test_annealing_equals_brute_force(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=6)
    most = min(len(oracles.allowed_pairs(graph)), 4)
    peaks = sorted({oracles.evaluate(graph, s)[0] for s in oracles.every_set(graph, 2)})
    for capacity in (peaks[0], peaks[len(peaks) // 2], peaks[-1]):
        outside = sum(s.size for s in graph.storages if s.outside)
        limits = Limits(bytes=(graph.persistent + outside + capacity,))
        pairs = pairs_of(graph, PLANNERS["anneal"](graph, None, limits, Options(seed=seed)))
        peak, ns = oracles.evaluate(graph, pairs)
        best = oracles.best_time(graph, capacity, size=most)
        assert best is not None
        assert peak <= capacity + outside
        if outside == 0:
            assert peak <= capacity
            assert ns <= best
            assert ns == best or len(pairs) > most


@pytest.mark.parametrize("planner", ["given", "greedy", "anneal"])
def test_no_planner_beats_brute_force(planner: str) -> None:
    for seed in range(6):
        graph = oracles.random_graph(seed, num_ops=5)
        total = graph.persistent + sum(s.size for s in graph.storages if s.outside)
        peak = oracles.evaluate(graph, ())[0]
        options = Options()
        for percent in (100, 85, 70):
            capacity = peak * percent // 100
            limits = Limits(bytes=(total + capacity,))
            schedule = PLANNERS[planner](graph, None, limits, options)
            live, ns = oracles.evaluate(graph, pairs_of(graph, schedule))
            best = oracles.best_time(graph, capacity, size=10)
            assert live > capacity or (best is not None and ns >= best)
            assert percent < 100 or ns == graph.base_ns


@pytest.mark.parametrize("seed", range(12))
def test_plans_pass_the_judge(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=12)
    least = smallest(graph, seed=seed)
    assert problems(graph, least) == []
    assert least.budget == least.forecast.total >= lower_bound(graph)[0]
    plan = solve(graph, budget=least.budget, seed=seed)
    assert problems(graph, plan) == []
    assert plan.forecast.ns <= least.forecast.ns


@pytest.mark.parametrize("seed", range(20))
def test_bound_holds_and_the_judge_agrees(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=6)
    bound, witness = lower_bound(graph)
    assert (bound, witness) == judged_bound(graph)
    lowest = min(oracles.evaluate(graph, s, arena_only=False)[0] for s in oracles.every_set(graph, 3))
    assert bound <= graph.persistent + lowest


def test_time_never_rises_with_the_budget() -> None:
    graph, cache = chain(), PlanCache()
    least, base = smallest(graph).budget, solve(graph, budget=2**40).forecast.total
    budgets = [least + (base - least) * i // 19 for i in range(20)]
    times = [solve(graph, budget=budget, cache=cache).forecast.ns for budget in budgets]
    assert times == sorted(times, reverse=True)
    assert times[-1] == graph.base_ns < times[0]
    assert least < base // 2


def test_cache_answers_again_and_survives_in_a_folder(tmp_path: Path) -> None:
    graph = chain()
    budget = solve(graph, budget=2**40).forecast.total * 6 // 10
    first = solve(graph, budget=budget, cache=PlanCache(tmp_path))
    assert solve(graph, budget=budget, cache=PlanCache(tmp_path)) == first
    larger = PlanCache(tmp_path).best(graph, budget=budget + 1)
    assert larger == first
    assert PlanCache(tmp_path).best(graph, budget=first.forecast.total - 1) is None
    next(tmp_path.glob("*/*.json")).write_text("{}")
    with pytest.raises(PlanFileError):
        solve(graph, budget=budget, cache=PlanCache(tmp_path))


def test_a_cache_that_cannot_write_leaves_nothing_behind(tmp_path: Path) -> None:
    graph, cache = chain(), PlanCache(tmp_path)
    plan = solve(graph, budget=2**40, cache=cache)
    taken = tmp_path / graph_key(graph) / f"given-{plan.budget}.json"
    taken.mkdir(parents=True, exist_ok=True)
    with pytest.raises(PlanFileError, match="Choose another cache folder"):
        cache.store(graph, plan, planner="given")
    assert not list(taken.parent.glob(".plan-*"))


def test_equal_calls_give_equal_plans() -> None:
    graph = oracles.random_graph(3, num_ops=30)
    budget = (solve(graph, budget=2**40).forecast.total + lower_bound(graph)[0]) // 2
    try:
        assert solve(graph, budget=budget, seed=5) == solve(graph, budget=budget, seed=5)
    except InfeasibleError as error:
        with pytest.raises(InfeasibleError, match=str(error.smallest_found)):
            solve(graph, budget=budget, seed=5)


def test_refusal_says_what_is_possible() -> None:
    graph = chain()
    with pytest.raises(
        InfeasibleError, match=r"asked 10\.00 KiB; smallest feasible found .*aten\."
    ) as caught:
        solve(graph, budget=10240)
    error = caught.value
    assert error.asked == 10240
    assert error.lower_bound == lower_bound(graph)[0]
    assert error.smallest_found is not None
    assert error.smallest_found >= error.lower_bound > 10240
    assert "aten." in error.op
    plan = solve(graph, budget=error.smallest_found)
    assert problems(graph, plan) == []


def test_given_planner_never_recomputes() -> None:
    graph = chain()
    base = solve(graph, budget=2**40, planner="given")
    assert base.certificate.proved
    assert {reason.decision for reason in base.reasons} == {"kept"}
    with pytest.raises(InfeasibleError, match="without recomputation"):
        solve(graph, budget=base.forecast.total - 64, planner="given")


def test_arguments_are_checked() -> None:
    graph = chain(2)
    with pytest.raises(TightropeError, match="no planner 'best'; there are: auto, given, greedy, anneal"):
        solve(graph, budget=100, planner="best")
    with pytest.raises(TightropeError, match="budget=0: give a number of bytes above 0"):
        solve(graph, budget=0)


def test_reasons_name_costs_and_bytes() -> None:
    graph = chain()
    base = solve(graph, budget=2**40)
    plan = solve(graph, budget=base.forecast.total * 6 // 10)
    texts = {reason.decision: reason.text for reason in plan.reasons}
    assert "1.00 us each buys 6.25 KiB" in texts["recomputed"]
    assert any(
        "takes 1.00 us by itself and would free 6.25 KiB" in r.text
        for r in plan.reasons
        if r.decision == "kept"
    )
    assert problems(graph, plan) == []


def test_progress_is_told_and_more_seconds_are_no_worse() -> None:
    graph, told = chain(20), list[Progress]()
    budget = solve(graph, budget=2**40).forecast.total // 2
    plain = solve(graph, budget=budget)
    longer = solve(graph, budget=budget, seconds=1.5, progress=told.append)
    assert longer.forecast.ns <= plain.forecast.ns
    assert told
    assert all(p.budget == budget and p.message for p in told)
    assert told[-1].best_ns is not None
    assert len(told) < 30


def test_interrupt_keeps_the_best_plan() -> None:
    graph = chain(20)
    budget = solve(graph, budget=2**40).forecast.total // 2

    def stop(progress: Progress) -> None:
        if progress.best_ns is not None:
            raise KeyboardInterrupt

    plan = solve(graph, budget=budget, seconds=30, progress=stop)
    assert plan.forecast.total <= budget


def test_interrupt_before_any_plan_is_passed_on() -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    graph = chain(20)
    with pytest.raises(KeyboardInterrupt):
        solve(graph, budget=lower_bound(graph)[0], progress=stop)


def test_replay_runs_instead_of_the_random_op() -> None:
    ops = (
        Op(0, "x", "aten.randn", creates=(0,), flags=Flag.RANDOM, ns=5),
        Op(1, "d", "aten.dropout", (0,), (1, 2), flags=Flag.RANDOM, variant=5, ns=5),
        Op(2, "big", "aten.big", creates=(3,), ns=5),
        Op(3, "use", "aten.use", (3,), (4,), ns=5),
        Op(4, "end", "aten.end", (1, 4), (5,), ns=5),
    )
    again = Op(5, "again", "aten.mul", (0, 2), (1,), ns=2)
    sizes = (64, 6400, 64, 6400, 64, 64)
    storages = tuple(Storage(i, size, resident_at_end=i in (0, 5)) for i, size in enumerate(sizes))
    graph = Graph(ops, storages, (again,))
    plan = solve(graph, budget=6400 + 5 * 64)
    assert plan.schedule.computes() == (0, 1, 2, 3, 5, 4)
    assert problems(graph, plan) == []


def test_a_search_without_its_native_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = smallest(chain()).budget * 11 // 10
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tightrope.native.solvers.solver._library", lambda: load("solver"))
    monkeypatch.setattr("tightrope.native.build.prebuilt", lambda _: None)
    monkeypatch.setattr("tightrope.core.plugins.installed", lambda _: {})
    with pytest.raises(
        NativeError, match=r"no C\+\+ compiler found for solver.cpp .* Install one.*\[planners\]"
    ):
        solve(chain(), budget=budget)


@pytest.mark.parametrize(("num_layers", "worth"), [(12, True), (80, False)])
def test_addresses_are_looked_for_again_only_where_enough_time_is_gained(
    num_layers: int, worth: bool
) -> None:
    graph = chain(num_layers)
    plan = solve(graph, budget=2**40, planner="given")
    job = Job(graph, plan.forecast.total - 1, None, Options())
    job.best = msgspec.structs.replace(
        plan, forecast=msgspec.structs.replace(plan.forecast, ns=plan.forecast.ns + 1)
    )
    job.budget = plan.forecast.persistent + plan.forecast.peak
    wide = msgspec.structs.replace(plan.forecast, arena=plan.forecast.arena + 64)
    missed = msgspec.structs.replace(plan, forecast=wide)
    assert job._faster(missed) == worth


@pytest.mark.parametrize(("fresh", "num_cycles"), [(True, 2), (False, 1)])
def test_a_known_set_is_improved_by_one_cycle(
    fresh: bool, num_cycles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain()
    whole = solve(graph, budget=2**40, planner="given").forecast
    limit = whole.persistent + whole.peak * 3 // 4
    known = pairs_of(graph, solve(graph, budget=limit, placed=False).schedule)
    cycles: list[int] = []
    monkeypatch.setattr(_PairSearch, "_cycle", lambda _, restart: bool(cycles.append(restart)))
    model = build(graph)
    options = Options(fresh=fresh, start=known)
    search = _PairSearch(open_solver(model), model, limit - graph.persistent, options, known)
    search.consider(known)
    search.run()
    assert len(cycles) == num_cycles
