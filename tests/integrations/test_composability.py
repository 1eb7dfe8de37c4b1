"""Every cell of the table in docs/limits.md, against the library that it names."""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.integrations.composing import (
    COLUMNS,
    NOT_TRIED,
    PAGE,
    ROWS,
    cells_of,
    outcome,
    outcomes_of_two,
    page_with,
    run_cell,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about their own insides
CELLS = cells_of(PAGE.read_text())
FEW = 4
"""Updates of a short cell: plans settle within three."""
OWN, TRAINING = next(iter(ROWS)), COLUMNS[0]
TOGETHER = [(row, TRAINING) for row in ROWS if "2 processes" in row]


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Put back what accelerate and Lightning leave in the environment."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_page_has_the_table_that_these_tests_prove() -> None:
    assert set(CELLS) == set(product(ROWS, COLUMNS))
    assert PAGE.read_text() == page_with(CELLS)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("row", "column"),
    [*((OWN, one) for one in COLUMNS), *((one, TRAINING) for one in [*ROWS][1:] if "2 processes" not in one)],
)
def test_a_row_or_column_holds_in_four_steps(row: str, column: str, tmp_path: Path) -> None:
    for name in ("accelerate", "peft", "lightning"):
        pytest.importorskip(name)
    assert outcome(row, column, tmp_path, FEW) == CELLS[row, column]


def test_rows_of_two_processes_hold_in_four_steps(tmp_path: Path) -> None:
    assert outcomes_of_two(TOGETHER, tmp_path, FEW) == [CELLS[cell] for cell in TOGETHER]


@pytest.mark.slow
@pytest.mark.parametrize(("row", "column"), [*product(ROWS, COLUMNS)])
def test_a_cell_is_what_the_page_says(row: str, column: str, tmp_path: Path) -> None:
    for name in ("accelerate", "peft", "lightning"):
        pytest.importorskip(name)
    if CELLS[row, column] == NOT_TRIED:
        pytest.skip("the page says nothing of it")
    assert run_cell(row, column, tmp_path) == CELLS[row, column]
