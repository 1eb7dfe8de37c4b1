"""Run it: ``python -m benchmarks sequence [--only A1,A3] [--quick] [--json FILE]``.

A1 and A4 run real ranks over gloo; A2, A3 and A5 are simulated; A6 is timed in one process.
"""

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from benchmarks.compress.main import run_bars
from benchmarks.micro.rows import Row
from benchmarks.sequence import beside_dtensor, beside_milp, cells, sizes, timed

BARS: Final[dict[str, Callable[[bool], list[Row]]]] = {
    "A1": cells.a1,
    "A2": sizes.a2,
    "A3": sizes.a3,
    "A4": beside_dtensor.a4,
    "A5": beside_milp.a5,
    "A6": timed.a6,
}


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    return run_bars("sequence", BARS, arguments, console)
