"""Coop beside DTR and DTE on logs that are drawn from seeds, or recorded once (V2).

    python -m benchmarks evict --only V2 [--seeds 0 1 2 3] [--json FILE]
    python -m benchmarks evict --only V2 --nets all [--scale bench] [--logs FOLDER]

Nine families of nets (`shapes`), each drawn anew from every seed: sizes, depths, which ops are cheap, where
skips go. Two training steps each, simulated in arenas of 95 to 10 % of the live peak. Seconds are those of
the logs, counted, so that the same seed gives the same figures. What `coop` weighs was chosen on other draws
of these families. With ``--nets``: two recorded steps of each net, of which all policies get the same times.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.evict.eager import net_names
from benchmarks.evict.families import dtr_log
from benchmarks.evict.record import recorded
from benchmarks.evict.shapes import SHAPES, drawn_nodes
from benchmarks.evict.simulated import Point, against_peers, lowest, measure
from tightrope.run.evict.policies import COOP, DTE, DTR
from tightrope_planners.evict.log import EvictionLog
from tightrope_planners.formats.eviction import log_of_graph

_RATIOS: Final = (95, 90, 85, 80, 70, 60, 50, 40, 30, 20, 10)
_SEEDS: Final = (0, 1, 2, 3)
_LEAST: Final = 1e-5
"""Seconds: less counts as this much, so that a share of nothing is none."""
_BAR: Final = 0.7
_LITTLE: Final = 1.05
"""Times a peer's seconds: no more than that is counted apart."""


def main(arguments: list[str], console: Console) -> int:
    """Print a row per family, then the bar; 1 where it is missed."""
    options = _options(arguments)
    points: list[Point] = []
    names = tuple(SHAPES) if options.nets is None else tuple(net_names(options.nets))
    torch.set_num_threads(1)
    for name in names:
        if options.nets is None:
            drawn = [drawn_log(name, seed) for seed in options.seeds]
        else:
            drawn = [recorded(name, options.scale, 2, options.logs)]
        points += [measure(log, policy, at) for log in drawn for policy in (COOP, DTR, DTE) for at in _RATIOS]
        console.print(f"{name}: {len(drawn)} logs")
    found = against_peers(points, moves=False)
    console.print(_table(names, points, found))
    logs = dict.fromkeys(point.log for point in points)
    shares = {log: times_lower(points, log) for log in logs}
    higher = [log for log, times in shares.items() if times < 1]
    share = found["strictly_less"] / max(1, found["compared"])
    met = share >= _BAR and not found["worse"] and not higher
    console.print(
        f"V2: of {found['compared']} points that both finish, less at {found['strictly_less']} "
        f"({100 * share:.1f} %, bar {100 * _BAR:.0f}), more at {len(found['worse'])} (bar 0), "
        f"{_little(found['worse'])} of these by at most {100 * (_LITTLE - 1):.0f} %; worst "
        f"{_worst(found['worst'])}; {_mean(points):.3f} x in the geometric mean; lowest ratio no higher than "
        f"both on {len(logs) - len(higher)} of {len(logs)} nets, at best {max(shares.values()):.2f} x lower; "
        f"alone it finishes {found['only_coop_finishes']}, a peer alone "
        f"{len(found['only_peer_finishes'])}: {'pass' if met else 'missed'}",
        soft_wrap=True,
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"seeds": options.seeds, "nets": options.nets, **found}, indent=1))
    return int(not met)


def drawn_log(name: str, seed: int) -> EvictionLog:
    """Draw two training steps of a net."""
    from tightrope_planners.formats import read_dtr_log

    drawn = read_dtr_log(dtr_log(drawn_nodes(name, seed)), name=f"{name} {seed}")
    return log_of_graph(drawn.graph, num_steps=2)


def times_lower(points: list[Point], log: str) -> float:
    """Divide the lowest ratio of the better peer by coop's; what finishes nowhere counts as 100 %."""
    mine, *others = (lowest(points, log, policy) or 100 for policy in ("coop", "dtr", "dte"))
    return min(others) / mine


def _pairs(points: list[Point]) -> list[tuple[Point, Point]]:
    done = {(point.log, point.policy, point.ratio): point for point in points if point.finished}
    peers = [point for (_, policy, _), point in done.items() if policy != "coop"]
    return [(done[key], one) for one in peers if (key := (one.log, "coop", one.ratio)) in done]


def _mean(points: list[Point]) -> float:
    """Average coop's seconds over a peer's, geometrically."""
    shares = [max(a.again_s, _LEAST) / max(b.again_s, _LEAST) for a, b in _pairs(points)]
    return math.exp(sum(map(math.log, shares)) / max(1, len(shares)))


def _little(rows: list[list[Any]]) -> int:
    """Count the points that take hardly more than the peer."""
    return sum(ours <= _LITTLE * max(other, _LEAST) for *_, ours, other in rows)


def _worst(row: list[Any] | None) -> str:
    if row is None:
        return "none"
    log, ratio, policy, seconds, other = row
    return f"{log} at {ratio} %, {seconds / max(other, _LEAST):.3f} x of {policy}"


def _table(names: Sequence[str], points: list[Point], found: dict[str, Any]) -> Table:
    table = Table("family", "points", "less", "more", "x, mean", "free, %", "dtr", "dte", box=None)
    more = Counter(log.split(" ")[0] for log, *_ in found["worse"])
    for name in names:
        mine = [point for point in points if point.log.split(" ")[0] == name]
        pairs = _pairs(mine)
        less = sum(a.again_s < b.again_s for a, b in pairs)
        table.add_row(
            *(name, str(len(pairs)), str(less), str(more[name]), f"{_mean(mine):.3f}"),
            *(_free(mine, policy) for policy in ("coop", "dtr", "dte")),
        )
    return table


def _free(points: list[Point], policy: str) -> str:
    shares = [point.fragmentation for point in points if point.policy == policy and point.evictions]
    return f"{100 * sum(shares) / len(shares):.1f}" if shares else "-"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict --only V2")
    parser.add_argument("--only", choices=("V2",), required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(_SEEDS))
    parser.add_argument(
        "--nets", help="record these instead, of `benchmarks evict` or the zoo; all: its eleven"
    )
    parser.add_argument("--scale", choices=("bench", "test"), default="bench", help="of what is recorded")
    parser.add_argument("--logs", type=Path, help="folder of recorded logs: read, and written where missing")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args(arguments)
