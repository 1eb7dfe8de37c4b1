"""Constraint programming finds what brute force finds, and proves it."""

import itertools
from collections.abc import Iterator

import pytest

from benchmarks.ranks import units
from tightrope.core import TightropeError
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline import Action, DeadlockError, folded, looped, lower, simulate, with_wires
from tightrope_ranks.pipeline.exact import exact_orders
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline
from tightrope_ranks.values.ranks import StageWork

pytest.importorskip("ortools")
MACHINE = units.machine(0.25)


def rows(work: StageWork, rank: int, split: bool) -> Iterator[tuple[Action, ...]]:
    """All orders of a rank in which a computation comes behind those of its own that it needs."""
    kinds = ("F", "I", "W") if split else ("F", "B")
    own = [Action(s, k, m) for s in work.local(rank) for k in kinds for m in range(work.num_micro_batches)]

    def grow(row: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
        if len(row) == len(own):
            yield row
        for one in own:
            before = kinds[: kinds.index(one.kind)]
            if one not in row and all(Action(one.stage, k, one.micro_batch) in row for k in before):
                yield from grow((*row, one))

    return grow(())


def brute(work: StageWork, budget: int, split: bool) -> int:
    """The least time of all orders that fit, with receives posted at several places; 0 = none fits."""
    best = 0
    for orders in itertools.product(*(list(rows(work, rank, split)) for rank in range(work.num_ranks))):
        for ahead in (1, 2, 1 << 20):
            try:
                found = simulate(work, MACHINE, with_wires(work, orders, ahead=ahead))
            except DeadlockError:
                break
            if (not budget or max(found.peaks) <= budget) and (not best or found.ns < best):
                best = found.ns
    return best


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("owners", "micro", "split"),
    [(looped(2, 1), 2, False), (looped(2, 1), 2, True), (folded(2), 1, False), (looped(1, 2), 2, False)],
)
@pytest.mark.parametrize("share", [0.0, 0.8])
def test_it_meets_brute_force(owners: tuple[int, ...], micro: int, split: bool, share: float) -> None:
    work = units.work(owners, 4, micro, reduce=0.5, replicas=2)
    free = exact_orders(work, MACHINE, split=split)
    budget = round(share * free.peak)
    found = exact_orders(work, MACHINE, budget=budget, split=split)
    best = brute(work, budget, split)
    assert found.ns == best
    assert found.ns_bound <= best or found.infeasible
    if found.orders:
        assert found.proved
        assert judge_ranks(lower(work, MACHINE, found.wired)).ns == best


def test_no_plan_of_the_search_is_faster() -> None:
    layers = units.work(looped(1, 6), 6, 3).stages
    work = units.work(looped(3, 1), 6, 3)
    task = PipelineTask(layers, MACHINE, 3, 3)
    options = PipelineOptions((1,), fold=False, again=False, seconds=1.0)
    planned = plan_pipeline(task, options)
    found = exact_orders(work, MACHINE, split=True)
    assert found.ns_bound <= found.ns <= planned.ns or not found.proved
    assert found.ns_bound <= planned.ns


def test_its_orders_ascend_and_hold_every_computation() -> None:
    work = units.work(looped(2, 2), 4, 3)
    found = exact_orders(work, MACHINE)
    for rank, row in enumerate(found.orders):
        assert len(row) == 2 * 3 * len(work.local(rank))
        for stage, kind in itertools.product(work.local(rank), "FB"):
            assert [a.micro_batch for a in row if (a.stage, a.kind) == (stage, kind)] == [0, 1, 2]


def test_what_fits_nowhere_is_proved_so() -> None:
    work = units.work(looped(2, 1), 4, 2)
    found = exact_orders(work, MACHINE, budget=work.held(0) + 100)
    assert found.infeasible
    assert found.orders == ()


def test_large_pipelines_and_divided_parameters_are_refused() -> None:
    with pytest.raises(TightropeError, match="at most 200"):
        exact_orders(units.work(looped(4, 4), 16, 16), MACHINE)
    with pytest.raises(TightropeError, match="divided parameters"):
        exact_orders(units.work(looped(2, 1), 2, 2, replicas=2, sharded=True), MACHINE)


def test_the_planner_takes_what_is_proved() -> None:
    layers = units.work(looped(1, 4), 4, 3).stages
    task = PipelineTask(layers, MACHINE, 2, 3)
    off = PipelineOptions((1,), fold=False, listing=False, shipped=False, improve=False, again=False)
    exact = PipelineOptions(
        (1,), fold=False, listing=False, shipped=False, improve=False, again=False, exact=True
    )
    plan, best = plan_pipeline(task, exact), exact_orders(units.work(looped(2, 1), 4, 3), MACHINE, split=True)
    assert judge_ranks(plan).ns == plan.ns == best.ns <= plan_pipeline(task, off).ns
    assert best.proved
