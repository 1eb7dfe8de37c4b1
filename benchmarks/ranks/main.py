"""Run it: ``python -m benchmarks ranks [--only P3,X1] [--quick] [--json FILE]``."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.micro.rows import Row, write
from benchmarks.ranks import forms, mutants

BARS: dict[str, Callable[[bool], list[Row]]] = {
    "X1": lambda quick: mutants.rows(count=500 if quick else 2000),
    "P3": forms.bubbles,
    "P5": forms.claims,
    "P6": forms.gathers,
}
"""Bars by name; the argument says whether to be quick."""


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks")
    parser.add_argument("--only", default=",".join(BARS), help="bars to run")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    for name in asked.only.split(","):
        if name not in BARS:
            parser.error(f"--only: no bar is called {name!r}; there are: {', '.join(BARS)}")
        rows = BARS[name](asked.quick)
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 0 if all(row.held for row in found) else 1
