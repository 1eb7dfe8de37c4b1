"""Joint recomputation and paging: the search against brute force."""

import random
from itertools import chain, combinations

import pytest

from tests.judge.families import FAMILIES, Sketch, possible_pairs
from tests.plan.test_paging import drawn, machine
from tightrope.core import Graph, InfeasibleError, Limits, Machine, Tier, TightropeError
from tightrope.lower import lowered, walked
from tightrope.native.solvers.paging import PagingGoal, PagingSolver
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.options import Options
from tightrope.plan.paging.model import PagedSet, tables
from tightrope.plan.paging.schedule import Page, expand_paged, pageable, useful_paged
from tightrope.plan.paging.search import PagingKnobs, paged_schedule, paging, plan_paging, search_paged
from tightrope.plan.schedule import base_schedule

FEW = Options(effort=0.02, restarts=1)


def small(seed: int, depth: int = 3) -> Graph:
    """Up to ``depth`` ops forward, as many backward that read the forward's results, perhaps a skip."""
    rng = random.Random(seed)
    sketch = Sketch(rng)
    made = [sketch.op((), 1).creates[0]]
    for _ in range(rng.choice((depth - 2, depth - 1, depth - 1))):
        made += sketch.op({made[-1], rng.choice(made)}, 1).creates
    flow = made[-1]
    for storage in reversed(made):
        (flow,) = sketch.op({flow, storage}, 1).creates
    sketch.mark(flow, resident_at_end=True)
    return sketch.graph()


def board(seed: int, *, engines: int = 0) -> Machine:
    rng = random.Random(seed)
    read = rng.choice((2e10, 1e11))
    slow = Tier("slow", 2**16, 64, read, write=5e10, latency=1e-9, watts=3.0, engines=engines)  # type: ignore[arg-type]
    return Machine("board", (Tier("fast", 2**20), slow), watts=rng.choice((1.0, 20.0)))


def choices(graph: Graph) -> list[tuple[int, int, int, int]]:
    producer = {s: op.id for op in graph.ops for s in op.creates}
    can = pageable(graph)
    last = {s: max((op.id for op in graph.ops if s in op.reads), default=-1) for s in producer}
    pairs = [(t, 0, u, 0) for t, u in possible_pairs(graph)]
    return pairs + [(t, 1, s, 0) for s in producer if can[s] for t in range(producer[s] + 2, last[s] + 1)]


def best_of_all(graph: Graph, of: Machine, limits: Limits, *, joules: bool) -> float | None:
    """Measure every set of at most 4 decisions."""
    solver = PagingSolver(tables(graph, of))
    values = []
    limit = limits.bytes[0] - graph.persistent
    options = choices(graph)
    for chosen in chain.from_iterable(combinations(options, count) for count in range(5)):
        solver.load(chosen)
        state = solver.state(limit, of.tiers[1].bytes)
        if (
            not state.excess
            and not state.tier_excess
            and (limits.seconds is None or state.ns <= limits.seconds * 1e9)
        ):
            values.append(state.joules if joules else state.ns)
    return min(values, default=None)


def value(
    graph: Graph, of: Machine, chosen: PagedSet | None, limits: Limits, *, joules: bool
) -> float | None:
    """Judge a set, and check that it keeps the limits."""
    if chosen is None:
        return None
    walk = walked(graph, paged_schedule(graph, of, chosen), of)
    assert walk.peak + graph.persistent <= limits.bytes[0]
    assert limits.seconds is None or walk.ns <= limits.seconds * 1e9
    return walk.joules if joules else walk.ns


def between(graph: Graph, share: float) -> int:
    """A budget between what the largest op needs and what the base order needs."""
    floor = lower_bound(graph)[0]
    return int(floor + share * (graph.persistent + _peak(graph) - floor))


def asked(graph: Graph, seed: int) -> Limits:
    rng = random.Random(seed)
    seconds = graph.base_ns * rng.choice((1.2, 2.0)) * 1e-9 if rng.random() < 0.5 else None
    return Limits((between(graph, rng.choice((0.2, 0.5, 0.8))),), seconds)


def _peak(graph: Graph) -> int:
    return assemble(graph, base_schedule(graph), budget=None, placed=False).forecast.peak


def test_the_search_finds_the_best_of_all_sets() -> None:
    for seed in range(6):
        graph, of = small(seed), board(seed)
        limits = asked(graph, seed)
        best = best_of_all(graph, of, limits, joules=False)
        found = search_paged(graph, of, limits, options=FEW)
        assert value(graph, of, found, limits, joules=False) == (best and pytest.approx(best, rel=1e-6))


