"""The judge of exchanges refuses wrong plans and queues that would wait for ever."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from benchmarks.compress.problems import random_problem
from tightrope.core import JudgeError
from tightrope_ranks.compress import plan_exchange
from tightrope_ranks.judge.compress import check_exchange, check_queues
from tightrope_ranks.values.exchange import ExchangeLimits, ExchangePlan, Message

PROBLEM = random_problem(5, 7, 2)
PLAN = plan_exchange(PROBLEM)
CUT = next(
    plan
    for plan in (plan_exchange(random_problem(seed, 7, 2)) for seed in range(99))
    if len(plan.messages) > 2
)


def test_a_right_plan_is_accepted_and_its_bound_holds_for_every_plan() -> None:
    check_exchange(PROBLEM, PLAN, exhaustive=True)


@pytest.mark.parametrize(
    ("mutant", "says"),
    [
        (lambda plan: replace(plan, seconds=plan.seconds * 1.001), "claims"),
        (lambda plan: replace(plan, sent=plan.sent - 1), "bytes sent"),
        (lambda plan: replace(plan, bound=plan.seconds * 1.01), "bound"),
        (lambda plan: replace(plan, messages=plan.messages[:-1]), "division"),
        (lambda plan: replace(plan, messages=(Message(0, "codec0"), *plan.messages)), "division"),
        (
            lambda plan: replace(plan, messages=(*plan.messages[:-1], Message(7, "zip"))),
            "none of the problem's",
        ),
    ],
)
def test_wrong_plans_are_refused(mutant: Callable[[ExchangePlan], ExchangePlan], says: str) -> None:
    with pytest.raises(JudgeError, match=says):
        check_exchange(PROBLEM, mutant(PLAN))


def test_a_bound_above_another_plan_is_refused_by_playing_them_all() -> None:
    slow = (Message(7, PROBLEM.codecs[0].name),)
    from tightrope_ranks.compress.forecast import seconds_of, sent_of

    seconds = seconds_of(PROBLEM, slow)
    assert seconds > PLAN.seconds * 1.001
    plan = ExchangePlan(slow, seconds, sent_of(PROBLEM, slow), seconds, "single")
    check_exchange(PROBLEM, plan)
    with pytest.raises(JudgeError, match="a plan takes"):
        check_exchange(PROBLEM, plan, exhaustive=True)


def test_broken_limits_are_refused() -> None:
    for limits in (ExchangeLimits(seconds=PLAN.seconds * 0.99), ExchangeLimits(sent=PLAN.sent - 1)):
        with pytest.raises(JudgeError, match="limit"):
            check_exchange(replace(PROBLEM, limits=limits), PLAN)


def test_two_thousand_mutated_queues_are_refused() -> None:
    log = [(0, 2, "none", 64), (2, 5, "sign", 8), (5, 6, "fp16", 16), (6, 9, "none", 99)]
    check_queues(9, [log, log, log])
    rng = random.Random(3)
    for _ in range(2000):
        logs = [list(log) for _ in range(3)]
        one = logs[rng.randrange(3)]
        kind, at = rng.randrange(4), rng.randrange(4)
        if kind == 0:
            del one[at]
        elif kind == 1:
            other = (at + rng.randrange(1, 4)) % 4
            one[at], one[other] = one[other], one[at]
        elif kind == 2:
            start, end, codec, size = one[at]
            one[at] = rng.choice(
                [(start, end + 1, codec, size), (start, end, "topk", size), (start, end, codec, size + 4)]
            )
        else:
            one.insert(at, one[at])
        with pytest.raises(JudgeError):
            check_queues(9, logs)
