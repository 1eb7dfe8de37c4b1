"""Promises are held against forecasts and observations."""

import pytest

from tightrope_fleet.values.work import Promise, broken, promise_table


@pytest.mark.parametrize(
    ("promise", "holds"),
    [
        (Promise("bytes", "B", 10, 10, 10), True),
        (Promise("bytes", "B", 10, 11), False),
        (Promise("bytes", "B", 10, 9, 11), False),
        (Promise("score", "", 10, 9, at_least=True), False),
        (Promise("score", "", 10, 10, 12, at_least=True), True),
        (Promise("bytes", "B"), True),
    ],
)
def test_a_promise_holds_where_every_known_figure_is_on_its_side(promise: Promise, holds: bool) -> None:
    assert promise.holds is holds
    assert bool(broken([promise])) is not holds
    assert promise_table([promise])[0][-1] in ({"holds", "-"} if holds else {"broken"})


def test_soft_promises_do_not_fail_a_plan() -> None:
    soft = Promise("time", "s", 1, 2, hard=False)
    assert broken([soft]) == ()
    assert promise_table([soft])[0][-1] == "missed"
