"""Costs from steps that ran, and the comparison of plans: on one rank, with made-up seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from torch import distributed

from tightrope.core.exchange import (
    CodecCost,
    ExchangeLimits,
    ExchangePlan,
    ExchangeProblem,
    GradientStream,
    Message,
)
from tightrope.judge.compress import check_exchange
from tightrope.parallel.compress import plan_exchange, seconds_of
from tightrope.parallel.compress.agree import PlanContest
from tightrope.parallel.compress.calibrate import line
from tightrope.parallel.compress.forecast import spans
from tightrope.parallel.compress.queue import MessageQueue
from tightrope.parallel.compress.refine import (
    NEAR,
    NEIGHBOURS,
    Rehearsal,
    StepSeen,
    compared,
    fitted,
    rehearsed,
)
from tightrope.parallel.compress.simple import CAPS, by_cap

SIZES = (40_000, 400, 400, 80_000, 400, 20_000, 400, 60_000)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageQueue]:
    meet: Path = tmp_path_factory.mktemp("one") / "meet"
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    found = MessageQueue()
    yield found
    found.close()
    distributed.destroy_process_group()


def problem(slower: float = 1.0) -> ExchangeProblem:
    """Two codecs; ``slower`` than they were measured alone."""
    num = len(SIZES)
    stream = GradientStream(tuple("abcdefgh"), SIZES, (2e-3 * slower,) * num, 0.01 * slower)
    none = CodecCost("none", (0.0, 1e-10), (2e-4 * slower, 4e-8 * slower), (0.0, 1e-10), SIZES)
    sign = CodecCost(
        "sign", (1e-4 * slower, 1e-9), (2e-4 * slower, 2e-9 * slower), (1e-4, 1e-9),
        tuple(size // 31 for size in SIZES),
    )  # fmt: skip
    return ExchangeProblem(stream, (none, sign))


def seen(true: ExchangeProblem, plan: ExchangePlan) -> StepSeen:
    """What a step takes where the costs of a problem are the truth."""
    parts: dict[int, dict[str, float]] = {}
    for start, end, where, what, number in spans(true, plan.messages):
        name = "wire" if where == "queue" else what
        if number >= 0:
            parts.setdefault(number, {})[name] = end - start
    messages = tuple((one["encode"], one["wire"], one["decode"]) for one in parts.values())
    return StepSeen(seconds_of(true, plan.messages), messages, (true.stream.before, *true.stream.compute))


def test_costs_are_learnt_from_steps(queue: MessageQueue) -> None:
    guess, true = problem(), problem(3.0)
    plans = rehearsed(guess, plan_exchange)
    assert {plan.messages[0].codec for plan in plans} == {"none", "sign"}
    rehearsal = Rehearsal(plans)
    while not rehearsal.over:
        rehearsal.note(seen(true, rehearsal.plan))
    assert distributed.group.WORLD is not None
    found = rehearsal.refined(guess, tuple(range(1, 9)), queue, distributed.group.WORLD)
    for plan in (*plans, *rehearsed(true, plan_exchange)):
        assert seconds_of(found, plan.messages) == pytest.approx(seconds_of(true, plan.messages), rel=1e-3)


def test_steps_that_an_interruption_hit_do_not_count(queue: MessageQueue) -> None:
    true = problem()
    rehearsal = Rehearsal(rehearsed(true, plan_exchange))
    num = 0
    while not rehearsal.over:
        step = seen(true, rehearsal.plan)
        if num < len(rehearsal.plans):  # the first round took a hundred times as long
            step = StepSeen(
                100 * step.seconds,
                tuple((100 * a, 100 * b, 100 * c) for a, b, c in step.messages),
                tuple(100 * one for one in step.backward),
            )
        rehearsal.note(step)
        num += 1
    assert distributed.group.WORLD is not None
    found = rehearsal.refined(true, tuple(range(1, 9)), queue, distributed.group.WORLD)
    for plan in rehearsal.plans:
        assert seconds_of(found, plan.messages) == pytest.approx(seconds_of(true, plan.messages), rel=1e-3)


def test_the_fastest_plan_goes_on_whatever_was_forecast(queue: MessageQueue) -> None:
    plans = compared(problem(), plan_exchange)
    assert len(plans) > 3
    assert distributed.group.WORLD is not None
    for fastest in plans:
        contest = PlanContest(plans, 8)
        steps = 0
        while not contest.over:
            contest.note(0.05 if contest.plan is fastest else 0.08, queue, distributed.group.WORLD)
            steps += 1
        assert contest.plan is fastest
        assert steps <= 8 * len(plans)


def test_sizes_of_buckets_that_forecasts_cannot_tell_apart_run_too() -> None:
    one = problem()
    plans = compared(one, plan_exchange)
    best = min(plan.seconds for plan in plans)
    for codec in one.codecs:
        buckets = [
            plan for plan in plans if plan.method == "buckets" and plan.messages[0].codec == codec.name
        ]
        divisions = {by_cap(one.stream.sizes, cap) for cap in CAPS}
        forecasts = sorted(seconds_of(one, [Message(end, codec.name) for end in ends]) for ends in divisions)
        assert len(buckets) <= NEIGHBOURS
        assert all(plan.seconds in forecasts[:NEIGHBOURS] for plan in buckets)
        assert all(plan.seconds <= NEAR * best for plan in buckets if plan.seconds > forecasts[0])


def test_all_plans_that_run_pass_the_judge_and_keep_the_limits() -> None:
    for limits in (ExchangeLimits(), ExchangeLimits(sent=50_000), ExchangeLimits(seconds=0.0295)):
        one = replace(problem(), limits=limits)
        for plan in (*rehearsed(one, plan_exchange), *compared(one, plan_exchange)):
            check_exchange(one, plan)


def test_no_cost_is_negative_whatever_was_measured() -> None:
    assert line((64, 5e-4), (64_000, 1e-4)) == (1e-4, 0.0)
    for rows in ([(1, 3.0), (9, 1.0)], [(3, 1.0), (4, 100.0)], [(2, 0.0), (2, 0.0)], [(5, 2.0)]):
        assert min(fitted(rows, 1000, (0.0, 1e-9))) >= 0
        assert min(fitted(rows, 1000, (0.0, 0.0))) >= 0


def test_what_nobody_measured_is_put_on_the_costs(queue: MessageQueue) -> None:
    true = problem()
    rehearsal = Rehearsal(rehearsed(true, plan_exchange))
    while not rehearsal.over:
        step = seen(true, rehearsal.plan)
        rehearsal.note(StepSeen(1.2 * step.seconds, step.messages, step.backward))
    assert distributed.group.WORLD is not None
    found = rehearsal.refined(true, tuple(range(1, 9)), queue, distributed.group.WORLD)
    for plan in rehearsal.plans:
        forecast = seconds_of(found, plan.messages)
        assert forecast == pytest.approx(1.2 * seconds_of(true, plan.messages), rel=0.03)
