"""What experts cost: ``python -m benchmarks experts [--pairs 11] [--quick] [--ranks | --models] [--json F]``.

M2  the products of a step, forward and backward, over those of one dense layer with the same operations, of
    groups (``grouped_mm``) and of experts padded to the fullest, in interleaved pairs of thread-CPU time
M4  a small classifier: step time and loss of dropless experts against capacities
M8  choosing, sending and collecting rows against one-hot products (``einsum``)
"""

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._measure import paired_ratio
from benchmarks.experts.models import families
from benchmarks.experts.ranks import tables
from tightrope_experts import MoE, capacity_of, limited, places_of
from tightrope_experts.products import gather, gather_backward, spread, spread_backward
from tightrope_experts.sizes import ROWS

_TOKENS, _EXPERTS, _DIM, _HIDDEN = 4096, 16, 256, 1024
_LOADS: Final = {"even": 0.0, "max/mean 2": 0.13, "max/mean 4": 0.28, "one expert": 100.0}
"""Name of a load, and how fast the share of an expert falls with its number."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """A call that is timed; see `benchmarks._measure.paired_ratio`."""

    run: Callable[[], object]

    def seconds(self) -> float:
        """Return the thread-CPU seconds of a call."""
        start = time.thread_time()
        self.run()
        return time.thread_time() - start

    def clear(self) -> None:
        """Do nothing: a call leaves nothing behind."""


class _Products:
    """The products of a step of experts, of which every token chooses one."""

    def __init__(self, chosen: Tensor) -> None:
        torch.manual_seed(0)
        self.chosen = chosen
        self.x, self.back = torch.randn(_TOKENS, _DIM), torch.randn(_TOKENS, _DIM)
        self.up = torch.randn(_EXPERTS, _HIDDEN, _DIM) / _DIM**0.5
        self.down = torch.randn(_EXPERTS, _DIM, _HIDDEN) / _HIDDEN**0.5
        self.gates = torch.rand(_TOKENS, 1)

    def own(self) -> None:
        """Run those of the library."""
        hidden = functional.relu(spread(self.x, self.chosen, self.up, None, ROWS))
        gather(hidden, self.chosen, self.gates, self.down, None, ROWS)
        back, *_ = gather_backward(self.back, hidden, self.chosen, self.gates, self.down, None, ROWS)
        spread_backward(back, self.x, self.chosen, self.up, None, ROWS)

    def dense(self) -> None:
        """Run one layer with as many operations."""
        hidden = functional.relu(self.x @ self.up[0].t())
        _ = hidden @ self.down[0].t(), self.back.t() @ hidden
        back = self.back @ self.down[0]
        _ = back @ self.up[0], back.t() @ self.x

    def grouped(self) -> None:
        """Run sorted rows through torch's grouped product."""
        order = torch.sort(self.chosen[:, 0], stable=True).indices
        ends = torch.bincount(self.chosen[:, 0], minlength=_EXPERTS).cumsum(0).to(torch.int32)
        product = functional.grouped_mm
        given, came = self.x[order], self.back[order]
        hidden = functional.relu(product(given, self.up.transpose(1, 2), offs=ends))
        product(hidden, self.down.transpose(1, 2), offs=ends)
        back = product(came, self.down, offs=ends)
        product(came.t(), hidden, offs=ends)
        product(back, self.up, offs=ends)
        product(back.t(), given, offs=ends)

    def padded(self) -> None:
        """Run a batch of experts, each with as many rows as the fullest."""
        most = int(torch.bincount(self.chosen[:, 0]).max())
        at = self.chosen[:, 0] * most + places_of(self.chosen, _EXPERTS)[:, 0]
        given, came = (one.new_zeros(_EXPERTS * most, _DIM) for one in (self.x, self.back))
        given[at], came[at] = self.x, self.back
        given, came = (one.view(_EXPERTS, most, _DIM) for one in (given, came))
        hidden = functional.relu(torch.bmm(given, self.up.transpose(1, 2)))
        torch.bmm(hidden, self.down.transpose(1, 2)).view(-1, _DIM)[at]
        back = torch.bmm(came, self.down)
        torch.bmm(came.transpose(1, 2), hidden)
        torch.bmm(back, self.up).view(-1, _DIM)[at]
        torch.bmm(back.transpose(1, 2), given)


def _chosen(fall: float) -> Tensor:
    share = torch.exp(-fall * torch.arange(_EXPERTS, dtype=torch.float64))
    draw = torch.Generator().manual_seed(0)
    if not fall:
        return (torch.arange(_TOKENS) % _EXPERTS)[:, None]
    return torch.multinomial(share, _TOKENS, replacement=True, generator=draw)[:, None]


def products(console: Console, num_pairs: int) -> list[dict[str, Any]]:
    """M2: print a row per load."""
    console.print(f"{'load':<12}{'max/mean':>9}{'own / dense':>24}{'grouped / own':>24}{'padded / own':>24}")
    rows = []
    for name, fall in _LOADS.items():
        one = _Products(_chosen(fall))
        counts = torch.bincount(one.chosen[:, 0], minlength=_EXPERTS).double()
        skew = float(counts.max() / counts.mean())
        own = _Timed(one.own)
        dense = paired_ratio(own, _Timed(one.dense), num_pairs=num_pairs)
        grouped = paired_ratio(_Timed(one.grouped), own, num_pairs=num_pairs)
        padded = paired_ratio(_Timed(one.padded), own, num_pairs=3 if skew > 8 else num_pairs)
        console.print(f"{name:<12}{skew:>9.1f}{dense!s:>24}{grouped!s:>24}{padded!s:>24}")
        rows.append(
            {
                "load": name,
                "skew": skew,
                "own/dense": asdict(dense),
                "grouped/own": asdict(grouped),
                "padded/own": asdict(padded),
            }
        )
    return rows


