"""`python -m benchmarks evict`: eager loops under eviction (see `eager`).

With ``--simulated``: eviction policies on recorded and synthetic logs. With ``--planned``: `planned` beside
`coop` on logs of the eleven nets (see `foreseen`). With ``--only V1``: bits of long trainings
(see `bits`); with ``--only V2``: policies on nets drawn from seeds (see `drawn`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.evict.bits import main as bits
from benchmarks.evict.drawn import main as drawn
from benchmarks.evict.eager import main as eager
from benchmarks.evict.families import FAMILIES, synthetic
from benchmarks.evict.foreseen import main as foreseen
from benchmarks.evict.record import record_steps
from benchmarks.evict.simulated import (
    ABLATIONS,
    ALL_RATIOS,
    FINE,
    ON_GRID,
    POLICIES,
    RATIOS,
    Point,
    ablated,
    against_peers,
    lowest,
    measure,
    monotone,
    rows,
    search_time,
    totals,
)
from benchmarks.evict.tables import print_tables
from benchmarks.zoo import build
from benchmarks.zoo.tree_lstm import random_merges
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR, Policy
from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.evict.simulate import live_peak
from tightrope_planners.formats.eviction import read_eviction_log, write_eviction_log

RANDOM: str = "random_trees"
"""A tree LSTM over another random tree in every step, so that steps do not repeat."""
NETS = ("inplace_tied", RANDOM)
ALL_NETS = (*NETS, "unet", "vit", "resnet18", "gpt2_small_vocab")
"""Recorded with ``--full``; any net of the zoo may be named."""
_LEAVES = 24


def run(arguments: list[str], console: Console) -> int:
    """Measure eager loops; or record or read the logs, simulate, print the tables, write the file."""
    if "--only" in arguments:
        return (drawn if "V2" in arguments else bits)(arguments, console)
    if "--planned" in arguments:
        return foreseen(arguments, console)
    if "--simulated" not in arguments:
        return eager(arguments)
    options = _options(arguments)
    logs = [_log(name, options, console) for name in options.nets]
    logs += [synthetic(name) for name in FAMILIES if options.synthetic]
    points = _measure(console, "policies", logs, POLICIES, options.ratios)
    grid = _measure(console, "grid of 5 %", logs, ON_GRID, FINE) if options.fine else []
    variants: Sequence[Policy] = ABLATIONS if options.ablations else ()
    without = _measure(console, "variants", logs, variants, options.ratios)
    compared = grid or points
    names = [log.name for log in logs]
    result: dict[str, Any] = {
        "totals": totals(points),
        "peers": {
            "recomputed": against_peers(compared, moves=False),
            "recomputed and moved": against_peers(compared, moves=True),
        },
        "lowest": {
            name: {
                policy: lowest(compared, name, policy) for policy in dict.fromkeys(p.policy for p in compared)
            }
            for name in names
        },
        "search": {policy.name: search_time(2000, policy) for policy in (COOP, COOP_AS_PUBLISHED, DTR, DTE)},
        "monotonicity": monotone(grid),
        "ablations": ablated([*points, *without]),
        "points": rows(points),
        "grid": rows(grid),
        "variants": rows(without),
    }
    print_tables(console, result, points)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict")
    parser.add_argument("--simulated", action="store_true", help="policies on logs, without running anything")
    parser.add_argument("--full", action="store_true", help="all nets and ratios below, where none are named")
    parser.add_argument("--nets", nargs="*", help=f"of the zoo, and {RANDOM}; default: {' '.join(NETS)}")
    parser.add_argument("--logs", type=Path, help="folder of recorded logs: read, and written where missing")
    parser.add_argument("--scale", choices=("bench", "test"), default="bench")
    parser.add_argument("--ratios", nargs="*", type=int, help=f"percent of the live peak; default: {RATIOS}")
    parser.add_argument("--no-synthetic", dest="synthetic", action="store_false")
    parser.add_argument("--no-fine", dest="fine", action="store_false", help="leave out the 5 %% grid")
    parser.add_argument("--no-ablations", dest="ablations", action="store_false")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args(arguments)
    if options.nets is None:
        options.nets = list(ALL_NETS if options.full else NETS)
    if options.ratios is None:
        options.ratios = list(ALL_RATIOS if options.full else RATIOS)
    return options


def _measure(
    console: Console,
    what: str,
    logs: Sequence[EvictionLog],
    policies: Sequence[Policy],
    ratios: Sequence[int],
) -> list[Point]:
    """Simulate every combination, with a line per log."""
    points: list[Point] = []
    for log in logs if policies else ():
        begin = perf_counter()
        points += [measure(log, policy, ratio) for policy in policies for ratio in ratios]
        count = len(policies) * len(ratios)
        console.print(f"{what}, {log.name}: {count} points in {perf_counter() - begin:.1f} s")
    return points


def _log(name: str, options: argparse.Namespace, console: Console) -> EvictionLog:
    file = options.logs / f"{name}.{options.scale}.json" if options.logs else None
    if file is not None and file.exists():
        return read_eviction_log(file.read_bytes())
    begin = perf_counter()
    case = build("tree_lstm" if name == RANDOM else name, scale=options.scale)

    def batch() -> tuple[Tensor, ...]:
        if name != RANDOM:
            return case.inputs
        leaves, _, target = case.inputs
        keep = min(len(leaves), _LEAVES)
        return leaves[:keep], random_merges(keep), target

    torch.manual_seed(0)
    log = record_steps(name, case.model, batch, num_steps=2)
    console.print(
        f"recorded {name}: {len(log.events)} events, peak {live_peak(log) / 2**20:.1f} MiB, "
        f"in {perf_counter() - begin:.1f} s"
    )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(write_eviction_log(log))
    return log
