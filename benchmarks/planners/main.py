"""The command: run questions, print every row as it is measured, write all figures."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.planners import QUESTIONS, question
from benchmarks.planners.question import Row, Settings, cpu_seconds

_WIDTH = 12


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks planners`` and return its exit status."""
    asked = _parser().parse_args(arguments)
    known = sorted({bar for bars in QUESTIONS.values() for bar in bars})
    only = tuple(name.strip() for name in asked.only.split(",") if name.strip())
    if unknown := sorted(set(only) - set(known)):
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    settings = Settings(
        only=only, data=asked.data, seeds=tuple(range(asked.seeds)), quick=asked.quick, out=asked.out
    )
    found: dict[str, list[Row]] = {}
    for name, bars in QUESTIONS.items():
        if not only or set(bars) & set(only):
            found[name] = measure(name, settings, console)
            _write(asked.out / "planners.json", found)
    missed = sorted({row["bar"] for rows in found.values() for row in rows if row.get("met") is False})
    console.print(f"missed: {', '.join(missed) or 'none'}; figures in {asked.out / 'planners.json'}")
    return int(asked.strict and bool(missed))


def measure(name: str, settings: Settings, console: Console) -> list[Row]:
    """Run one question and print its rows; a change of columns starts a new table."""
    asked, start = question(name), cpu_seconds()
    console.print(f"\n{asked.title}", style="bold", markup=False, highlight=False)
    rows: list[Row] = []
    for row in asked.run(settings):
        if not rows or list(row) != list(rows[-1]):
            _print(console, list(row))
        rows.append(row)
        _print(console, [_cell(value) for value in row.values()])
    console.print(f"{cpu_seconds(start):.0f} CPU-s", highlight=False)
    return rows


def _print(console: Console, cells: Sequence[str]) -> None:
    text = "  ".join(cell.ljust(_WIDTH) for cell in cells).rstrip()
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def _write(path: Path, found: dict[str, list[Row]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"python": platform.python_version(), "machine": platform.machine(), "questions": found}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks planners", description=__doc__)
    parser.add_argument("--only", default="", help="bars, e.g. P1,P2")
    parser.add_argument("--data", type=Path, help="folder of the published graphs (node-link JSON)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds per figure")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer instances")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where figures and plots go")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser
