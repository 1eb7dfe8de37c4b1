"""Run bars net by net, each in a process of its own, and print every line as it is measured."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from benchmarks.recorder.captured import captured
from benchmarks.recorder.eager import eager
from benchmarks.recorder.families import FAMILIES
from benchmarks.recorder.foreign import foreign
from benchmarks.recorder.nets import CAPTURED, FOREIGN
from benchmarks.recorder.others import others
from benchmarks.recorder.planned import planned
from benchmarks.recorder.row import Figure, Row
from benchmarks.recorder.speed import speed
from benchmarks.zoo import Scale

BARS: Final[dict[str, tuple[Callable[[str, Scale], Row | list[Row]], Sequence[str]]]] = {
    "H1": (captured, CAPTURED),
    "H2": (eager, CAPTURED),
    "H3": (foreign, FOREIGN),
    "H4": (speed, ("recurrent",)),
    "H5": (planned, CAPTURED),
    "H10": (others, tuple(FAMILIES)),
}
_MARK: Final = "row:"


def run(arguments: list[str], console: Console) -> int:
    """Answer the question; exit code 1 when a bar is missed or a net does not finish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recorder")
    parser.add_argument("--only", default=",".join(BARS), help="of " + ", ".join(BARS))
    parser.add_argument("--nets", help="names, separated by commas; default: eight of the zoo")
    parser.add_argument("--scale", choices=("test", "bench"), default="bench")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one net")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args(arguments)
    if options.here:
        return _here(options.only, options.nets, options.scale)
    found: dict[str, list[dict[str, object]]] = {}
    for bar in options.only.split(","):
        names = options.nets.split(",") if options.nets else BARS[bar][1]
        found[bar] = _bar(console, bar, names, options.scale, options.limit)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if all(row["passed"] for rows in found.values() for row in rows) else 1


def _here(bar: str, name: str, scale: Scale) -> int:
    torch.set_num_threads(1)
    measured = BARS[bar][0](name, scale)
    for row in measured if isinstance(measured, list) else [measured]:
        print(_MARK + json.dumps(asdict(row)), flush=True)
    return 0


def _bar(
    console: Console, bar: str, names: Sequence[str], scale: Scale, limit: float
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    heading: list[str] = []
    width = max(12, *map(len, names))
    for name in names:
        for row in _measured(bar, name, scale, limit):
            figures = row["figures"]
            assert isinstance(figures, dict)
            if not heading and len(figures) > 1:
                heading = list(figures)
                console.print("  ".join([bar.ljust(width), *heading[1:], "bar"]), soft_wrap=True)
            cells = [_cell(value).rjust(len(title)) for title, value in figures.items()][1:]
            end = ["met" if row["passed"] else str(row.get("error", "missed"))]
            console.print("  ".join([name.ljust(width), *cells, *end]), soft_wrap=True, highlight=False)
            rows.append(row)
    return rows


def _measured(bar: str, name: str, scale: Scale, limit: float) -> list[dict[str, object]]:
    """Measure one net in a process of its own; what fails is a row, too."""
    command = [sys.executable, "-m", "benchmarks", "recorder", "--here", "--only", bar]
    command += ["--nets", name, "--scale", scale]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        error = done.stderr.strip().rpartition("\n")[2] or "no figures"
        lines = done.stdout.splitlines()
    except subprocess.TimeoutExpired:
        lines, error = [], f"not done in {limit:.0f} s"
    rows = [json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK)]
    return rows or [{"figures": {"net": name}, "passed": False, "error": error}]


def _cell(value: Figure) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
