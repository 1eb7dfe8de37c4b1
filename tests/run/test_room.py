"""Why a plan is made again: no difference of bytes is shown with the wrong sign."""

from tightrope.core import Forecast
from tightrope.run.ledger.room import Room, cause_of

PLAN = Forecast(0, 9_000_000, 9_000_000)
BEFORE = Room(22_000_000, 9_000_000, foreseen=3_176_064)


def test_state_that_came_smaller_than_foreseen_is_no_negative_growth() -> None:
    now = Room(22_000_000, 11_670_592, hidden=2_000_000)
    assert now.held + now.foreseen < BEFORE.held + BEFORE.foreseen
    said = cause_of(BEFORE, now, 0, PLAN, 0)
    assert "-" not in said
    assert "1.43 MiB less are left" in said


def test_tensors_that_came_are_named() -> None:
    now = Room(22_000_000, 9_000_000 + 2_670_592, foreseen=3_176_064)
    assert cause_of(BEFORE, now, 0, PLAN, 0).startswith("2.55 MiB more are held")
