"""Nine loops as users own them, small: each trains in a budget that is named, with the plain bits."""

from pathlib import Path

import pytest

from benchmarks.loops import LOOPS, row
from tightrope.native import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
MOST_TRIES = 3
"""Small models need more of them than those of the benchmark: a loss outside of one is most of its bytes."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_it_trains_in_a_budget_that_is_named(name: str, tmp_path: Path) -> None:
    found = row(name, tmp_path / "caches", small=True)
    assert found.get("tries", MOST_TRIES + 1) <= MOST_TRIES, found["said"]
    assert found["bits"] in ("equal", "named")
