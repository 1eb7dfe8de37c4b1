"""Run it: ``python -m benchmarks differ [--only S1,S3] [--json FILE]``; bars: `parity`, `quality`."""

from collections.abc import Sequence

from rich.console import Console

from benchmarks.differ import parity, quality
from benchmarks.fleet.asked import print_asked

TOPICS = (parity.rows, quality.rows)


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("differ", TOPICS, arguments, console)
