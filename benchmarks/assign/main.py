"""Run it: ``python -m benchmarks assign [--only G1,G2] [--json FILE]``; bars: the other files here."""

from collections.abc import Sequence

from rich.console import Console

from benchmarks.assign import tasks
from benchmarks.fleet.asked import print_asked

TOPICS = (tasks.rows,)


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("assign", TOPICS, arguments, console)
