"""One sum of bytes: what is named is accepted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core.ledger import Ledger, Row, Since, When

MOMENTS = [When.RUN, When.BETWEEN, When.UPDATE, When.RUN | When.BETWEEN, When.ALWAYS]
ROWS = st.builds(
    Row,
    st.sampled_from(["weights", "state", "loss"]),
    st.integers(0, 1 << 40),
    moment=st.sampled_from(MOMENTS),
    since=st.sampled_from(list(Since)),
)
LEDGERS = st.builds(
    Ledger,
    st.integers(0, 1 << 40),
    st.lists(ROWS, max_size=8).map(tuple),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
)
PLANS = st.integers(0, 1 << 40)


def _has_room(ledger: Ledger, plan: int) -> None:
    named = ledger.at(ledger.needed(plan))
    assert named.room() >= plan
    assert named.fits_update()
    assert named.arrived().room() >= plan
    assert named.arrived().fits_update()
    dropping = ledger.needed(plan, keeps_gradients=False)
    assert ledger.at(dropping).room(later=True) >= plan
    assert dropping >= (ledger.dropping or ledger.least)


test_what_is_named_has_room_for_the_plan_now_and_later = settings(max_examples=300, deadline=None)(
    given(LEDGERS, PLANS)(_has_room)
)
test_ten_thousand_named_numbers_have_room = pytest.mark.slow(
    settings(max_examples=10_000, deadline=None)(given(LEDGERS, PLANS)(_has_room))
)


@settings(max_examples=300, deadline=None)
@given(LEDGERS, PLANS)
def test_no_byte_less_is_enough_where_the_plan_decides(ledger: Ledger, plan: int) -> None:
    needed = ledger.needed(plan)
    smaller = ledger.at(needed - 1).arrived()
    between = sum(row.bytes for row in ledger.rows if When.BETWEEN in row.moment)
    assert needed == ledger.least or needed == between or smaller.room() < plan or not smaller.fits_update()


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_a_percentage_stands_for_enough_and_one_less_does_not(whole: int, budget: int) -> None:
    percent = Ledger(0, whole=whole).percent(budget)
    assert -(-percent * whole // 100) >= budget
    assert -(-(percent - 1) * whole // 100) < budget


def test_a_table_adds_up() -> None:
    ledger = Ledger(0).plus(*(Row(f"row {k}", k << 20) for k in range(9)))
    lines = ledger.table(most=5)
    assert len(lines) == 5
    assert [line.split()[2] for line in lines[:4]] == ["8.00", "7.00", "6.00", "5.00"]
    assert "10.00 MiB" in lines[-1]
