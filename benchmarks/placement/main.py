"""The command: answer questions, print every row as it is measured, write all figures.

Times are CPU seconds of one thread. Placements are judged by code that shares nothing with the placer.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.placement.questions import QUESTIONS, Asked, Row


def run(arguments: Sequence[str], console: Console) -> int:
    """Run ``python -m benchmarks placement`` and return its exit status."""
    options = _parser().parse_args(arguments)
    chosen = [name for name in options.only.split(",") if name] or list(QUESTIONS)
    unknown = sorted(set(chosen) - set(QUESTIONS))
    if unknown:
        console.print(f"unknown: {', '.join(unknown)}; there are: {', '.join(QUESTIONS)}")
        return 2
    nets = tuple(name for name in options.nets.split(",") if name)
    asked = Asked(options.data, options.minimalloc, options.cp_sat, options.quick, nets)
    rows: list[Row] = []
    for name in chosen:
        for row in QUESTIONS[name](asked):
            rows.append(row)
            word = {True: "met", False: "MISSED", None: ""}[row.met]
            line = f"{row.bar:4}{word:7}{row.question:34} {row.figure}"
            console.print(
                line + (f"   [{row.wanted}]" if row.wanted else ""),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_bytes(
            msgspec.json.format(msgspec.json.encode([asdict(row) for row in rows])) + b"\n"
        )
    return int(options.strict and any(row.met is False for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks placement", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of MiniMalloc CSV files")
    parser.add_argument("--minimalloc", type=Path, help="its sources, abseil in external/abseil-cpp")
    parser.add_argument("--cp-sat", type=float, default=0.0, help="seconds of CP-SAT per file")
    parser.add_argument("--only", default="", help="questions, e.g. F1,F3")
    parser.add_argument("--nets", default="", help="only these nets in F3, F6 and F11, e.g. gpt2,vit")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller nets")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser
