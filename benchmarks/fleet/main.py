"""Run it: ``python -m benchmarks fleet [--only I1,I2] [--json FILE]``; bars: the files beside."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.fleet import devices, integrity, jobs, memory, noise, streams, streams_real, trees, two_forms
from benchmarks.micro.rows import Row, write

TOPICS = (
    devices.rows,
    memory.rows,
    integrity.rows,
    noise.rows,
    two_forms.rows,
    streams.rows,
    streams_real.rows,
    jobs.rows,
    trees.rows,
)


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows that were asked for."""
    bars = {name: bar for topic in TOPICS for name, bar in topic(console).items()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks fleet")
    parser.add_argument("--only", default=",".join(bars), help="bars to run")
    parser.add_argument("--json", type=Path, help="file for the rows")
    asked = parser.parse_args(arguments)
    found: list[Row] = []
    for name in asked.only.split(","):
        if name not in bars:
            parser.error(f"--only: no bar is called {name!r}; there are: {', '.join(bars)}")
        rows = bars[name]()
        for row in rows:
            row.say(console)
        found += rows
    if asked.json:
        write(found, asked.json)
    return 1 if any(row.missed for row in found) else 0
