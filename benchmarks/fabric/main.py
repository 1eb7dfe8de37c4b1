"""Run it: ``python -m benchmarks fabric [--only R1] [--quick] [--json FILE]``. Real processes on one host."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from benchmarks.compress.main import run_bars
from benchmarks.fabric import calls, lines, training
from benchmarks.micro.rows import Row

BARS: Final[dict[str, Callable[[bool], list[Row]]]] = {
    "R1": calls.r1,
    "R2": training.r2,
    "R3": calls.r3,
    "R4": lines.r4,
    "R5": calls.r5,
    "R6": calls.r6,
}


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return run_bars("fabric", BARS, arguments, console)
