"""Run it: ``python -m benchmarks ranks [--only P3,X1] [--quick] [--json FILE]``."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.compress import ranks as compress_ranks
from benchmarks.fabric import calls as fabric_calls
from benchmarks.micro.rows import Row, write
from benchmarks.ranks import divided, forms, gpt, grid, mutants, outside, published, real, timed, titan, told

_TIMED: dict[bool, list[Row]] = {}


def timed_row(name: str) -> Callable[[bool], list[Row]]:
    """One bar of the run of timed stages, which is made once."""

    def row(quick: bool) -> list[Row]:
        if quick not in _TIMED:
            _TIMED[quick] = timed.rows(quick)
        return [one for one in _TIMED[quick] if one.bar == name]

    return row


BARS: dict[str, Callable[[bool], list[Row]]] = {
    "X1": lambda quick: mutants.rows(count=500 if quick else 2000),
    "P1": real.rows,
    "P3": forms.bubbles,
    "P4": grid.rows,
    "P5": forms.claims,
    "P6": forms.gathers,
}
BARS |= {"E1": told.rows_many, "E2": told.rows_bytes, "E3": told.rows_models, "E4": published.rows_published}
BARS |= {"S1": divided.rows, "B4": outside.rows, "B4all": outside.rows_all, "B7": titan.rows}
BARS |= {"B2": published.rows_published, "B5": compress_ranks.c8, "B6": fabric_calls.r6}
BARS |= {"X2": gpt.rows_limit, "X3": gpt.rows_killed}
BARS |= {name: timed_row(name) for name in ("P2", "P7", "P8")}
"""Bars by name; the argument says whether to be quick."""
ELSEWHERE: Final = ("B2", "B4all", "B5", "B6")
"""Bars that others run, too, or parts of: E4, C8 of ``compress`` and R6 of ``fabric``."""


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ranks")
    parser.add_argument(
        "--only", default=",".join(one for one in BARS if one not in ELSEWHERE), help="bars to run"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    parser.add_argument("--points", type=Path, help="P4: keep answers in this file, and go on from there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="P4: CPU seconds of this part")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    for name in asked.only.split(","):
        if name not in BARS:
            parser.error(f"--only: no bar is called {name!r}; there are: {', '.join(BARS)}")
        if name == "P4":
            rows = grid.rows(asked.quick, file=asked.points, at_most=asked.seconds)
        else:
            rows = BARS[name](asked.quick)
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 0 if all(row.held for row in found) else 1
