"""Run it: ``python -m benchmarks fleet [--only F1,F2] [--json FILE]``; bars: the other files here."""

from collections.abc import Sequence

from rich.console import Console

from benchmarks.fleet import devices, jobs, memory, noise, streams, streams_real, trees, two_forms
from benchmarks.fleet.asked import print_asked

TOPICS = (
    devices.rows,
    memory.rows,
    noise.rows,
    two_forms.rows,
    streams.rows,
    streams_real.rows,
    jobs.rows,
    trees.rows,
)


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("fleet", TOPICS, arguments, console)
