"""Plans of exchanges: exact on small ones, within limits, never slower than simple divisions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.compress.problems import brute_force, net_problem, random_problem
from tightrope.core import InfeasibleError, PlanFileError, TightropeError
from tightrope_ranks.compress import forecast, plan_exchange, seconds_of
from tightrope_ranks.compress.search import lower_bound
from tightrope_ranks.compress.simple import by_cap, divisions, even
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import (
    ExchangeLimits,
    GradientStream,
    Message,
    dump_exchange,
    load_exchange,
)


@pytest.mark.parametrize(("codecs", "most"), [(1, 12), (2, 8), (3, 6)])
@pytest.mark.parametrize("native", [True, False])
def test_plans_equal_brute_force(codecs: int, most: int, native: bool) -> None:
    for seed in range(40 if native else 10):
        problem = random_problem(seed, 1 + seed % most, codecs)
        plan = plan_exchange(problem, native=native)
        check_exchange(problem, plan)
        assert plan.method == "exact"
        assert plan.seconds == pytest.approx(brute_force(problem), abs=1e-9)


@given(seed=st.integers(0, 2**20), num=st.integers(1, 40), codecs=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_no_simple_division_is_faster_and_the_bound_is_below(seed: int, num: int, codecs: int) -> None:
    problem = random_problem(seed, num, codecs)
    plan = plan_exchange(problem, exact=False)
    check_exchange(problem, plan)
    assert lower_bound(problem) <= plan.seconds * (1 + 1e-12)
    for _, ends in divisions(problem.stream.sizes):
        for codec in problem.codecs:
            assert plan.seconds <= seconds_of(problem, [Message(end, codec.name) for end in ends])


def test_a_limit_of_bytes_is_kept_at_the_price_of_time() -> None:
    problem = net_problem("ResNet-50", "25 Gbit/s")
    free = plan_exchange(problem)
    limited = replace(problem, limits=ExchangeLimits(sent=free.sent // 3))
    plan = plan_exchange(limited)
    check_exchange(limited, plan)
    assert plan.sent <= free.sent // 3
    assert plan.seconds >= free.seconds


def test_limits_that_nothing_keeps_are_refused_with_what_is_possible() -> None:
    problem = random_problem(1, 6, 2)
    plan = plan_exchange(problem)
    with pytest.raises(InfeasibleError, match=f"takes {plan.seconds * 1e3:.6g} ms"):
        plan_exchange(replace(problem, limits=ExchangeLimits(seconds=plan.seconds * 0.9)))
    with pytest.raises(InfeasibleError, match="send at least") as refused:
        plan_exchange(replace(problem, limits=ExchangeLimits(sent=1)))
    assert refused.value.smallest_found is not None
    smallest = replace(problem, limits=ExchangeLimits(sent=refused.value.smallest_found))
    check_exchange(smallest, plan_exchange(smallest))


def test_a_codec_that_loses_is_not_chosen_and_one_that_wins_is() -> None:
    fast, slow = net_problem("ResNet-50", "25 Gbit/s"), net_problem("ResNet-50", "200 Mbit/s")
    assert {message.codec for message in plan_exchange(fast).messages} == {"none"}
    assert {message.codec for message in plan_exchange(slow).messages} == {"sign"}


def test_gradients_that_come_later_move_the_messages() -> None:
    problem = net_problem("ResNet-50", "1 Gbit/s")
    late = replace(problem.stream, compute=tuple(3 * one for one in problem.stream.compute))
    assert plan_exchange(replace(problem, stream=late)).messages != plan_exchange(problem).messages


def test_the_forecast_is_a_trace_whose_end_is_the_step() -> None:
    problem = random_problem(8, 9, 2)
    plan = plan_exchange(problem)
    trace = forecast(problem, plan.messages)
    assert max(event.end for event in trace.events) == pytest.approx(plan.seconds * 1e9, abs=2)
    assert {event.where for event in trace.events} == {"processor", "queue"}


def test_plans_are_files() -> None:
    plan = plan_exchange(random_problem(2, 5, 1))
    data = dump_exchange(plan)
    assert load_exchange(data) == plan
    for wrong in (
        b"[",
        b"{}",
        data.replace(b'"schema": 1', b'"schema": 9'),
        data.replace(b'"end": 5', b'"end": 0'),
    ):
        with pytest.raises(PlanFileError):
            load_exchange(wrong)


def test_problems_that_are_not_well_formed_are_refused() -> None:
    problem = random_problem(2, 3, 1)
    for wrong in (
        replace(problem, codecs=()),
        replace(problem, codecs=problem.codecs * 2),
        replace(problem, stream=GradientStream((), (), ())),
        replace(problem, stream=replace(problem.stream, compute=(1.0, float("nan"), 0.0))),
    ):
        with pytest.raises(TightropeError):
            plan_exchange(wrong)


def test_divisions_cover_every_gradient_in_order() -> None:
    sizes = [5, 1, 9, 9, 2, 700, 3]
    for name, ends in divisions(sizes):
        assert list(ends) == sorted(set(ends)), name
        assert ends[-1] == len(sizes), name
    assert by_cap(sizes, 9) == (3, 4, 6, 7)
    assert len(even(sizes, 3)) <= 3
