"""Run it: ``python -m benchmarks assign [--only G1,G2] [--json FILE]``; bars: the other files here."""

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from benchmarks.assign import tables, tasks
from benchmarks.fleet.asked import print_asked
from benchmarks.micro.rows import Row

TOPICS = (tasks.rows, tables.rows)


def bars(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names; one of several topics runs all of them."""
    found: dict[str, list[Callable[[], list[Row]]]] = {}
    for topic in TOPICS:
        for name, bar in topic(console).items():
            found.setdefault(name, []).append(bar)
    return {name: partial(_all, those) for name, those in found.items()}


def _all(those: Sequence[Callable[[], list[Row]]]) -> list[Row]:
    return [row for bar in those for row in bar()]


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return print_asked("assign", (bars,), arguments, console)
