"""The example trains within its limit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "mixtral_under_a_limit.py"


@pytest.mark.slow
def test_the_example_stays_within_its_limit() -> None:
    pytest.importorskip("transformers", minversion="5.0")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "within the limit: True" in done.stdout
