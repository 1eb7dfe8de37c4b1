"""Run groups of tests on the installed torch and Python, and keep the outcome as a row of docs/compat.md.

`make test-torch` calls it: `python -m tests.compat [--torch 2.14.1] [--groups smoke,run] [--slow]`.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.promises import ROOT, named

PAGE: Final = ROOT / "docs" / "compat.md"
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "smoke": tuple(named()),
    "capture": ("tests/capture",),
    "run": ("tests/run",),
    "native": ("tests/native",),
    "integrations": ("tests/integrations",),
    "lowering": (
        "tests/core/test_core_executable.py",
        "tests/judge/test_judge_announce.py",
        "tests/place/test_plan_arena.py",
        "tests/plan/test_writes.py",
        "tests/fuse",
    ),
}
"""Group of tests -> what pytest is given; each group has processes of its own."""

_ROW: Final = re.compile(r"(?m)^\| \d+\.\d+.*\n")
_NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a group gave: tests that passed, failed and were skipped, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    names: tuple[str, ...] = ()

    @property
    def cell(self) -> str:
        """Write the counts as a cell of the table."""
        return f"{self.passed} / {self.failed} / {self.skipped}"


@dataclass(frozen=True, slots=True)
class Row:
    """One version of torch on one of Python: cells by group, and the tests that failed by group."""

    torch: str
    python: str
    cells: dict[str, str] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        cells = [self.cells.get(group, _NOT_RUN) for group in GROUPS]
        fails = "; ".join(f"{group}: {self.fails[group]}" for group in GROUPS if group in self.fails)
        return f"| {' | '.join([self.torch, self.python, *cells, fails or 'nothing known'])} |\n"

    @property
    def key(self) -> tuple[str, str]:
        """What there is one row of: a version of torch, a minor version of Python."""
        return self.torch, ".".join(self.python.split(".")[:2])

    @property
    def order(self) -> list[list[int]]:
        """The versions as numbers, to sort by."""
        return [[int(part) for part in re.findall(r"\d+", version)] for version in self.key]


def parsed(line: str) -> Row:
    """Read a row as `Row` writes it."""
    torch, python, *cells, fails = (cell.strip() for cell in line.strip().strip("|").split("|"))
    found = re.findall(rf"({'|'.join(GROUPS)}): (`.*?`(?:, `.*?`)*)(?:; |$)", fails)
    return Row(torch, python, dict(zip(GROUPS, cells, strict=True)), dict(found))


def rows(page: str) -> list[Row]:
    """Read the table of the page."""
    return [parsed(line) for line in _ROW.findall(page)]


def with_outcomes(page: str, torch: str, python: str, outcomes: dict[str, Outcome]) -> str:
    """Put outcomes into the row of two versions; its other groups and the other rows stay as they are."""
    kept = {row.key: row for row in rows(page)}
    row = kept.get(Row(torch, python).key, Row(torch, python))
    cells = row.cells | {group: outcome.cell for group, outcome in outcomes.items()}
    fails = {group: names for group, names in row.fails.items() if group not in outcomes}
    for group, outcome in outcomes.items():
        if outcome.names:
            fails[group] = ", ".join(f"`{name}`" for name in outcome.names)
    kept[row.key] = Row(torch, python, cells, fails)
    table = "".join(map(str, sorted(kept.values(), key=lambda one: one.order)))
    rule = re.search(r"(?m)^\|( ?-+ ?\|)+\n", page)
    assert rule is not None, "the page has no table"
    return page[: rule.end()] + table + _ROW.sub("", page[rule.end() :])


def outcome_of(report: Path, ended: str) -> Outcome:
    """Count what pytest reported as JUnit's XML; a process that left no report failed as a whole."""
    if not report.is_file():
        return Outcome(0, 1, 0, (ended,))
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = dict.fromkeys(case.get("name", "").partition("[")[0] for case in bad)
    return Outcome(len(cases) - len(bad) - len(skipped), len(bad), len(skipped), tuple(names))


def run(group: str, *, slow: bool) -> Outcome:
    """Run the tests of a group in two processes: slow ones if asked to, of promises all."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = (
            "-rfE",
            "-n2",
            "--tb=short",
            "--show-capture=no",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *(() if slow or group == "smoke" else ("-m", "not slow")),
        )
        done = subprocess.run([sys.executable, "-m", "pytest", *options, *GROUPS[group]], cwd=ROOT)
        return outcome_of(report, f"ended with {done.returncode}")


def main() -> int:
    """Run the groups one after the other, and write the row after each."""
    import torch

    import tightrope

    version = torch.__version__.partition("+")[0]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default=version, help="the version that must be installed")
    parser.add_argument("--groups", default=",".join(GROUPS), help="separated by commas; default: all")
    parser.add_argument("--slow", action="store_true", help="run what is marked slow, too")
    given = parser.parse_args()
    groups = [group for group in re.split(r"[,\s]+", given.groups) if group]
    if unknown := [group for group in groups if group not in GROUPS]:
        parser.error(f"unknown groups {', '.join(unknown)}; known: {', '.join(GROUPS)}")
    if given.torch != version:
        parser.error(f"torch {version} is installed, not {given.torch}")
    print(f"tightrope of {Path(tightrope.__file__).parent}, torch {version}", flush=True)
    failed = 0
    for group in groups:
        outcome = run(group, slow=given.slow)
        failed += outcome.failed
        print(f"{group}: {outcome.cell}", flush=True)
        PAGE.write_text(with_outcomes(PAGE.read_text(), version, platform.python_version(), {group: outcome}))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
