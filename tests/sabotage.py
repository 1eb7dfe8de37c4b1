"""Ten promises, each broken by one line in a copy of the installed package: `make sabotage`.

A test of `make smoke` must notice every one of them, and none may fail on the package as it is.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.promises import ROOT, named


class Sabotage(NamedTuple):
    """One line of the package that is changed, and the name of a test that must notice it."""

    promise: str
    file: str
    line: str
    instead: str
    test: str


SABOTAGES: Final = (
    Sabotage(
        "a loop is held to the budget",
        "run/ledger/accounts.py",
        "self.allocator.limit = None if budget is None else max(budget - older - self.hidden, 0)",
        "self.allocator.limit = None",
        "test_a_request_beside_a_model_is_told_whose_budget_it_meets",
    ),
    Sabotage(
        "the budget that a refusal names works",
        "core/ledger.py",
        "return max(least, plan + run, between, update)",
        "return max(least, plan, between, update)",
        "test_one_number_is_named_and_it_works",
    ),
    Sabotage(
        "what is computed again is compared",
        "run/execute/check.py",
        "if self._seen.setdefault(storage, bits) != bits:",
        "if False:",
        "test_a_value_that_differs_when_computed_again_is_named",
    ),
    Sabotage(
        "the judge refuses wrong plans",
        "judge/offsets.py",
        'raise JudgeError(f"{who} at offset {block.offset} leaves the arena of {arena} bytes.")',
        "pass",
        "test_a_bad_block_is_named",
    ),
    Sabotage(
        "nothing global moves",
        "run/base/status.py",
        "import shutil",
        "import shutil, random; random.random()",
        "test_nothing_of_the_process_moves_that_torch_leaves",
    ),
    Sabotage(
        "clip_norm has the bits of torch",
        "capture/clip.py",
        "max_norm / (total + 1e-6)",
        "max_norm / (total + 2e-6)",
        "test_five_steps_have_the_bits_of_clipping_by_hand",
    ),
    Sabotage(
        "a report says whether the budget is enforced",
        "run/report.py",
        'if self.why == _NOTHING else "checked, not enforced"',
        'if self.why == _NOTHING else "enforced by the allocator"',
        "test_results_are_the_same_and_the_report_says_checked",
    ),
    Sabotage(
        "the exit code says whether a step fits",
        "cli/estimating.py",
        "raise typer.Exit(DOES_NOT_FIT)",
        "raise typer.Exit(0)",
        "test_estimate_leaves_with_3_one_byte_below_what_the_step_needs",
    ),
    Sabotage(
        "a step that pages has the bits of eager",
        "run/execute/page_file.py",
        "preadv(self.fd, [self._bytes[:moved]], at)",
        "preadv(self.fd, [self._bytes[:moved]], 0)",
        "test_a_step_that_pages_has_the_bits_of_eager_within_its_budget",
    ),
    Sabotage(
        "a loaded step updates as the saved one",
        "run/load.py",
        "self._updates.finish()",
        "pass",
        "test_updates_go_on_where_they_were",
    ),
)


def smoke_tests(names: set[str]) -> list[str]:
    """List the tests of `make smoke` that have one of the names."""
    return [one for one in named() if one.partition("::")[2].partition("[")[0] in names]


def passes(package: Path, *tests: str) -> bool:
    """Run tests with the package in this folder before all others."""
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # neither: no test ran
    return done.returncode == 0


def changed(package: Path, one: Sabotage) -> None:
    """Change the line, which must be there once."""
    file = package / one.file
    text = file.read_text()
    assert text.count(one.line) == 1, one
    file.write_text(text.replace(one.line, one.instead))


def main() -> None:
    import tightrope

    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "tightrope")
        shutil.copytree(Path(tightrope.__file__).parent, package)
        if not passes(package, *smoke_tests({one.test for one in SABOTAGES})):
            sys.exit("a test fails on the package as it is")
        for one in SABOTAGES:
            before = (package / one.file).read_text()
            changed(package, one)
            found = not passes(package, *smoke_tests({one.test}))
            (package / one.file).write_text(before)
            noticed += found
            print(f"{'noticed' if found else 'NOT noticed'}: {one.promise} ({one.file})", flush=True)
    print(f"{noticed} of {len(SABOTAGES)} noticed")
    sys.exit(noticed < len(SABOTAGES))


if __name__ == "__main__":
    main()
