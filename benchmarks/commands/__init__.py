"""What commands answer to bad inputs: one clear line, exit code 2, within two seconds."""

import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks commands`` in a process that has not imported torch."""
    return subprocess.call([sys.executable, "-m", "benchmarks.commands", *arguments])