@pytest.mark.slow
def test_what_is_found_is_never_dearer_than_a_start_or_than_one_way_alone() -> None:
    quick, compared = Options(effort=0.002, restarts=1), 0
    for seed in range(40):
        graph, of = small(seed, 10), board(seed)
        limits = asked(graph, seed)
        for recompute, pages in ((True, False), (False, True)):
            knobs = PagingKnobs(recompute=recompute, paging=pages)
            best = search_paged(graph, of, limits, knobs=knobs, options=Options(effort=0.1))
            start = () if best is None else (PagedSet(), best)
            values = []
            for switches in (knobs, PagingKnobs()):
                found = search_paged(graph, of, limits, knobs=switches, options=quick, start=start)
                values.append(value(graph, of, found, limits, joules=False) or float("inf"))
            if best is not None:
                compared += 1
                assert values[1] <= values[0] <= (value(graph, of, best, limits, joules=False) or 0)
    assert compared > 20


@pytest.mark.parametrize("engines", [0, 1, 2])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_search_measures_what_the_judge_measures(family: str, engines: int) -> None:
    for seed in range(12):
        graph, of = FAMILIES[family](seed), machine(engines)
        pairs, pages = useful_paged(graph, *drawn(graph, seed))
        schedule = expand_paged(graph, pairs, pages, beside=engines > 0)
        walk = walked(graph, schedule, of)
        arena = assemble(graph, schedule, budget=None, machine=of, placed=False).forecast.arena
        search = PagingSolver(tables(graph, of))
        search.load(PagedSet(pairs, pages).decisions())
        state = search.state(arena - 1, 0)
        assert (state.ns, state.peak) == (walk.ns, arena)
        assert state.tier_peak == sum(walk.tiers)
        assert state.joules == pytest.approx(walk.joules, rel=1e-9)
        assert (state.excess > 0, state.tier_excess > 0) == (True, bool(pages))


def test_copy_engines_hide_paging_behind_computing() -> None:
    graph, alone, beside = small(3, 10), board(3), board(3, engines=2)
    limits = Limits((between(graph, 0.5),))
    taken = [
        search_paged(graph, of, limits, knobs=PagingKnobs(recompute=False), options=FEW)
        for of in (alone, beside)
    ]
    times = [value(graph, of, s, limits, joules=False) for of, s in zip((alone, beside), taken, strict=True)]
    assert None not in times
    assert times[1] < times[0]  # type: ignore[operator]


def test_a_plan_is_placed_judged_and_explained() -> None:
    graph, of = small(5, 10), board(5)
    budget = between(graph, 0.5)
    plan = plan_paging(graph, machine=of, budget=budget, knobs=PagingKnobs(recompute=False), options=FEW)
    lowered(graph, plan, of)
    assert plan.forecast.total <= budget
    assert {reason.decision for reason in plan.reasons} == {"kept", "paged"}
    assert any("brought back" in reason.text for reason in plan.reasons)


def test_limits_that_nothing_keeps_are_refused_with_a_proved_bound() -> None:
    graph, of = small(5, 10), board(5)
    budget = between(graph, 0.3)
    with pytest.raises(InfeasibleError, match="nothing that fits was found") as refused:
        plan_paging(graph, machine=of, budget=budget, seconds=graph.base_ns * 1e-9, options=FEW)
    assert 0 < refused.value.lower_bound <= budget
    with pytest.raises(InfeasibleError, match="0 bytes of the slower tier"):
        plan_paging(
            graph, machine=of, budget=budget, tier_bytes=0, knobs=PagingKnobs(recompute=False), options=FEW
        )


def test_equal_seeds_give_equal_sets_and_a_goal_without_paging_pages_nothing() -> None:
    graph, of = small(7, 10), board(7)
    solver = PagingSolver(tables(graph, of))
    limit = between(graph, 0.5)
    sets = []
    for _ in range(2):
        solver.load(())
        solver.begin(PagingGoal(limit, 2**16, page=False), seed=3, iterations=3000)
        assert solver.run(1000) == 2000
        assert solver.run(5000) == 0
        sets.append(solver.best())
    assert sets[0] == sets[1]
    assert sets[0]
    assert not PagedSet.of(sets[0]).pages
    assert PagedSet((), (Page(4, 2, 1),)).decisions() == ((4, 1, 2, 1),)


def test_a_machine_without_a_slower_tier_is_refused() -> None:
    graph = FAMILIES["chain"](0)
    plain = Machine("plain", (Tier("ram", 2**20),))
    with pytest.raises(TightropeError, match="'plain' has one tier"):
        paging(graph, plain, Limits((2**20,)), FEW)
    with pytest.raises(TightropeError, match="no machine was given"):
        paging(graph, None, Limits((2**20,)), FEW)
