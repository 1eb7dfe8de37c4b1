"""The planner: what it returns fits, is judged right, and is not slower than what is known."""

from itertools import permutations, product

import pytest

from benchmarks.ranks import units
from tightrope.core import InfeasibleError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline import Action, DeadlockError, looped, simulate, with_wires
from tightrope_ranks.pipeline.bounds import bound
from tightrope_ranks.pipeline.emit import orders_of
from tightrope_ranks.pipeline.search import (
    PipelineOptions,
    PipelineTask,
    placements,
    plan_pipeline,
    smallest,
    staged,
)
from tightrope_ranks.pipeline.starts import bare, shipped

QUICK = PipelineOptions(seconds=1.0)


def task(
    ranks: int = 4, micro: int = 6, *, budget: int = 0, layers: int = 8, sharded: bool = False
) -> PipelineTask:
    costs = units.work(looped(1, layers), layers, micro, gather=1, reduce=1, replicas=2).stages
    return PipelineTask(costs, units.machine(0.25), ranks, micro, budget, 2 if sharded else 1, sharded)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_plan_fits_is_right_and_honours_its_bound(sharded: bool) -> None:
    free = plan_pipeline(task(sharded=sharded), QUICK)
    assert judge_ranks(free).ns >= free.ns_bound
    peak = max(rank.peak for rank in free.ranks)
    tight = plan_pipeline(task(budget=peak * 3 // 4, sharded=sharded), QUICK)
    assert max(judge_ranks(tight).peaks) <= peak * 3 // 4
    assert free.ns <= tight.ns


def test_a_budget_below_all_is_refused_with_figures() -> None:
    with pytest.raises(InfeasibleError, match="too little for 4 ranks") as refused:
        plan_pipeline(task(budget=100), QUICK)
    assert refused.value.lower_bound == smallest(task()) <= (refused.value.smallest_found or 0)


def test_every_technique_can_be_switched_off() -> None:
    off = PipelineOptions(
        (1,),
        fold=False,
        split=False,
        again=False,
        listing=False,
        shipped=False,
        improve=False,
        ascending=True,
    )
    plan = plan_pipeline(task(), off)
    assert {action.kind for row in orders_of(plan) for action in row} <= {
        "F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD",
    }  # fmt: skip
    assert plan.ns >= plan_pipeline(task(), QUICK).ns


def test_nothing_is_faster_than_the_bound_on_two_ranks() -> None:
    """Every order of whole backwards of two micro-batches on two ranks, by brute force."""
    work = staged(task(2, 2, layers=2), looped(2, 1))
    machine = units.machine(0.25)
    rows = [
        [
            order
            for order in permutations([Action(rank, kind, m) for kind in "FB" for m in range(2)])
            if all(order.index(Action(rank, "F", m)) < order.index(Action(rank, "B", m)) for m in range(2))
        ]
        for rank in range(2)
    ]
    best = 1 << 60
    for pair in product(*rows):
        try:
            best = min(best, simulate(work, machine, with_wires(work, pair)).ns)
        except DeadlockError:
            continue
    assert bound(work, machine) <= best
    found = plan_pipeline(
        task(2, 2, layers=2), PipelineOptions((1,), fold=False, split=False, again=False, seconds=2)
    )
    assert found.ns == best


def test_computing_again_goes_below_what_any_order_keeps() -> None:
    keep = PipelineOptions(again=False, seconds=1.0)
    with pytest.raises(InfeasibleError) as refused:
        plan_pipeline(task(budget=1), keep)
    least = refused.value.smallest_found or 0
    with pytest.raises(InfeasibleError) as further:
        plan_pipeline(task(budget=1), QUICK)
    assert (further.value.smallest_found or 0) < least


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("share", [1.0, 1.5, 4.0])
def test_no_schedule_of_torch_that_fits_is_faster(sharded: bool, share: float) -> None:
    """Also where the search has no time at all: torch's are tried whatever that takes."""
    free = task(micro=8, sharded=sharded)
    known = [
        simulate(work, free.machine, wired)
        for work in (staged(free, owners) for owners in placements(free, PipelineOptions()))
        for _, wired in shipped(work)
    ]
    assert len(known) == 7
    budget = round(share * min(max(one.peaks) for one in known))
    asked = task(micro=8, budget=budget, sharded=sharded)
    fits = [one.ns for one in known if max(one.peaks) <= budget]
    plan = plan_pipeline(asked, PipelineOptions(seconds=0.0))
    assert judge_ranks(plan).ns == plan.ns <= min(fits)


def test_schedules_of_torch_obey_what_is_switched_off() -> None:
    only = PipelineOptions(seconds=0.0, split=False, ascending=True)
    plan = plan_pipeline(task(), only)
    rows = [bare((row,))[0] for row in orders_of(plan)]
    assert {action.kind for row in rows for action in row} == {"F", "B"}
    for row in rows:
        backs = [action for action in row if action.kind == "B"]
        for stage in {action.stage for action in backs}:
            micros = [action.micro_batch for action in backs if action.stage == stage]
            assert micros == sorted(micros)
