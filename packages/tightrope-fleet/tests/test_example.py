"""The example runs and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "frames_before_deadlines.py"


def test_the_example_keeps_its_limit() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "within its limit: True" in done.stdout
    assert len(EXAMPLE.read_text().splitlines()) <= 80
