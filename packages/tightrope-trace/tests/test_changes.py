"""What changed from one trace to another, and what does not count as a change."""

import msgspec
import pytest
from test_planned import recorded

from tests.record.test_record import EVIL
from tests.record.test_repeats import steps
from tightrope.core import Event, PlanFileError, Trace
from tightrope.record import forecast
from tightrope.view.sentences import changes
from tightrope_trace import Recording, diff
from tightrope_trace.commands.recording import repeated

__all__ = ["recorded"]  # a fixture


def test_terminal_and_page_say_the_same_of_noise() -> None:
    before, after = steps(10, 11, 12, 13, 14), steps(12, 13, 14, 15, 16)
    found = diff(before, after)
    assert (found.operator_ns, found.beyond_noise, found.steps) == ((12, 14), False, (5, 5))
    assert "operator time: 12 ns -> 14 ns (within the noise)" in str(found)
    shown = {row.what: row for row in changes(before, after)}
    assert (shown["operator time"].before, shown["operator time"].sure) == (12, False)
    assert shown["step time"].sure is None
    few = diff(steps(10), steps(20))
    assert "1 and 1 recorded steps are too few to tell changes of time from noise" in str(few)


def test_steps_that_ran_other_ops_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    other = msgspec.structs.replace(steps(3), events=(Event(0, 3, 0, "aten.add"),))
    found = repeated([steps(5), other, steps(7), steps(6)])
    assert found.repeats == ((5,), (7,))
    assert "of 4 recorded steps, 1 ran other ops than the last" in capsys.readouterr().err


def test_a_run_of_a_plan_decides_what_the_plan_does(recorded: Recording) -> None:
    changed = diff(forecast(recorded.graph, recorded.plan), recorded.trace)
    assert changed.peak[0] == changed.peak[1]
    assert not changed.decisions


@pytest.mark.parametrize(("change", "message"), EVIL)
def test_impossible_traces_are_not_compared(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        diff(Trace("observed", ()), msgspec.structs.replace(Trace("observed", ()), **change))
