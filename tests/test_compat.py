"""docs/compat.md: rows are written from reports of pytest, and its versions are the tested ones."""

from pathlib import Path

import pytest

from tests.compat import GROUPS, PAGE, Outcome, outcome_of, rows, with_outcomes
from tests.promises import ROOT
from tightrope.capture._probes import TESTED_MINORS

EMPTY = "before\n\n| torch | Python | groups |\n| --- | --- | --- |\n\nafter\n"
REPORT = """<testsuites><testsuite>
<testcase name="test_one[a]"/>
<testcase name="test_two[a]"><failure/></testcase>
<testcase name="test_two[b]"><failure/></testcase>
<testcase name="test_three"><error/></testcase>
<testcase name="test_four"><skipped/></testcase>
</testsuite></testsuites>"""


def test_promises_hold_for_the_tested_minors_and_every_minor_for_which_they_hold_is_one() -> None:
    cells = [(".".join(row.torch.split(".")[:2]), row.cells["smoke"]) for row in rows(PAGE.read_text())]
    failed = {minor for minor, cell in cells if "/" in cell and "/ 0 /" not in cell}
    held = {minor for minor, cell in cells if "/ 0 /" in cell} - failed
    assert held <= set(TESTED_MINORS)
    assert not failed & set(TESTED_MINORS)


def test_the_rows_of_the_page_are_as_they_are_written() -> None:
    page = PAGE.read_text()
    assert all(with_outcomes(page, row.torch, row.python, {}) == page for row in rows(page))


@pytest.mark.parametrize("group", GROUPS)
def test_the_tests_of_a_group_exist(group: str) -> None:
    assert all((ROOT / name.partition("::")[0]).exists() for name in GROUPS[group])


def test_a_report_is_counted_and_what_failed_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = outcome_of(tmp_path / "report.xml", "ended with 1")
    assert found == Outcome(1, 3, 1, ("test_two", "test_three"))


def test_a_process_that_left_no_report_has_failed(tmp_path: Path) -> None:
    assert outcome_of(tmp_path / "none.xml", "ended with -11") == Outcome(0, 1, 0, ("ended with -11",))


def test_a_run_replaces_its_groups_in_its_row_and_keeps_the_rest() -> None:
    page = with_outcomes(EMPTY, "2.13.0", "3.11.7", {"run": Outcome(7, 0, 1)})
    broken = {"run": Outcome(5, 2, 1, ("test_one", "test_two")), "smoke": Outcome(3, 1, 0, ("test_three",))}
    page = with_outcomes(page, "2.9.1", "3.11.7", broken)
    old, new = rows(page)
    assert (old.torch, new.torch, new.cells["run"], new.cells["smoke"]) == (
        "2.9.1",
        "2.13.0",
        "7 / 0 / 1",
        "not run",
    )
    assert old.fails == {"smoke": "`test_three`", "run": "`test_one`, `test_two`"}
    page = with_outcomes(page, "2.9.1", "3.11.7", {"run": Outcome(8, 0, 0)})
    mended, kept = rows(page)
    assert kept == new
    assert mended.cells["run"] == "8 / 0 / 0"
    assert mended.fails == {"smoke": "`test_three`"}
    assert page.startswith("before\n")
    assert page.endswith("|\n\nafter\n")


def test_there_is_one_row_for_each_torch_on_each_minor_version_of_python() -> None:
    page = EMPTY
    for python in ("3.13.0", "3.11.7", "3.11.9"):
        page = with_outcomes(page, "2.13.0", python, {"smoke": Outcome(len(python), 0, 0)})
    page = with_outcomes(page, "2.9.1", "3.12.1", {"smoke": Outcome(1, 0, 0)})
    page = with_outcomes(page, "2.13.0", "3.11.9", {"run": Outcome(7, 1, 0, ("test_one",))})
    assert [(row.torch, row.python) for row in rows(page)] == [
        ("2.9.1", "3.12.1"),
        ("2.13.0", "3.11.9"),
        ("2.13.0", "3.13.0"),
    ]
    assert [row.cells["run"] for row in rows(page)] == ["not run", "7 / 1 / 0", "not run"]
