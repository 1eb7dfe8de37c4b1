"""`planned` beside `coop` on recorded steps: what a plan of the step before is worth (V5).

    python -m benchmarks evict --planned [--nets unet,bert] [--scale test] [--ratios 90,70,50] [--logs FOLDER]

Four training steps of each of the eleven nets are recorded once, op by op, and replayed in simulated arenas
at falling shares of the live peak, with the same times under both policies, so that nothing but decisions
differs. The first two steps of `planned` are those of `coop`; the last two count. The last three nets take
another step each time, so that nothing repeats there.
"""

import argparse
import json
import math
from pathlib import Path
from time import process_time
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.evict.nets import NETS
from benchmarks.evict.record import recorded
from tightrope.core import InfeasibleError
from tightrope.run.evict.policies import COOP, PLANNED, Policy
from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.evict.simulate import Simulated, live_peak, simulate

_DIFFER: Final = ("tree_lstm", "supernet", "llama_lengths")
_STEPS: Final = 4
_LEAST: Final = 1e-6
"""Seconds: less counts as this much, so that a share of nothing is none."""
_BAR, _BAR_DIFFER = 0.7, 1.02
Row = dict[str, Any]


def main(arguments: list[str], console: Console) -> int:
    """Print a row per net and ratio, then the geometric means; 1 where a bar is missed."""
    options = _options(arguments)
    torch.set_num_threads(1)
    table = Table("net", "ratio %", "coop, s", "planned, s", "x", "copied, s", "planning, CPU s", box=None)
    rows: list[Row] = []
    for name in options.nets.split(","):
        log = recorded(name, options.scale, _STEPS, options.logs)
        for ratio in map(int, options.ratios.split(",")):
            row = _row(log, ratio)
            rows.append(row)
            told = [_seconds(row[policy]) for policy in ("coop", "planned")]
            share = "-" if row["x"] is None else f"{row['x']:.3f}"
            table.add_row(name, str(ratio), *told, share, _seconds(row["copied"]), f"{row['planning']:.1f}")
        console.print(f"{name}: {len(log.events)} events, peak {live_peak(log) / 2**20:.1f} MiB")
    console.print(table)
    missed = 0
    for what, bar, mine in (
        ("repeat", _BAR, [row for row in rows if row["net"] not in _DIFFER]),
        ("differ", _BAR_DIFFER, [row for row in rows if row["net"] in _DIFFER]),
    ):
        shares = [row["x"] for row in mine if row["x"] is not None]
        if not shares:
            continue
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        missed += mean > bar
        console.print(
            f"V5, steps that {what}: {mean:.3f} x of coop in the geometric mean of {len(shares)} points, "
            f"worst {max(shares):.3f}; bar {bar}: {'met' if mean <= bar else 'missed'}",
            soft_wrap=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(missed > 0)


def _row(log: EvictionLog, ratio: int) -> Row:
    size = live_peak(log) * ratio // 100
    coop, coop_cpu = _played(log, size, COOP)
    planned, planned_cpu = _played(log, size, PLANNED)
    row: Row = {"net": log.name, "ratio": ratio, "x": None, "copied": None}
    row |= {"coop": _later(coop), "planned": _later(planned), "planning": max(0.0, planned_cpu - coop_cpu)}
    if planned is not None:
        row["copied"] = planned.statistics.moved_bytes / PLANNED.copy_rate / 1e6
    if row["coop"] is not None and row["planned"] is not None and max(row["coop"], row["planned"]) > _LEAST:
        row["x"] = max(row["planned"], _LEAST) / max(row["coop"], _LEAST)
    return row


def _played(log: EvictionLog, size: int, policy: Policy) -> tuple[Simulated | None, float]:
    begin = process_time()
    try:
        return simulate(log, size, policy), process_time() - begin
    except InfeasibleError:
        return None, process_time() - begin


def _later(found: Simulated | None) -> float | None:
    """Recomputed seconds of the steps after the second."""
    return None if found is None else sum(found.again_ns[2:]) / 1e9


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict --planned")
    parser.add_argument("--planned", action="store_true", required=True)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--scale", choices=("bench", "test"), default="bench")
    parser.add_argument("--ratios", default="90,70,50", help="percent of the live peak")
    parser.add_argument("--logs", type=Path, help="folder of recorded logs: read, and written where missing")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args(arguments)