def dispatch(console: Console, num_pairs: int) -> dict[str, Any]:
    """M8: send rows to experts and collect them, against products with one-hot masks (T, E, capacity)."""
    experts, dim = 32, 256
    torch.manual_seed(0)
    x, scores = torch.randn(_TOKENS, dim), torch.randn(_TOKENS, experts)
    gates, chosen = torch.topk(scores.softmax(-1), 2)
    capacity = capacity_of(2.0, _TOKENS, experts, 1)
    assert capacity is not None
    kept, _ = limited(chosen, experts, capacity)

    def sparse() -> Tensor:
        places = places_of(kept, experts + 1)
        at = (kept * capacity + places).masked_fill(kept == experts, experts * capacity)
        sent = x.new_zeros(experts * capacity + 1, dim)
        sent[at.reshape(-1)] = x.repeat_interleave(2, 0)
        sent[-1] = 0
        return (sent[at.reshape(-1)].view(_TOKENS, 2, dim) * gates[..., None]).sum(1)

    def einsum() -> Tensor:
        places = places_of(kept, experts + 1).clamp(max=capacity - 1)
        to_experts = functional.one_hot(kept, experts + 1)[..., :experts].to(x.dtype)
        slots = functional.one_hot(places, capacity).to(x.dtype)
        mask = torch.einsum("tke,tkc->tec", to_experts, slots)
        sent = torch.einsum("tec,tm->ecm", mask, x)
        weighted = torch.einsum("tke,tkc,tk->tec", to_experts, slots, gates)
        return torch.einsum("tec,ecm->tm", weighted, sent)

    assert torch.allclose(sparse(), einsum(), atol=1e-5)
    ratio = paired_ratio(_Timed(einsum), _Timed(sparse), num_pairs=max(3, num_pairs // 3))
    console.print(f"one-hot products over sent rows, T = {_TOKENS}, E = {experts}: {ratio} of the time")
    return {"einsum/sparse": asdict(ratio)}


class _Padded(MoE):
    """Experts of a fixed capacity as a batch, as systems with capacities run them."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, gates = self.route(x)
        experts, most = len(self.up), capacity_of(self.capacity, len(x), len(self.up), self.k) or 0
        places = places_of(chosen, experts + 1)
        at = (chosen * most + places).masked_fill(chosen == experts, experts * most).reshape(-1)
        sent = x.new_zeros(experts * most + 1, x.shape[1]).index_copy(0, at, x.repeat_interleave(self.k, 0))
        hidden = self._act(torch.bmm(sent[:-1].view(experts, most, -1), self.up.transpose(1, 2)))
        made = torch.bmm(hidden, self.down.transpose(1, 2)).view(experts * most, -1)
        made = torch.cat((made, made.new_zeros(1, made.shape[1])))
        return (made[at].view(len(x), self.k, -1) * gates[..., None]).sum(1)


def quality(console: Console, num_steps: int) -> list[dict[str, Any]]:
    """M4: train a classifier of clusters of unequal sizes."""
    rows = []
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(64, 128, generator=draw)
    share = torch.exp(-0.08 * torch.arange(64, dtype=torch.float64))
    for name, kind, factor in (
        ("dropless", MoE, 0.0),
        ("capacity 2", _Padded, 2.0),
        ("capacity 1", _Padded, 1.0),
    ):
        torch.manual_seed(1)
        experts = kind(128, 512, num_experts=16, k=1, capacity=factor)
        head = nn.Linear(128, 64)
        optimizer = torch.optim.Adam([*experts.parameters(), *head.parameters()], lr=2e-3)
        given = torch.Generator().manual_seed(2)
        spent, losses = [], []
        for _ in range(num_steps):
            y = torch.multinomial(share, 2048, replacement=True, generator=given)
            x = centres[y] + 1.2 * torch.randn(2048, 128, generator=given)
            start = time.thread_time()
            optimizer.zero_grad()
            loss = functional.cross_entropy(head(experts(x)), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            spent.append(time.thread_time() - start)
            losses.append(loss.item())
        step, last = sorted(spent)[len(spent) // 2], sum(losses[-10:]) / len(losses[-10:])
        console.print(f"{name:<12}{1e3 * step:>10.1f} ms a step, loss {last:.4f}")
        rows.append({"name": name, "ms": 1e3 * step, "loss": last})
    return rows


def run(arguments: Sequence[str], console: Console) -> int:
    """Print all tables; write them as JSON where asked."""
    parser = ArgumentParser(prog="python -m benchmarks experts")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="3 pairs and 20 steps")
    parser.add_argument("--ranks", action="store_true", help="experts over ranks, modelled and run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", action="store_true", help="models of transformers under a budget")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.models:
        _write(options.json, {"models": families(console, 3 if options.quick else options.pairs)})
        return 0
    if options.ranks:
        _write(options.json, tables(console))
        return 0
    pairs, steps = (3, 20) if options.quick else (options.pairs, 200)
    found = {
        "products": products(console, pairs),
        "dispatch": dispatch(console, pairs),
        "quality": quality(console, steps),
    }
    _write(options.json, found)
    return 0


def _write(file: Path | None, found: dict[str, Any]) -> None:
    if file:
        file.write_text(json.dumps(found, indent=1) + "\n")
