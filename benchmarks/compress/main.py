"""Run it: ``python -m benchmarks compress [--only C1,C4.timed] [--quick] [--json FILE]``.

C1 to C3 are simulated; C4 to C8 run real ranks over gloo, C4 and C5 in network namespaces of their own behind
a token bucket (needs root). C4 and C5 have parts that can be asked for alone: a few minutes each.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.compress import planned, ranks
from benchmarks.micro.rows import Row, write

BARS: Final[dict[str, Callable[[bool], list[Row]]]] = {
    "C1": planned.c1,
    "C2": planned.c2,
    "C3": planned.c3,
    "C4.timed": ranks.c4_timed,
    "C4.real": ranks.c4_real,
    "C4.1ms": ranks.c4_held,
    "C4.published": ranks.c4_published,
    "C5.200": partial(ranks.c5, "200 Mbit/s"),
    "C5.1000": partial(ranks.c5, "1 Gbit/s"),
    "C6": ranks.c6,
    "C7": ranks.c7,
    "C8": ranks.c8,
    "C8all": ranks.c8_all,
}


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return run_bars("compress", BARS, arguments, console)


def run_bars(
    name: str, bars: dict[str, Callable[[bool], list[Row]]], arguments: Sequence[str], console: Console
) -> int:
    """Print the rows of some bars, and write them as JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument(
        "--only", default=",".join(one for one in bars if not one.endswith("all")), help="bars to run"
    )
    parser.add_argument("--quick", action="store_true", help="fewer instances")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    wanted = [part for bar in asked.only.split(",") for part in _parts(bar, bars, parser)]
    for part in wanted:
        rows = bars[part](asked.quick)
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 0 if all(row.held for row in found) else 1


def _parts(bar: str, bars: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """A bar, or all its parts: ``C4`` is ``C4.timed``, ``C4.real`` and so on."""
    found = [one for one in bars if one == bar or one.startswith(f"{bar}.")]
    if not found:
        parser.error(f"--only: no bar is called {bar!r}; there are: {', '.join(bars)}")
    return found
