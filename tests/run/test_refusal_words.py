"""What a refusal says."""

import pytest

from tightrope.core import InfeasibleError
from tightrope.core.ledger import Ledger, Row
from tightrope.run.ledger.refusal import Refusal, with_loop
from tightrope.run.ledger.room import HELD, RESERVE

ERROR = InfeasibleError(
    "too little", asked=1000, smallest_found=2000, lower_bound=960, op="aten.mm.default in 3 (net.py:7)"
)


def refusal(held: int = 0, *, whole: int = 0) -> Refusal:
    rows = (Row(HELD, held), Row("runtime reserve", RESERVE))
    ledger = Ledger(1000, rows, asked="50%" if whole else "", whole=whole)
    return Refusal(with_loop(ledger, loss=4000, gradients=1 << 20), persistent=0)


@pytest.mark.parametrize("held", [0, 900, 8 << 20])
def test_what_the_process_holds_is_a_row_and_in_the_bound(held: int) -> None:
    error = refusal(held).restated(ERROR)
    assert (HELD in str(error)) is (held > 0)
    assert error.lower_bound == 960 + held


def test_the_message_comes_first_and_has_at_most_eight_lines() -> None:
    lines = str(refusal(1 << 20).restated(ERROR)).splitlines()
    assert len(lines) <= 8
    assert lines[0].startswith("asked 1000 B; smallest feasible found ")
    assert f"budget={refusal(1 << 20).needed(2000)}," in lines[0]
    assert "aten.mm.default in 3 (net.py:7)" in lines[-2]
    assert f"works with budget={refusal(1 << 20).dropping(2000)}." in lines[-1]


def test_a_percentage_is_answered_by_one_that_works() -> None:
    found = refusal(whole=2000).restated(ERROR)
    assert found.smallest_found is not None
    percent = refusal(whole=2000).ledger.percent(found.smallest_found)
    assert str(found).startswith("asked 50% of 1.95 KiB (1000 B); ")
    assert f'budget="{percent}%"' in str(found)
    assert -(-percent * 2000 // 100) >= found.smallest_found > -(-(percent - 1) * 2000 // 100)
