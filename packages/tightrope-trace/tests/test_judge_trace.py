"""Forecast against observed."""

import pytest

from tightrope.core import Buffer, JudgeError, Trace
from tightrope_trace.judge.trace import check_trace, compare_traces

FORECAST = Trace("forecast", (Buffer(100, 0, 3, 0, 5), Buffer(64, 1, 2, 128), Buffer(64, 4, 5)), num_events=5)


def observed(*buffers: Buffer, num_events: int = 5) -> Trace:
    return Trace("observed", buffers, num_events=num_events)


def test_equal_traces_pass_whatever_their_addresses() -> None:
    seen = observed(Buffer(128, 0, 3, 999), Buffer(64, 1, 2), Buffer(64, 4, 5, 64, 7))
    assert check_trace(FORECAST, seen).num_buffers == 3


@pytest.mark.parametrize(
    ("seen", "message", "peak"),
    [
        (
            observed(Buffer(300, 0, 3), *FORECAST.buffers[1:]),
            r"allocation 0 was forecast as 100 bytes in \[0, 3\) \(storage 5\) and observed as 300 bytes",
            192,
        ),
        (
            observed(FORECAST.buffers[0], Buffer(64, 1, 4), FORECAST.buffers[2]),
            r"observed as 64 bytes in \[1, 4\)",
            0,
        ),
        (observed(*FORECAST.buffers[:2]), "3 allocations were forecast and 2 observed", 0),
        (observed(*FORECAST.buffers, Buffer(1, 4, 5)), "3 allocations were forecast and 4 observed", 0),
        (observed(*FORECAST.buffers, num_events=6), "5 ticks were forecast and 6 observed", 0),
        (observed(), "3 allocations were forecast and 0 observed", -192),
    ],
)
def test_the_first_difference_is_quoted(seen: Trace, message: str, peak: int) -> None:
    result = compare_traces(FORECAST, seen)
    assert not result.equal
    assert result.peak_difference == peak
    with pytest.raises(JudgeError, match=message):
        check_trace(FORECAST, seen)
