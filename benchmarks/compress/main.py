"""Run it: ``python -m benchmarks compress [--only C1,C4] [--quick] [--json FILE]``.

C1 to C3 are simulated; C4 to C7 run real ranks over gloo, C4 and C5 in network namespaces of their own behind
a token bucket (needs root).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.compress import planned, ranks
from benchmarks.micro.rows import Row, write

BARS: Final[dict[str, Callable[[bool], list[Row]]]] = {
    "C1": planned.c1,
    "C2": planned.c2,
    "C3": planned.c3,
    "C4": ranks.c4,
    "C5": ranks.c5,
    "C6": ranks.c6,
    "C7": ranks.c7,
}


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return run_bars("compress", BARS, arguments, console)


def run_bars(
    name: str, bars: dict[str, Callable[[bool], list[Row]]], arguments: Sequence[str], console: Console
) -> int:
    """Print the rows of some bars, and write them as JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument("--only", default=",".join(bars), help="bars to run")
    parser.add_argument("--quick", action="store_true", help="fewer instances")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    for bar in asked.only.split(","):
        if bar not in bars:
            parser.error(f"--only: no bar is called {bar!r}; there are: {', '.join(bars)}")
        rows = bars[bar](asked.quick)
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 0 if all(row.held for row in found) else 1
