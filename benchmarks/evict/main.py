"""`python -m benchmarks evict`: eager loops under eviction (see `eager`).

With ``--simulated``: eviction policies on recorded and synthetic logs.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.evict.eager import main as eager
from benchmarks.evict.families import FAMILIES, synthetic
from benchmarks.evict.record import record_steps
from benchmarks.evict.simulated import (
    ABLATIONS,
    POLICIES,
    RATIOS,
    Point,
    against_peers,
    lowest,
    measure,
    monotone,
    planned_ratio,
    rows,
    search_time,
)
from benchmarks.zoo import build
from benchmarks.zoo.tree_lstm import random_merges
from tightrope.formats.eviction_log import EvictionLog, read_eviction_log, write_eviction_log
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR
from tightrope.run.evict.simulate import live_peak

NETS = ("unet", "resnet18", "vit", "gpt2_small_vocab", "inplace_tied", "random_trees")
"""Recorded by default; any net of the zoo may be named."""


def run(arguments: list[str], console: Console) -> int:
    """Measure eager loops; or record or read the logs, simulate, print the tables, write the file."""
    if "--simulated" not in arguments:
        return eager(arguments)
    options = _options(arguments)
    logs = [_log(name, options, console) for name in options.nets]
    logs += [synthetic(name) for name in FAMILIES if options.synthetic]
    points = [measure(log, policy, ratio) for log in logs for policy in POLICIES for ratio in options.ratios]
    _curves(console, logs, points, options.ratios)
    repeating = [log.name for log in logs if log.name != "random_trees"]
    ablated = [
        measure(log, policy, ratio) for log in logs for policy in ABLATIONS for ratio in options.ratios
    ]
    result = {
        "peers": {
            "recomputed": against_peers(points, moves=False),
            "and_moved": against_peers(points, moves=True),
        },
        "lowest": {log.name: {p.name: lowest(points, log.name, p.name) for p in POLICIES} for log in logs},
        "planned": {
            "repeating": planned_ratio(points, repeating),
            "not_repeating": planned_ratio(points, ["random_trees"]),
        },
        "search": {policy.name: search_time(2000, policy) for policy in (COOP, COOP_AS_PUBLISHED, DTR, DTE)},
        "monotonicity": monotone(logs, (COOP, DTR, DTE)) if options.fine else {},
        "points": rows(points),
        "ablations": rows(ablated),
    }
    _ablations(console, points, ablated)
    _summary(console, result, points)
    options.out.write_text(json.dumps(result, indent=1))
    console.print(f"written: {options.out}")
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict")
    parser.add_argument("--simulated", action="store_true", help="policies on logs, without running anything")
    parser.add_argument("--nets", nargs="*", default=list(NETS), help="of the zoo, and random_trees")
    parser.add_argument(
        "--logs", type=Path, help="folder of recorded logs: read there, and written where missing"
    )
    parser.add_argument("--scale", choices=("bench", "test"), default="bench")
    parser.add_argument(
        "--ratios", nargs="*", type=int, default=list(RATIOS), help="percent of the live peak"
    )
    parser.add_argument("--no-synthetic", dest="synthetic", action="store_false")
    parser.add_argument("--no-fine", dest="fine", action="store_false", help="leave out the 5 %% grid")
    parser.add_argument("--out", type=Path, default=Path("evict_simulated.json"))
    return parser.parse_args(arguments)


def _log(name: str, options: argparse.Namespace, console: Console) -> EvictionLog:
    file = options.logs / f"{name}.{options.scale}.json" if options.logs else None
    if file is not None and file.exists():
        return read_eviction_log(file.read_bytes())
    case = build("tree_lstm" if name == "random_trees" else name, scale=options.scale)
    if name == "random_trees":

        def batch() -> tuple[Tensor, ...]:
            leaves, _, target = case.inputs
            keep = min(len(leaves), 24)
            return leaves[:keep], random_merges(keep), target

    else:

        def batch() -> tuple[Tensor, ...]:
            return case.inputs

    torch.manual_seed(0)
    log = record_steps(name, case.model, batch, num_steps=2)
    console.print(f"recorded {name}: {len(log.events)} events, peak {live_peak(log) / 2**20:.1f} MiB")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(write_eviction_log(log))
    return log


def _curves(console: Console, logs: list[EvictionLog], points: list[Point], ratios: list[int]) -> None:
    found = {(p.log, p.policy, p.ratio): p for p in points}
    table = Table(title="recomputed + moved seconds over operator seconds, % (- = does not finish)")
    for head in ("log", "policy", *(f"{ratio} %" for ratio in ratios), "frag %"):
        table.add_column(head, justify="left" if head in ("log", "policy") else "right")
    for log in logs:
        for policy in POLICIES:
            row = [found[log.name, policy.name, ratio] for ratio in ratios]
            evicting = [p.fragmentation for p in row if p.finished and p.evictions]
            table.add_row(
                *(log.name, policy.name),
                *(f"{100 * p.overhead:.2f}" if p.finished else "-" for p in row),
                f"{100 * mean(evicting):.1f}" if evicting else "-",
            )
    console.print(table)


def _ablations(console: Console, points: list[Point], ablated: list[Point]) -> None:
    """Over the points at which coop finishes: how many finish without an idea, and at what cost there."""
    table = Table(title="ablations: against coop, where both finish")
    for head in ("variant", "finishes", "of", "recomputed, x coop", "fragmentation %"):
        table.add_column(head, justify="left" if head == "variant" else "right")
    coop = {(p.log, p.ratio): p for p in points if p.policy == "coop"}
    for name in dict.fromkeys(p.policy for p in ablated):
        mine = [p for p in ablated if p.policy == name]
        both = [(p, coop[p.log, p.ratio]) for p in mine if p.finished and coop[p.log, p.ratio].finished]
        share = sum(p.total_s for p, _ in both) / max(1e-9, sum(c.total_s for _, c in both))
        evicting = [p.fragmentation for p, _ in both if p.evictions]
        finished = sum(p.finished for p in mine)
        most = sum(c.finished for c in coop.values())
        table.add_row(
            name, str(finished), str(most), f"{share:.2f}", f"{100 * mean(evicting):.1f}" if evicting else "-"
        )
    console.print(table)


def _summary(console: Console, result: dict[str, Any], points: list[Point]) -> None:
    for what, found in result["peers"].items():
        console.print(
            f"coop against dtr and dte ({what} seconds): {found['compared']} points where both finish, "
            f"{found['strictly_less']} strictly less, {len(found['worse'])} more"
        )
    for log, ratios in result["lowest"].items():
        console.print(f"lowest ratio that finishes, {log}: {ratios}")
    for policy in ("coop", "dtr", "dte"):
        shares = [p.fragmentation for p in points if p.policy == policy and p.finished and p.evictions]
        console.print(
            f"fragmentation at eviction, {policy}: {100 * mean(shares):.2f} %" if shares else policy
        )
    for policy, times in result["search"].items():
        console.print(
            f"search at 2,000 pieces, {policy}: {times['us_per_eviction']:.1f} us per eviction, "
            f"{times['us_per_request']:.1f} us per request"
        )
    console.print(f"planned over coop, steps after the first: {result['planned']}")
    console.print(f"monotonicity violations on a 5 % grid: {result['monotonicity']}")
