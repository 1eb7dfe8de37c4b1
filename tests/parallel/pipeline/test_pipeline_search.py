"""The planner: what it returns fits, is judged right, and is not slower than what is known."""

from itertools import permutations, product

import pytest

from benchmarks.ranks import units
from tightrope.core import InfeasibleError
from tightrope.judge.ranks import judge_ranks
from tightrope.parallel.pipeline import Action, DeadlockError, looped, simulate, with_wires
from tightrope.parallel.pipeline.emit import orders_of
from tightrope.parallel.pipeline.search import (
    PipelineOptions,
    PipelineTask,
    bound,
    plan_pipeline,
    smallest,
    staged,
)

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
        (1,), fold=False, split=False, again=False, listing=False, improve=False, ascending=True
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
