"""Page-ins beside re-runs: valid for the judge whatever the set, and forecast to the byte."""

import random

import pytest
from msgspec.structs import replace

from tests.judge.families import FAMILIES, possible_pairs
from tightrope.core import Graph, Machine, Op, PageIn, PageOut, Storage, Tier, TightropeError
from tightrope.lower import lower, lowered, problems, simulate, walked
from tightrope.plan.assemble import assemble
from tightrope.plan.paging.schedule import Page, expand_paged, pageable, useful_paged
from tightrope.plan.reasons import reasons


def machine(engines: int, *, capacity: int = 2**20, toll: float = 3e-10) -> Machine:
    slow = Tier("slow", capacity, 16, read=2e9, write=1e9, latency=1e-8, watts=3.0, toll=toll)
    slow = replace(slow, engines=engines)
    return Machine("two tiers", (Tier("fast", 2**20), slow), watts=0.5)


def drawn(graph: Graph, seed: int) -> tuple[list[tuple[int, int]], list[Page]]:
    rng = random.Random(seed)
    producer = {s: op.id for op in graph.ops for s in op.creates}
    pairs = [pair for pair in possible_pairs(graph) if rng.random() < 0.1]
    can = pageable(graph)
    places = [
        Page(t, s, rng.randrange(3))
        for s in range(len(graph.storages))
        if can[s]
        for t in range(producer[s] + 1, len(graph.ops))
    ]
    return pairs, [page for page in places if rng.random() < 0.15]


@pytest.mark.few(6)
@pytest.mark.parametrize("engines", [0, 1, 2])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_set_is_valid_and_forecast_exactly(family: str, engines: int) -> None:
    num_paged = 0
    for seed in range(25):
        graph = FAMILIES[family](seed)
        pairs, pages = useful_paged(graph, *drawn(graph, seed))
        of = machine(engines)
        schedule = expand_paged(graph, pairs, pages, beside=engines > 0)
        plan = assemble(graph, schedule, budget=None, machine=of)
        plan = type(plan)(
            **{f: getattr(plan, f) for f in plan.__struct_fields__} | {"reasons": reasons(graph, plan, of)}
        )
        lowered(graph, plan, of)
        cost, walk = simulate(lower(graph, schedule, of), of), walked(graph, schedule, of)
        assert (cost.ns, cost.tiers) == (walk.ns, walk.tiers)
        assert cost.joules == pytest.approx(walk.joules, rel=1e-12)
        num_paged += sum(isinstance(step, PageIn) for step in schedule.steps)
        again_runs = len(schedule.computes()) - len(graph.ops)
        assert again_runs == len(pairs)
        assert sum(isinstance(step, PageOut) for step in schedule.steps) == len(
            {page.storage for page in pages}
        )
    assert num_paged > 20


def test_copies_take_their_toll_from_what_runs_beside_them() -> None:
    graph = FAMILIES["chain"](0)
    pairs, pages = useful_paged(graph, *drawn(graph, 0))
    assert pages
    for engines in (0, 1, 2):
        schedule = expand_paged(graph, pairs, pages, beside=engines > 0)
        free, dear = (machine(engines, toll=toll) for toll in (0.0, 1e-6))
        executable = lower(graph, schedule, free)
        copied = sum(
            1000 * graph.storages[step.storage].bytes
            for step in schedule.steps
            if isinstance(step, PageIn | PageOut)
        )
        least, most = (simulate(executable, of).ns for of in (free, dear))
        assert most <= least + copied
        assert (most > least) == (engines > 0)


def test_what_nobody_reads_is_left_out() -> None:
    graph = FAMILIES["chain"](0)
    can = pageable(graph)
    storage = next(s for op in graph.ops for s in op.creates if can[s])
    last = max(op.id for op in graph.ops if storage in op.reads)
    useless = Page(len(graph.ops) - 1, storage)
    assert last < useless.stage
    assert useful_paged(graph, (), [Page(last, storage), useless]) == ((), (Page(last, storage),))


def test_a_re_run_that_only_a_page_out_reads_stays() -> None:
    ops = (
        Op(0, "a", "a", creates=(0,)),
        *(Op(k, "b", "b", reads=(0,) if k == 1 else (), creates=(k,)) for k in range(1, 5)),
        Op(5, "c", "c", reads=(0,), creates=(5,)),
    )
    graph = Graph(ops, tuple(Storage(k, 64) for k in range(6)))
    chosen = ((3, 0),), (Page(5, 0),)
    assert useful_paged(graph, *chosen) == chosen
    kinds = [type(step).__name__ for step in expand_paged(graph, *chosen, beside=True).steps]
    assert kinds.index("PageOut") > kinds.index("Free")  # the copy of the re-run is what is written out


def test_a_plan_with_a_page_out_left_out_is_refused() -> None:
    graph = FAMILIES["chain"](1)
    pairs, pages = useful_paged(graph, *drawn(graph, 1))
    plan = assemble(graph, expand_paged(graph, pairs, pages), budget=None, machine=machine(0))
    outs = [i for i, step in enumerate(plan.schedule.steps) if isinstance(step, PageOut)]
    assert outs
    for out in outs:
        steps = plan.schedule.steps[:out] + plan.schedule.steps[out + 1 :]
        with pytest.raises(TightropeError):
            walked(graph, type(plan.schedule)(steps), machine(0))


def test_a_slower_tier_that_is_too_small_is_refused() -> None:
    graph = FAMILIES["chain"](1)
    pairs, pages = useful_paged(graph, *drawn(graph, 1))
    plan = assemble(graph, expand_paged(graph, pairs, pages), budget=None, machine=machine(0))
    (held,) = plan.forecast.tiers
    assert not problems(graph, plan, machine(0, capacity=held))
    assert "slow" in problems(graph, plan, machine(0, capacity=held - 16))[0]
