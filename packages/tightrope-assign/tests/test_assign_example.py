"""The example places, loses a device, and places again."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "lost_device.py"


def test_the_example_survives_the_loss() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "without d" in done.stdout
    assert "bytes move" in done.stdout
