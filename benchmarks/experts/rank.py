"""One of four ranks behind a slow link: see `benchmarks.experts.ranks`. Prints one line of JSON."""

import itertools
import json
import statistics
import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.experts.ranks import BITS, drift
from tightrope.core import DeviceLink
from tightrope_experts import MoE
from tightrope_experts.layout import Counts
from tightrope_experts.ranks import MoEAcross, Sending
from tightrope_experts.ranks.choose import PARTS, Chooser, Speeds, price_of
from tightrope_experts.ranks.exchange import Mesh
from tightrope_experts.sizes import ExpertSizes

_STEPS: Final = 16


class _Told(MoEAcross):
    """Experts whose routing is given."""

    chosen: Tensor

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.chosen, torch.ones(len(tokens), 1)


def _step(layer: _Told, x: Tensor) -> float:
    """Return the wall seconds of a forward and backward, those of the slowest rank."""
    layer.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    layer(x).sum().backward()
    spent = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return spent.item()


def _layer(sizes: ExpertSizes) -> _Told:
    torch.manual_seed(0)
    return _Told(MoE(sizes.dim, sizes.hidden, num_experts=sizes.experts, k=1, gated=sizes.gated))


def _told(layer: _Told, load: Counts, rank: int) -> None:
    layer.chosen = torch.from_numpy(load[rank].nonzero()[0].repeat(load[rank][load[rank] > 0]))[:, None]


def _speed(layer: _Told, sizes: ExpertSizes) -> float:
    """Measure operations per second of products, while all ranks multiply."""
    weights = layer.up.detach()[0]
    rows = torch.randn(512, sizes.dim)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(20):
        rows @ weights.t()
    found = torch.tensor([20 * 2 * rows.numel() * len(weights) / (time.perf_counter() - start)])
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return found.item()


def _latency() -> float:
    """Measure the seconds of a message that is almost empty, those of its waiting threads included."""
    mesh, one = Mesh(), np.ones((dist.get_world_size(),) * 2, np.int64)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(20):
        mesh.post(torch.ones(len(one), 1), one)()
    found = torch.tensor([(time.perf_counter() - start) / 20 / (len(one) - 1)])
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def _trace(rank: int) -> dict[str, float]:
    sizes = ExpertSizes(2048, 256, 176, 8, 1, gated=False, ranks=4)
    layer, x = _layer(sizes), torch.randn(sizes.tokens, sizes.dim)
    slow = DeviceLink("slow", _latency(), BITS / 8)
    chooser = Chooser(sizes, Speeds(_speed(layer, sizes), slow, slow), 1 << 40)
    ways = {(0, 1): 0.0, **dict.fromkeys(((1, parts) for parts in PARTS), 0.0)}
    chosen, used = 0.0, set()
    for load in drift(sizes, _STEPS):
        _told(layer, load, rank)
        for way in ways:
            layer.sending = Sending(*way)
            ways[way] += _step(layer, x)
        layer.sending = chooser.choose(load).sending
        used.add((layer.sending.degree, layer.sending.parts))
        chosen += _step(layer, x)
    return {
        "trace: best fixed / chosen": min(ways.values()) / chosen,
        **{f"trace: degree {d}, parts {p}, s": seconds for (d, p), seconds in ways.items()},
        "trace: chosen, s": chosen,
        "trace: different choices": float(len(used)),
    }


def _overlap(rank: int) -> dict[str, float]:
    sizes = ExpertSizes(1024, 192, 1536, 4, 1, gated=False, ranks=4)
    layer, x = _layer(sizes), torch.randn(sizes.tokens, sizes.dim)
    load = next(iter(drift(sizes, 1)))
    _told(layer, load, rank)
    times: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    for _ in range(7):
        for parts, spent in times.items():
            layer.sending = Sending(1, parts)
            spent.append(_step(layer, x))
    found = {parts: statistics.median(spent) for parts, spent in times.items()}
    best = min(found, key=lambda parts: found[parts])
    return {"overlap: one round / best parts": found[1] / found[best], "overlap: best parts": float(best)}


def _rounds(rank: int) -> dict[str, float]:
    """Compare what rounds cost with what the price says: all tokens at one expert."""
    sizes = ExpertSizes(1024, 256, 256, 4, 1, gated=False, ranks=4)
    layer, x = _layer(sizes), torch.randn(sizes.tokens, sizes.dim)
    slow = DeviceLink("slow", 5e-4, BITS / 8)
    speeds = Speeds(_speed(layer, sizes), slow, slow)
    load = next(iter(drift(sizes, 1))) * 0
    load[:, 1] = sizes.tokens
    _told(layer, load, rank)
    free, tight = Sending(), Sending(most=512, keep=1024)
    spent: dict[Sending, list[float]] = {free: [], tight: []}
    for _, (sending, times) in itertools.product(range(5), spent.items()):
        layer.sending = sending
        times.append(_step(layer, x))
    took = statistics.median(spent[tight]) / statistics.median(spent[free])
    told = price_of(tight, 1, load, sizes, speeds).seconds / price_of(free, 1, load, sizes, speeds).seconds
    return {"rounds: slower by": took, "rounds: price says": told}


def main() -> None:
    """Run as a rank."""
    parser = ArgumentParser()
    for name in ("--rank", "--ranks", "--meet"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    rank = int(given.rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{given.meet}",
        rank=rank,
        world_size=int(given.ranks),
        timeout=timedelta(seconds=120),
    )
    found = {**_trace(rank), **_overlap(rank), **_rounds(rank)}
    if not rank:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
