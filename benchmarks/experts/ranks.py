"""Experts over ranks: ``python -m benchmarks experts --ranks [--json FILE]``.

M7  a trace whose largest expert drifts from 1 to 8 times the mean: choices by bucket against the best of each
    step and the best that never changes, modelled on three clusters, and run on four ranks behind 200 Mbit/s
    each way (root and ``tc``); and rounds that overlap against one round
M8  an exchange in two levels against one, modelled on 2,048 ranks
M6  what rounds cost, against what the price says, on the same four ranks
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from rich.console import Console

from benchmarks.compress.cluster import cluster, refusal, run_ranks
from tightrope.core import DeviceLink
from tightrope_experts.layout import Counts
from tightrope_experts.ranks import Sending
from tightrope_experts.ranks.choose import PARTS, Chooser, Speeds, price_of
from tightrope_experts.sizes import ExpertSizes

_NEAR: Final = DeviceLink("inside a node", 2e-6, 200e9)
_CLUSTERS: Final = {
    "8 ranks, 8 experts, 100 Gbit/s": (
        ExpertSizes(1, 1024, 2048, 8, 1, ranks=8, itemsize=2),
        Speeds(100e12, DeviceLink("between", 1e-5, 12.5e9), _NEAR),
    ),
    "16 ranks, 8 experts, 100 Gbit/s": (
        ExpertSizes(1, 1024, 2048, 8, 1, ranks=16, itemsize=2),
        Speeds(100e12, DeviceLink("between", 1e-5, 12.5e9), _NEAR, node=8),
    ),
    "8 ranks, 16 experts, 25 Gbit/s": (
        ExpertSizes(1, 512, 1024, 16, 2, ranks=8, itemsize=2),
        Speeds(30e12, DeviceLink("between", 3e-5, 3.1e9), _NEAR),
    ),
}
_TOKENS: Final = (4096, 8192, 16384, 32768)
"""Of a rank: fewer gain little by gathered weights, more little by rows that travel."""
_STEPS: Final = 60
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
    """M7, modelled: print a row per cluster and number of tokens.

    Of two ways, one of constant price and one whose price grows with the load, the better one of each step
    wins at most 1.33x where loads drift evenly from 1 to 8.
    """
    rows = []
    for (name, (shape, speeds)), tokens in itertools.product(_CLUSTERS.items(), _TOKENS):
        sizes = replace(shape, tokens=tokens)
        levels = (1, 2) if speeds.node > 1 else (1,)
        chooser = Chooser(sizes, speeds, 1 << 50, levels=levels)
        fixed = dict.fromkeys(itertools.product(sizes.layout.degrees, PARTS, levels), 0.0)
        best = chosen = 0.0
        for load in drift(sizes, _STEPS):
            prices = [price_of(Sending(*way[:2]), way[2], load, sizes, speeds).seconds for way in fixed]
            fixed = {way: fixed[way] + seconds for way, seconds in zip(fixed, prices, strict=True)}
            best += min(prices)
            chosen += chooser.choose(load).seconds
        static = min(fixed.values())
        console.print(
            f"{name:<32}{tokens:>7,} tokens: chosen {chosen / best:.3f}x of the best, "
            f"best fixed {static / chosen:.2f}x of chosen",
            highlight=False,
        )
        rows.append(
            {
                "cluster": name,
                "tokens": tokens,
                "chosen/best": chosen / best,
                "static/chosen": static / chosen,
            }
        )
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
    with cluster(4, BITS, both=True) as nodes:
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
