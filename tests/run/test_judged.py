"""What runs was judged as it runs, checked in its first run, and reported, whatever it was planned for."""

import pytest

from benchmarks.executable.causes import CASES, watch
from benchmarks.executable.observed import Observed, PartRun
from tightrope.core import Executable, Resume

SHOWN = (
    "inference",
    "optimizer state",
    "room lacking",
    "share moved",
    "pieces together",
    "divergence",
    "added parameter",
)
"""Cases that no other test shows; ``python -m benchmarks executable --only X1`` shows all."""


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SHOWN)
def test_what_ran_was_judged_checked_and_reported(name: str) -> None:
    row = watch(name)
    assert not row["problems"]
    assert row["executed"] >= 1 + bool(CASES[name].cause)


def test_a_run_that_nobody_judged_is_seen() -> None:
    executable = Executable("0" * 64, (), (Resume(0),))
    seen = Observed(runs=[PartRun(executable, 0, 1.0, -1, same_addresses=False)])
    assert [problem.split(maxsplit=1)[1] for problem in seen.problems(())] == [
        "ran before it was judged",
        "ran at other addresses than its own",
        "part 0: -1 of 0 results checked",
        "is not reported as it was judged and checked",
    ]
