"""Bits of long trainings under eviction (V1): every net at every ratio, beside plain eager.

    python -m benchmarks evict --only V1 [--nets bert,unet] [--steps 20] [--scale test] [--json FILE]

Per net of the eleven, ``--steps`` training steps with SGD and momentum, with dropout and batch norm, first
plain, then under each policy in an arena of 90, 80, ... 10 % of the peak. Compared are every loss, all
weights and buffers, the last gradients and the random state. No ratio is left out: a larger budget may be
refused where a smaller one is not. With ``--json``, points that the file has from an earlier call are not run
again, so that ``--seconds`` can divide a long comparison into several calls.
"""

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import tightrope
from benchmarks.evict.eager import RATIOS, begun, net_names, point, train

Row = dict[str, Any]


def main(arguments: list[str], console: Console) -> int:
    """Print a row per net and policy; 1 where bits differ or a budget was exceeded."""
    options = _options(arguments)
    torch.set_num_threads(1)
    rows: list[Row] = _known(options)
    end = perf_counter() + options.seconds
    left = 0
    for name in net_names(options.nets):
        missing = _missing(name, options, rows)
        if missing and perf_counter() < end:
            left += _run(name, missing, options, rows, end)
            console.print(f"{name}: {sum(row['net'] == name for row in rows)} points")
        else:
            left += len(missing)
        if options.json is not None:
            found = {"steps": options.steps, "scale": options.scale, "rows": rows}
            options.json.write_text(json.dumps(found, indent=1))
    console.print(_table(rows))
    done = [row for row in rows if "equal" in row]
    differ = sum(not (row["equal"] and row["within"]) for row in done)
    told = "pass" if not differ and not left else "FAIL" if differ else "not complete"
    console.print(
        f"V1: {options.steps} steps: bits equal and budget kept at {len(done) - differ} of {len(done)} "
        f"points that finish, of {len({row['net'] for row in done})} nets; {len(rows) - len(done)} points "
        f"refused, {left} not run: {told}",
        soft_wrap=True,
    )
    return int(differ > 0)


def _known(options: argparse.Namespace) -> list[Row]:
    if options.json is None or not options.json.exists():
        return []
    found = json.loads(options.json.read_text())
    if (found["steps"], found["scale"]) != (options.steps, options.scale):
        raise tightrope.TightropeError(
            f"--json: {options.json} is of {found['steps']} steps at scale {found['scale']}; name another "
            "file, or the same steps and scale."
        )
    return list(found["rows"])


def _missing(name: str, options: argparse.Namespace, rows: list[Row]) -> list[tuple[str, int]]:
    known = {(row["policy"], row["ratio"]) for row in rows if row["net"] == name}
    every = [(policy, ratio) for policy in options.policies.split(",") for ratio in options.ratios]
    return [one for one in every if one not in known]


def _run(
    name: str, missing: list[tuple[str, int]], options: argparse.Namespace, rows: list[Row], end: float
) -> int:
    """Run points of a net until the time is over; return how many are left."""
    expected = train(begun(name, options.scale), options.steps)
    _, free = point(name, options.scale, options.steps, 2**34, "coop")
    peak = free.statistics().high_water
    for at, (policy, ratio) in enumerate(missing):
        if perf_counter() > end:
            return len(missing) - at
        row: Row = {"net": name, "policy": policy, "peak": peak, "ratio": ratio}
        budget = peak * ratio // 100
        try:
            after, eviction = point(name, options.scale, options.steps, budget, policy, options.most_again)
        except tightrope.OutOfBudgetError as error:
            rows.append(row | {"refused": str(error)})
            continue
        rows.append(
            row
            | {
                "equal": all(torch.equal(a, b) for a, b in zip(expected, after, strict=True)),
                "within": eviction.statistics().high_water <= budget,
                "ran_again": eviction.num_recomputed,
                "ops": eviction.num_ops,
            }
        )
    return 0


def _table(rows: list[Row]) -> Table:
    table = Table(
        "net", "policy", "peak, KiB", "finishes at, %", "bits equal", "within", "ran again, of ops", box=None
    )
    for name, policy in dict.fromkeys((row["net"], row["policy"]) for row in rows):
        mine = [row for row in rows if (row["net"], row["policy"]) == (name, policy)]
        done = [row for row in mine if "equal" in row]
        table.add_row(
            *(
                name,
                policy,
                f"{mine[0]['peak'] / 1024:.0f}",
                " ".join(str(row["ratio"]) for row in done) or "-",
            ),
            *(f"{sum(row[what] for row in done)} of {len(done)}" for what in ("equal", "within")),
            f"{sum(row['ran_again'] for row in done)} of {sum(row['ops'] for row in done)}",
        )
    return table


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict --only V1")
    parser.add_argument("--only", choices=("V1",), required=True)
    parser.add_argument("--nets", default="all")
    parser.add_argument("--policies", default="coop")
    parser.add_argument("--ratios", nargs="+", type=int, default=RATIOS, help="percent of the peak")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--scale", choices=("test", "bench"), default="test")
    parser.add_argument("--most-again", type=float, default=20.0, help="a point that takes more is refused")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no point after so many")
    parser.add_argument("--json", type=Path, help="where the figures go; what it has is not run again")
    return parser.parse_args(arguments)
