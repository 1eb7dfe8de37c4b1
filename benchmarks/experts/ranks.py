"""Experts over ranks: ``python -m benchmarks experts --ranks [--json FILE]``.

M7  a trace whose largest expert drifts from 1 to 8 times the mean: choices by bucket against the best of each
    step and the best that never changes, modelled on three clusters, and run on four ranks behind 200 Mbit/s
    each (root and ``tc``); and rounds that overlap against one round
M8  an exchange in two levels against one, modelled on 2,048 ranks
M6  what rounds cost, against what the price says, on the same four ranks
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from rich.console import Console

from benchmarks.compress.cluster import cluster, refusal, run_ranks
from tightrope.core import DeviceLink
from tightrope_experts.layout import Counts, ExpertLayout
from tightrope_experts.ranks import Sending
from tightrope_experts.ranks.choose import Chooser, Speeds, price_of
from tightrope_experts.sizes import ExpertSizes

_NEAR: Final = DeviceLink("inside a node", 2e-6, 200e9)
_CLUSTERS: Final = {
    "16 ranks, 8 experts, 100 Gbit/s": (
        ExpertSizes(4096, 1024, 2048, 8, 1, ranks=16, itemsize=2),
        Speeds(100e12, DeviceLink("between", 1e-5, 12.5e9), _NEAR, node=8),
    ),
    "64 ranks, 16 experts, 200 Gbit/s": (
        ExpertSizes(2048, 2048, 4096, 16, 1, ranks=64, itemsize=2),
        Speeds(150e12, DeviceLink("between", 1e-5, 25e9), _NEAR, node=8),
    ),
    "8 ranks, 16 experts, 25 Gbit/s": (
        ExpertSizes(16384, 512, 1024, 16, 2, ranks=8, itemsize=2),
        Speeds(30e12, DeviceLink("between", 3e-5, 3.1e9), _NEAR, node=1),
    ),
}
_STEPS: Final = 120
BITS: Final = 200e6


def drift(sizes: ExpertSizes, num_steps: int, seed: int = 0) -> Iterator[Counts]:
    """Yield loads whose largest expert drifts from 1 to 8 times the mean, with noise."""
    draw = np.random.default_rng(seed)
    for step in range(num_steps):
        factor = min(8.0 ** (step / max(num_steps - 1, 1)) * draw.uniform(0.9, 1.1), sizes.experts)
        share = np.full(sizes.experts, (1 - factor / sizes.experts) / (sizes.experts - 1))
        share[step // 10 % sizes.experts] = factor / sizes.experts
        share = np.maximum(share, 0)
        yield draw.multinomial(sizes.tokens * sizes.k, share / share.sum(), size=sizes.ranks)


def modelled(console: Console) -> list[dict[str, Any]]:
    """M7, modelled."""
    rows = []
    for name, (sizes, speeds) in _CLUSTERS.items():
        levels = (1, 2) if speeds.node > 1 else (1,)
        chooser = Chooser(sizes, speeds, 1 << 50, levels=levels)
        degrees, parts = ExpertLayout(sizes.ranks, sizes.experts).degrees, (1, 2, 4, 8)
        fixed = dict.fromkeys(itertools.product(degrees, parts, levels), 0.0)
        best = chosen = 0.0
        for load in drift(sizes, _STEPS):
            prices = {
                way: price_of(Sending(way[0], way[1]), way[2], load, sizes, speeds).seconds for way in fixed
            }
            for way, seconds in prices.items():
                fixed[way] += seconds
            best += min(prices.values())
            chosen += chooser.choose(load).seconds
        static = min(fixed.values())
        row = {"cluster": name, "chosen/best": chosen / best, "static/chosen": static / chosen}
        console.print(
            f"{name:<36} chosen {chosen / best:.3f}x of the best, best fixed {static / chosen:.2f}x of chosen"
        )
        rows.append(row)
    return rows


def levels(console: Console) -> list[dict[str, Any]]:
    """M8, modelled: 2,048 ranks in nodes of 8."""
    ranks, rows = 2048, []
    speeds = Speeds(1e14, DeviceLink("between", 1e-5, 25e9), _NEAR, node=8)
    one = np.ones((ranks, ranks), np.int64)
    for size in (256, 1024, 4096, 16384, 65536, 262144):
        ratio = speeds.exchange(one, size) / speeds.exchange(one, size, levels=2)
        console.print(f"{size / 1024:>8.2f} KiB a pair: one level takes {ratio:.2f}x of two")
        rows.append({"bytes": size, "one/two": ratio})
    return rows


def behind_slow_links(console: Console) -> dict[str, Any]:
    """M7, M6: run on four ranks behind 200 Mbit/s each."""
    if why := refusal():
        console.print(f"not run behind slow links: {why}")
        return {"refused": why}
    with cluster(4, BITS) as nodes:
        text = run_ranks("benchmarks.experts.rank", nodes, [], seconds=500)
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    for name, value in found.items():
        console.print(
            f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}", highlight=False
        )
    return found


def tables(console: Console) -> dict[str, Any]:
    """Print all."""
    return {"modelled": modelled(console), "levels": levels(console), "run": behind_slow_links(console)}
