"""The command: run bars, print every row as it is measured, write all figures."""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.spine import BARS, frontier
from benchmarks.spine.bar import Bar, Row, Settings, Verdict
from benchmarks.spine.cases import run_case
from benchmarks.zoo import REGISTRY
from tightrope.price.device import processor

_PACKAGES = ("tightrope", "torch", "transformers", "numpy")


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks spine`` and return its exit status."""
    asked = _parser().parse_args(arguments)
    known = [name for bar in BARS for name in bar.ids]
    only = _names(asked.only, known) or tuple(known)
    settings = Settings(asked.scale, asked.quick, asked.inductor, _names(asked.nets, list(REGISTRY)))
    console.print(f"spine at scale {settings.scale}, 1 thread, {settings.num_pairs} pairs per time ratio")
    found: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    for bar in BARS:
        if set(bar.ids) & set(only):
            rows, judged = measure(bar, settings, console)
            found.append({"bars": bar.ids, "title": bar.title, "rows": rows})
            verdicts += judged
            _write(Path(asked.json), settings, found, verdicts)
            if asked.svg and bar is frontier.BAR:
                frontier.draw(rows, Path(asked.svg))
    console.print()
    for verdict in verdicts:
        console.print(_line(verdict), markup=False, soft_wrap=True, highlight=False)
    console.print(f"figures in {asked.json}", highlight=False)
    return int(asked.strict and any(verdict.met is False for verdict in verdicts))


def measure(bar: Bar, settings: Settings, console: Console) -> tuple[list[Row], list[Verdict]]:
    """Measure one bar and judge it; a case that did not finish makes all of its bars missed."""
    console.print(
        f"\n{', '.join(bar.ids)}  {bar.title}", markup=False, highlight=False, style="bold", soft_wrap=True
    )
    _print_cells(bar, [column.heading for column in bar.columns], console)
    rows: list[Row] = []
    start = time.perf_counter()
    for case in bar.cases(settings):
        for row in run_case(bar, case, settings):
            rows.append(row)
            _print_cells(bar, _cells(bar, row), console)
    whole = [row for row in rows if "failed" not in row]
    broken = [f"{row['net']}: {row['failed'].splitlines()[-1]}" for row in rows if "failed" in row]
    verdicts = [
        Verdict(v.bar, False, f"{v.figure}; failed: {'; '.join(broken)}") if broken else v
        for v in bar.verdicts(whole, settings)
    ]
    console.print(f"{time.perf_counter() - start:.0f} s", highlight=False)
    for verdict in verdicts:
        console.print(_line(verdict), markup=False, soft_wrap=True, highlight=False)
    return rows, verdicts


def _line(verdict: Verdict) -> str:
    word = {True: "met", False: "MISSED", None: "see tests"}[verdict.met]
    return f"{verdict.bar:4} {word:9} {verdict.figure}"


def _cells(bar: Bar, row: Row) -> list[str]:
    cells = ["-" if row.get(c.field) is None else c.show(row[c.field]) for c in bar.columns]
    if "failed" in row:
        cells[-1] = row["failed"].splitlines()[-1]
    return cells


def _print_cells(bar: Bar, cells: Sequence[str], console: Console) -> None:
    padded = [cell.ljust(column.width) for cell, column in zip(cells, bar.columns, strict=True)]
    console.print("  ".join(padded).rstrip(), soft_wrap=True, markup=False, highlight=False)


def _names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(set(names) - set(known) - {"gpt2_deep"})
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    return names


def _write(
    path: Path, settings: Settings, found: Sequence[dict[str, Any]], verdicts: Sequence[Verdict]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "settings": settings,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "num_threads": 1,
        "processor": processor(),
        "verdicts": verdicts,
        "bars": found,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spine", description=__doc__)
    parser.add_argument("--only", default="", help="bars, e.g. S1,S4 (bars of one run come together)")
    parser.add_argument("--scale", choices=("bench", "test"), default="bench", help="of the nets")
    parser.add_argument("--quick", action="store_true", help="20 pairs and 20 repetitions")
    parser.add_argument("--inductor", action="store_true", help="measure Inductor too (minutes)")
    parser.add_argument("--nets", default="", help="run the bars on these nets instead of their own")
    parser.add_argument("--json", default="results/spine.json", help="where the figures go")
    parser.add_argument("--svg", default="", help="draw the curves of U2 into this file")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser
