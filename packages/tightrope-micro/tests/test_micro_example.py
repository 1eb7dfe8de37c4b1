"""The example runs and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_on_a_microcontroller.py"


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 80


@pytest.mark.slow
def test_the_example_keeps_its_limit() -> None:
    pytest.importorskip("sklearn", reason="its digits")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "within 64 KiB of RAM: True" in done.stdout
