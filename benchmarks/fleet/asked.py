"""Print the rows of a question that were asked for."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from benchmarks.micro.rows import Row, write

Topic: TypeAlias = Callable[[Console], dict[str, Callable[[], list[Row]]]]
"""Gives the bars of a topic by their names."""


def print_asked(question: str, topics: Sequence[Topic], arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    bars = {name: bar for topic in topics for name, bar in topic(console).items()}
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {question}")
    parser.add_argument("--only", default=",".join(bars), help="bars to run")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    for name in asked.only.split(","):
        if name not in bars:
            parser.error(f"--only: no bar is called {name!r}; there are: {', '.join(bars)}")
        rows = bars[name]()
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 1 if any(row.missed for row in found) else 0
