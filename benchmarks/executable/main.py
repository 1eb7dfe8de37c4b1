"""The command: run bars of the executable, print every row as it is measured, write all figures."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from rich.console import Console

from benchmarks.executable import before, causes, first, inference, judged, pending, saved
from benchmarks.spine.bar import Bar, Row, Settings, Verdict

BARS: Final[dict[str, tuple[Bar, ...]]] = {
    "X1": (causes.BAR, judged.MUTANTS, judged.COST),
    "X2": (saved.BAR,),
    "X3": (before.BAR,),
    "X4": (pending.EIGHT, pending.TWO),
    "X5": (inference.BAR,),
    "N3": (first.BAR,),
}
"""Tables of each bar, in the order in which they are measured."""


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks executable`` and return its exit status."""
    asked = _parser().parse_args(arguments)
    only = tuple(name for name in asked.only.split(",") if name) or tuple(BARS)
    if set(only) - set(BARS):
        sys.exit(f"unknown: {', '.join(set(only) - set(BARS))}; there are: {', '.join(BARS)}")
    torch.set_num_threads(1)
    if asked.before:
        os.environ[before.BEFORE] = str(Path(asked.before).resolve())
    settings = Settings(asked.scale, asked.quick)
    found: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    for bar in (bar for name in only for bar in BARS[name]):
        rows, judged_as = measure(bar, settings, console)
        found.append({"bars": bar.ids, "title": bar.title, "rows": rows, "verdicts": judged_as})
        verdicts += judged_as
        path = Path(asked.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    console.print()
    for verdict in verdicts:
        _say(verdict, console)
    return int(asked.strict and any(verdict.met is False for verdict in verdicts))


def measure(bar: Bar, settings: Settings, console: Console) -> tuple[list[Row], list[Verdict]]:
    """Measure one table in this process; a case that fails makes the bar missed."""
    console.print(f"\n{', '.join(bar.ids)}  {bar.title}", markup=False, highlight=False, soft_wrap=True)
    _print(bar, [column.heading for column in bar.columns], console)
    cases = bar.cases(settings)
    if not cases:
        return [], [Verdict(bar.ids[0], None, "not measured: it needs an option, see --help")]
    rows: list[Row] = []
    began = time.perf_counter()
    broken: list[str] = []
    for case in cases:
        try:
            for row in bar.rows(case, settings):
                rows.append(row)
                shown = ["-" if row.get(c.field) is None else c.show(row[c.field]) for c in bar.columns]
                _print(bar, shown, console)
        except Exception as error:
            broken.append(f"{case}: {type(error).__name__}: {error}")
            traceback.print_exc()
    verdicts = bar.verdicts(rows, settings) if rows else [Verdict(bar.ids[0], False, "no rows")]
    if broken:
        verdicts = [Verdict(v.bar, False, f"{v.figure}; failed: {'; '.join(broken)}") for v in verdicts]
    console.print(f"{time.perf_counter() - began:.0f} s", highlight=False)
    for verdict in verdicts:
        _say(verdict, console)
    return rows, verdicts


def _say(verdict: Verdict, console: Console) -> None:
    word = {True: "met", False: "MISSED", None: "-"}[verdict.met]
    console.print(f"{verdict.bar:4} {word:9} {verdict.figure}", markup=False, soft_wrap=True, highlight=False)


def _print(bar: Bar, cells: Sequence[str], console: Console) -> None:
    padded = [cell.ljust(column.width) for cell, column in zip(cells, bar.columns, strict=True)]
    console.print("  ".join(padded).rstrip(), soft_wrap=True, markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks executable", description=__doc__)
    parser.add_argument("--only", default="", help="bars, e.g. X1,X4")
    parser.add_argument("--scale", choices=("bench", "test"), default="test", help="of the nets")
    parser.add_argument("--quick", action="store_true", help="fewer nets, mutants and repetitions")
    parser.add_argument("--before", default="", help="a checkout of an earlier version, for X3")
    parser.add_argument("--json", default="results/executable.json", help="where the figures go")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser
