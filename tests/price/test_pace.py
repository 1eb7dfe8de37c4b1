"""What is known of the time of steps: medians, sums, and one factor that changes no comparison."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightrope.core import Forecast
from tightrope.price import Paced, StepTime, summed

CLOCK = "thread CPU time"


def paced(ns: int, *, graph: str = "a" * 64, base_ns: int = 100, plain: bool = True) -> Paced:
    return Paced(graph, Forecast(0, 0, 0, ns=ns, base_ns=base_ns), plain=plain)


def test_the_median_of_recent_runs_stands_beside_the_forecast() -> None:
    times = paced(100, graph="b" * 64)
    assert times.found(clock=CLOCK) == StepTime(100, None, None, None, CLOCK, 0)
    for ns in (900, 150, 140, 160):
        times.ran(ns, 2 * ns)
    found = times.found(clock=CLOCK)
    assert (found.observed_ns, found.wall_ns, found.num_steps, found.ratio) == (150, 300, 4, 1.5)
    for _ in range(20):
        times.ran(200, 400)
    assert times.found(clock=CLOCK) == StepTime(100, 200, 200, 400, CLOCK, 9)


def test_what_is_not_known_is_said_to_be_unknown_and_never_zero() -> None:
    assert str(StepTime()) == (
        "time of the step: forecast unknown; observed: unknown before a step after the first"
    )
    times = paced(0, graph="c" * 64, base_ns=0)
    assert times.found(clock=CLOCK).forecast_ns is None
    times.ran(50_000, 60_000)
    found = times.found(clock=CLOCK)
    assert found.ratio is None
    assert str(found) == (
        "time of the step: forecast unknown, observed 50.00 us (thread CPU time, one step; on the wall "
        "60.00 us)"
    )
    assert "0 ns" not in str(StepTime()) + str(found)


def test_another_plan_of_the_graph_is_expected_at_its_pace_and_other_graphs_are_not() -> None:
    paced(100, graph="d" * 64).ran(150, 150)
    other = paced(140, graph="d" * 64).found(clock=CLOCK)
    assert (other.forecast_ns, other.expected_ns, other.observed_ns) == (140, 210, None)
    assert "forecast 140 ns, 210 ns at the pace of this graph's recent steps" in str(other)
    assert paced(140, graph="e" * 64).found(clock=CLOCK).expected_ns is None
    assert paced(140, graph="d" * 64, base_ns=99).found(clock=CLOCK).expected_ns is None, "other prices"


def test_what_is_timed_by_the_wall_is_expected_at_the_pace_by_the_wall() -> None:
    other, one = paced(100, graph="9" * 64), paced(150, graph="9" * 64)
    other.ran(110, 200)
    assert one.found(clock="wall time").expected_ns == 300
    assert one.found(clock="thread CPU time").expected_ns == 165


def test_a_recording_sets_no_pace() -> None:
    recorded = paced(100, graph="f" * 64, plain=False)
    recorded.ran(500, 500)
    assert recorded.found(clock=CLOCK).observed_ns == 500
    assert paced(100, graph="f" * 64).found(clock=CLOCK).expected_ns is None


@given(st.integers(1, 10**9), st.integers(1, 10**12), st.lists(st.integers(0, 10**9), min_size=2))
def test_expected_times_stand_in_the_order_of_forecasts(base: int, seen: int, plans: list[int]) -> None:
    paced(base, graph="g" * 64).ran(seen, seen)
    expected = [paced(ns, graph="g" * 64).found(clock=CLOCK).expected_ns or 0 for ns in sorted(plans)]
    assert expected == sorted(expected)


def test_a_sum_is_known_where_every_part_is() -> None:
    known, unknown = StepTime(5, 6, 7, 8, CLOCK, 3), StepTime(5, None, None, None, CLOCK, 0)
    assert summed([known, known]) == StepTime(10, 12, 14, 16, CLOCK, 3)
    assert summed([known, unknown]) == StepTime(10, None, None, None, CLOCK, 0)
    assert summed([known]).ratio == pytest.approx(1.4)
