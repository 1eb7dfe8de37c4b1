"""The examples: tasks that lose a device, and tables in a file."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "lost_device.py"


def test_the_example_survives_the_loss() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "without d" in done.stdout
    assert "bytes move" in done.stdout


def test_the_tables_of_the_example_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    from tightrope.cli import main

    with pytest.raises(SystemExit) as leaving:
        main(["tables", "plan", str(EXAMPLE.with_name("tables.toml")), "--devices", "4", "--bytes", "192MiB"])
    assert not leaving.value.code
    assert "shards on 4 devices" in capsys.readouterr().out
