"""The command: run families under budgets, print every row as it is measured, write all figures."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, count
from benchmarks.witness.counter import build, environment
from benchmarks.witness.families import FAMILIES
from benchmarks.witness.fresh import Asked, Figures
from tightrope.core import Bytes, format_bytes

ALLOWED: Final[Bytes] = 256 * 2**10
"""What a run may take above its budget."""
_SHARES: Final = (100, 80, 60)
_QUICK: Final = (80,)
_FOLLOWED: Final = 6
"""Refusals in a row whose named budget is asked for."""

Ask = Callable[[Asked], Figures]


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks witness`` and return its exit status."""
    asked = _parser().parse_args(arguments)
    names = tuple(name for name in asked.only.split(",") if name) or tuple(FAMILIES)
    if unknown := set(names) - set(FAMILIES):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(FAMILIES)}")
    began = time.perf_counter()
    settings = Settings(quick=asked.quick, nets=names)
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as process:
        bar = _bar(lambda case: answer(process, case))
        _print([column.heading for column in bar.columns], bar, console)
        rows: list[Row] = []
        for name in bar.cases(settings):
            for row in bar.rows(name, settings):
                rows.append(row)
                _print([_shown(column, row) for column in bar.columns], bar, console)
    verdicts = bar.verdicts(rows, settings)
    path = Path(asked.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": rows, "verdicts": verdicts})) + b"\n")
    console.print(f"{time.perf_counter() - began:.0f} s", highlight=False)
    for verdict in verdicts:
        word = "met" if verdict.met else "MISSED"
        console.print(
            f"{verdict.bar} {word:7} {verdict.figure}", markup=False, soft_wrap=True, highlight=False
        )
    return int(asked.strict and not all(verdict.met for verdict in verdicts))


@contextmanager
def server(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the process that runs cases, and end it; what it complains of goes to a file in ``folder``."""
    command = [sys.executable, "-m", "benchmarks.witness.fresh"]
    with (
        (folder / "errors").open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(build(folder)),
        ) as process,
    ):
        yield process  # leaving closes its standard input, at which it ends


def answer(process: "subprocess.Popen[bytes]", case: Asked) -> Figures:
    """Let that process run one case."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(case) + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return msgspec.json.decode(line, type=Figures) if line else Figures(failed="the server ended")


def _rows(name: str, settings: Settings, ask: Ask) -> Iterator[Row]:
    """Measure one family: eager, shares of eager's peak, and what a refusal names."""
    eager = ask(Asked(name))
    if eager.failed:
        yield {"family": name, "asked": "eager", "failed": eager.failed}
        return
    budget, figures, refusals = eager.true // 4, Figures(refused="not asked yet"), 0
    for share in _QUICK if settings.quick else _SHARES:
        asked = eager.true * share // 100
        found = ask(Asked(name, asked))
        yield _row(name, f"{share} %", asked, found, eager)
        if found.refused and found.named:
            budget, figures, refusals = found.named, found, 1
    while figures.refused and refusals < _FOLLOWED:
        figures = ask(Asked(name, budget))
        if not figures.named:
            break
        budget, refusals = figures.named, refusals + 1
    row = _row(name, "smallest", budget, figures, eager)
    yield {**row, "refusals": refusals}


def _row(name: str, asked: str, budget: Bytes, figures: Figures, eager: Figures) -> Row:
    accepted = not figures.refused and not figures.failed
    above = figures.true - budget if accepted else None
    return {
        "family": name,
        "asked": asked,
        "budget": budget,
        "eager": eager.true,
        **msgspec.to_builtins(figures),
        "accepted": accepted,
        "above": above,
        "difference": figures.true - figures.said if accepted else None,
        "equal": figures.bits == eager.bits if accepted else None,
        "outcome": _outcome(figures, above),
    }


def _outcome(figures: Figures, above: Bytes | None) -> str:
    if figures.failed:
        return f"failed: {figures.failed.splitlines()[0][:80]}"
    if above is None:
        return "refused" if figures.refused.startswith("Infeasible") else "ran out"
    return "within" if above <= 0 else "allowed" if above <= ALLOWED else "ABOVE"


def _verdicts(rows: Sequence[Row]) -> list[Verdict]:
    ran = [row for row in rows if row.get("accepted")]
    failed = [f"{row['family']} {row['asked']}: {row['failed']}" for row in rows if row.get("failed")]
    within = [row["above"] <= ALLOWED for row in ran]
    smallest = [row for row in rows if row.get("asked") == "smallest"]
    named = [row for row in smallest if row["refusals"] or row["accepted"]]
    first = [row["accepted"] and row["refusals"] <= 1 for row in named]
    unnamed = ", ".join(row["family"] for row in smallest if row not in named)
    worst = max(ran, key=lambda row: row["above"], default=None)
    figure = f"true bytes <= budget + {format_bytes(ALLOWED)}: {count(within)} accepted runs"
    if worst is not None:
        figure += f"; the worst, {worst['family']}, by {worst['above']} B"
    if failed:
        figure += f"; failed: {'; '.join(failed)}"
    equal = [row["equal"] for row in ran]
    return [
        Verdict("W1", bool(ran) and all(within) and not failed, figure),
        Verdict("W2", all(equal), f"bits of eager: {count(equal)}"),
        Verdict(
            "W3",
            all(first),
            f"the first budget that is named trains five steps: {count(first)}"
            + (f"; none is named for {unnamed}" if unnamed else ""),
        ),
    ]


def _bar(ask: Ask) -> Bar:
    return Bar(
        ("W1", "W2", "W3"),
        "True bytes of a training step, counted from outside",
        (
            Column("family", "family", 17),
            Column("asked", "asked", 9),
            Column("budget", "budget", 11, str),
            Column("true", "true", 11, str),
            Column("said", "said", 11, str),
            Column("difference", "true-said", 11, str),
            Column("above", "above", 11, str),
            Column("hidden", "hidden", 9, str),
            Column("kept", "kept", 9, str),
            Column("level", "level", 6),
            Column("equal", "equal", 6, str),
            Column("outcome", "outcome", 10),
        ),
        lambda settings: settings.nets,
        lambda name, settings: _rows(name, settings, ask),
        lambda rows, _: _verdicts(rows),
    )


def _shown(column: Column, row: Row) -> str:
    return "-" if row.get(column.field) is None else column.show(row[column.field])


def _print(cells: Sequence[str], bar: Bar, console: Console) -> None:
    padded = [cell.ljust(column.width) for cell, column in zip(cells, bar.columns, strict=True)]
    console.print("  ".join(padded).rstrip(), soft_wrap=True, markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks witness", description=__doc__)
    parser.add_argument("--only", default="", help="families, e.g. t5,topk")
    parser.add_argument("--quick", action="store_true", help="one share of eager's peak instead of three")
    parser.add_argument("--json", default="results/witness.json", help="where the figures go")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser
