"""Times of several recorded steps: kept, compared by medians, told from noise."""

import random

import msgspec
import pytest

from tightrope.core import Event, PlanFileError, Trace
from tightrope.core.repeats import CHANCE, beyond_noise, time_changes
from tightrope.core.trace import EventPhase
from tightrope.core.trace_check import check_trace


def steps(*times: int) -> Trace:
    """One op, in as many steps; the last time is that of the trace itself."""
    event = Event(0, times[-1], 0, "aten.mm", phase=EventPhase.FORWARD)
    return Trace("observed", (), (event,), repeats=tuple((ns,) for ns in times[:-1]))


def test_changes_are_of_medians_and_only_separate_samples_are_beyond_the_noise() -> None:
    before, slower = steps(10, 11, 90, 12, 13), steps(91, 95, 92, 93, 94)
    (row,) = time_changes(before, slower, lambda trace, event: event.name)
    assert (row.ns, row.beyond_noise) == ((12, 93), True)
    (row,) = time_changes(before, steps(11, 95, 92, 93, 94), lambda trace, event: event.name)
    assert (row.ns, row.beyond_noise) == ((12, 93), False)
    (row,) = time_changes(steps(10, 10, 10), steps(20, 20, 20), lambda trace, event: event.name)
    assert row.beyond_noise is None


@pytest.mark.parametrize("count", [4, 5])
def test_noise_is_seldom_called_a_change(count: int) -> None:
    draw = random.Random(0)
    samples = [[draw.randrange(10**9) for _ in range(2 * count)] for _ in range(2000)]
    wrong = sum(beyond_noise(one[:count], one[count:]) is True for one in samples)
    assert 0 < wrong / len(samples) < CHANCE


@pytest.mark.parametrize("repeats", [((1, 2),), ((-1,),), (("x",),), ((1,),) * 101])
def test_repeats_that_are_none_are_refused(repeats: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(PlanFileError, match="repeats"):
        check_trace(msgspec.structs.replace(steps(5), repeats=repeats))
