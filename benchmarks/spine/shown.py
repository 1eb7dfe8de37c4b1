"""S10 and S12: bars that tests show. The table lists the files; `make test-all` runs them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict

_ROOT = Path(__file__).resolve().parents[2]
_SHOWN = {
    "S10": ("tests/run/test_*.py", "tests/integrations/test_*.py"),
    "S12": (
        "tests/core/test_*codec*.py",
        "tests/core/test_*units*.py",
        "tests/judge/test_*mutants*.py",
        "tests/cli/test_*.py",
    ),
}


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """List the test files of one bar with the number of test functions in each."""
    del settings
    for pattern in _SHOWN[name]:
        for file in sorted(_ROOT.glob(pattern)):
            tests = sum(line.lstrip().startswith("def test_") for line in file.read_text().splitlines())
            yield {"net": name, "file": str(file.relative_to(_ROOT)), "tests": tests}


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Say where to look: a bar that no test file shows is missed, the rest is for the test run."""
    del settings
    result = []
    for bar in _SHOWN:
        files = [row["file"] for row in found if row["net"] == bar]
        text = f"shown by {len(files)} test files, not run here: {', '.join(files) or 'none'}"
        result.append(Verdict(bar, None if files else False, text))
    return result


BAR = Bar(
    ids=("S10", "S12"),
    title="Shown by tests",
    columns=(Column("net", "bar", 5), Column("file", "file", 44), Column("tests", "tests", 6)),
    cases=lambda _: tuple(_SHOWN),
    rows=rows,
    verdicts=verdicts,
)
