"""Jobs: no machine overfull, nothing from the future, equal to the best where small, judged."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet.jobs import least, small
from tightrope.core import JudgeError, TightropeError
from tightrope_fleet.jobs import (
    RULES,
    LifetimeTable,
    Oracle,
    best_placement,
    machine_time_bound,
    made_up_jobs,
    place_jobs,
)
from tightrope_fleet.jobs.show import draw_jobs, draw_occupancy, job_promises, job_trace
from tightrope_fleet.jobs.traces import POD_MACHINE
from tightrope_fleet.judge.jobs import check_jobs
from tightrope_fleet.values.jobs import check_items
from tightrope_fleet.values.work import WorkItem

EVERY = (*RULES, "hedged", "trusting")


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_method_is_brute_force(seed: int) -> None:
    items = small(seed)[:7]
    plan = best_placement(items, (10, 10))
    check_jobs(items, plan)
    assert plan.machine_time == least(items, (10, 10))


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from(EVERY), st.sampled_from((0.0, 1.0, 3.0)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_machine_is_ever_overfull(seed: int, rule: str, sigma: float, again: bool) -> None:
    items = small(seed)
    plan = place_jobs(
        items, (10, 10), rule=rule, predictor=Oracle(items, sigma=sigma, seed=seed), again=again, seed=seed
    )
    check_jobs(items, plan)
    assert plan.machine_time >= best_placement(items, (10, 10)).machine_time >= plan.lower_bound


@pytest.mark.parametrize("rule", EVERY)
def test_decisions_do_not_look_ahead_and_repeat(rule: str) -> None:
    jobs = made_up_jobs(300, seed=3)
    plans = [
        place_jobs(items, jobs.capacity, rule=rule, predictor=_learned(jobs.features, len(items)))
        for items in (jobs.items, jobs.items, jobs.items[:200])
    ]
    assert plans[0] == plans[1]
    assert plans[2].hosts == plans[0].hosts[:200]


def test_predictions_are_followed_as_far_as_they_are_right() -> None:
    jobs = made_up_jobs(2000, seed=5, days=0.3)

    def machine_time(rule: str, sigma: float) -> int:
        predictor = Oracle(jobs.items, sigma=sigma, seed=1)
        return place_jobs(jobs.items, jobs.capacity, rule=rule, predictor=predictor).machine_time

    assert machine_time("trusting", 0.0) < machine_time("best-fit", 0.0)
    assert machine_time("trusting", 4.0) == machine_time("best-fit", 0.0)


def test_trust_wants_predictions() -> None:
    with pytest.raises(TightropeError, match="'trusting' looks at predicted ends"):
        place_jobs(made_up_jobs(3).items, POD_MACHINE, rule="trusting")


def _learned(features: tuple[tuple[str, ...], ...], count: int) -> LifetimeTable:
    history = made_up_jobs(400, seed=3)
    table = LifetimeTable(features[:count])
    table.learn(history.items, history.features)
    return table


def test_true_ends_take_less_machine_time_than_best_fit() -> None:
    jobs = made_up_jobs(2500, seed=1)
    until = jobs.items[-1].start
    best = place_jobs(jobs.items, jobs.capacity, rule="best-fit", until=until)
    known = place_jobs(jobs.items, jobs.capacity, predictor=Oracle(jobs.items), until=until)
    assert known.lower_bound == best.lower_bound
    assert known.machine_time < best.machine_time


def test_too_few_machines_refuse_jobs() -> None:
    items = [WorkItem(str(n), (6,), 0, 10) for n in range(3)]
    plan = place_jobs(items, (10,), rule="first-fit", most_hosts=2)
    check_jobs(items, plan)
    assert plan.num_refused == 1
    assert [one.holds for one in job_promises(plan)] == [True, False, True]
    assert [event.kind for event in job_trace(items, plan).events] == ["run", "run", "refuse"]
    assert "<svg" in draw_jobs(items, plan)
    assert "polyline" in draw_occupancy(items, plan)


def test_the_bound_counts_the_scarcest_resource() -> None:
    items = [WorkItem("a", (6, 1), 0, 10), WorkItem("b", (6, 1), 5, 15)]
    assert machine_time_bound(items, (10, 10)) == 5 + 10 + 5
    assert machine_time_bound(items, (10, 10), 12) == 5 + 10 + 2


@pytest.mark.parametrize(
    ("items", "capacity", "said"),
    [
        ([WorkItem("a", (1,), 5, 5)], (1,), "must begin before it ends"),
        ([WorkItem("a", (2,), 0, 5)], (1,), "more than a machine has"),
        ([WorkItem("a", (-1,), 0, 5)], (1,), "none below 0"),
        ([WorkItem("a", (1, 1), 0, 5)], (1,), "give 1 sizes"),
        ([WorkItem("a", (1,), 4, 5), WorkItem("b", (1,), 3, 5)], (1,), "sort by start"),
        ([], (-3,), "capacity=(-3,)"),
    ],
)
def test_jobs_that_cannot_be_are_named(items: list[WorkItem], capacity: tuple[int, ...], said: str) -> None:
    with pytest.raises(TightropeError) as caught:
        check_items(tuple(items), capacity)
    assert said in str(caught.value)


def test_rules_that_predict_need_a_predictor() -> None:
    for rule in ("aligned", "hedged"):
        with pytest.raises(TightropeError, match="give a predictor"):
            place_jobs([], (1,), rule=rule)
    with pytest.raises(TightropeError, match="there are: first-fit"):
        place_jobs([], (1,), rule="luck")
    with pytest.raises(TightropeError, match="at most 14"):
        best_placement([WorkItem(str(n), (1,), n, n + 1) for n in range(15)], (1,))


def test_the_judge_refuses_what_is_wrong() -> None:
    items = list(made_up_jobs(200, seed=5).items)
    plan = place_jobs(items, (96_000, 393_216, 8_000), rule="best-fit")
    check_jobs(items, plan)
    replace = msgspec.structs.replace
    wrong = [
        replace(plan, hosts=(0,) * len(items)),
        replace(plan, hosts=plan.hosts[:-1]),
        replace(plan, hosts=(-1, *plan.hosts[1:])),
        replace(plan, most_hosts=1),
        replace(plan, machine_time=plan.machine_time - 1),
        replace(plan, lower_bound=plan.lower_bound + 1),
        replace(plan, lower_bound=plan.lower_bound - 1),
        replace(plan, peak=plan.peak - 1),
        replace(plan, until=100),
    ]
    for number, one in enumerate(wrong):
        assert _refused(lambda one=one: check_jobs(items, one)), number


def _refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except JudgeError:
        return True
    return False


def test_tables_predict_from_the_most_specific_group_and_again_from_survivors() -> None:
    draw = random.Random(0)
    items = [WorkItem(str(n), (1,), 0, 10 if n % 2 else 1000 + draw.randrange(10)) for n in range(200)]
    features = [("odd" if n % 2 else "even",) for n in range(200)]
    table = LifetimeTable([("odd",), ("even",), ("new",)])
    table.learn(items, features)
    late = WorkItem("late", (1,), 50, 51)
    assert table.ends(0, late)[8] == 60
    assert table.ends(1, late)[8] >= 1050
    assert table.ends(2, late)[0] == 60
    assert table.again(2, late, 100) >= 1050
    assert table.again(0, late, 5000) == 5000 + 4950
