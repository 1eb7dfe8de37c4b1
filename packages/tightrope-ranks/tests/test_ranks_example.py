"""The example runs and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt2_on_four_ranks.py"


@pytest.mark.slow
def test_the_losses_of_the_example_fall() -> None:
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "losses fall: True" in done.stdout


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 80
