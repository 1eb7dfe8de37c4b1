"""Costs from steps that ran, and the comparison of plans: on one rank, with made-up seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from torch import distributed

from tightrope_ranks.compress import plan_exchange, seconds_of
from tightrope_ranks.compress.agree import PlanContest
from tightrope_ranks.compress.calibrate import line
from tightrope_ranks.compress.forecast import spans
from tightrope_ranks.compress.queue import MessageQueue
from tightrope_ranks.compress.refine import (
    NEAR,
    NEIGHBOURS,
    Rehearsal,
    StepSeen,
    compared,
    fitted,
    rehearsed,
)
from tightrope_ranks.compress.simple import CAPS
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import (
    CodecCost,
    ExchangeLimits,
    ExchangePlan,
    ExchangeProblem,
    GradientStream,
    Message,
)

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


def many() -> ExchangeProblem:
    """More gradients, so that buckets of neighbouring sizes take about as long."""
    sizes = (70_000, 30_000, 90_000, 10_000, 120_000, 50_000) * 6
    stream = GradientStream(tuple(f"p{k}" for k in range(len(sizes))), sizes, (2e-3,) * len(sizes), 0.01)
    none = CodecCost("none", (0.0, 1e-10), (2e-4, 2e-8), (0.0, 1e-10), sizes)
    sign = CodecCost(
        "sign", (1e-4, 1e-9), (2e-4, 2e-9), (1e-4, 1e-9), tuple(size // 31 for size in sizes)
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
    one = many()
    first = plan_exchange(one)
    plans = compared(one, plan_exchange)
    expected, num_sizes = {first.messages}, {}
    for codec in one.codecs:
        expected.add(plan_exchange(replace(one, codecs=(codec,))).messages)
        divisions = []
        for cap in CAPS:  # a bucket ends with the gradient that fills it
            ends, start = [], 0
            for end in range(1, len(one.stream.sizes) + 1):
                if sum(one.stream.sizes[start:end]) >= cap or end == len(one.stream.sizes):
                    ends.append(Message(end, codec.name))
                    start = end
            divisions.append(tuple(ends))
        ranked = sorted(set(divisions), key=lambda ends: seconds_of(one, ends))
        kept = [
            ends
            for rank, ends in enumerate(ranked)
            if rank == 0 or (rank < NEIGHBOURS and seconds_of(one, ends) <= NEAR * first.seconds)
        ]
        expected.update(kept)
        num_sizes[codec.name] = (len(kept), len(ranked))
    assert {plan.messages for plan in plans} == expected
    assert len(plans) == len(expected)
    assert max(kept for kept, _ in num_sizes.values()) > 1, "sizes run beside the best"
    assert any(1 <= kept < ranked for kept, ranked in num_sizes.values()), "and some do not"


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
