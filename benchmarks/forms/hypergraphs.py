"""Hypergraph convolution against torch's products of sparse matrices and torch_geometric (H1, H2)."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._measure import HighWater, paired_ratio
from benchmarks.forms.sets import sets
from tightrope.native.hook.allocator import allocator
from tightrope_forms.hypergraph import Incidence, hypergraph_conv, propagate
from tightrope_forms.hypergraph.incidence import inverse
from tightrope_forms.hypergraph.ops import call_library

FEATURES: Final = (32, 64, 128)
_LARGE: Final = 3e7


class _Call:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def seconds(self) -> float:
        start = time.thread_time()
        self.call()
        return time.thread_time() - start

    def clear(self) -> None:
        """Leave nothing."""


def _over(peer: Callable[[], object], own: Callable[[], object], work: float, pairs: int) -> float:
    """Divide the time of a peer by ours."""
    return paired_ratio(_Call(peer), _Call(own), num_pairs=3 if work > _LARGE else pairs).median


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _layer() -> Any:
    try:
        from torch_geometric.nn import HypergraphConv as Peer
    except ImportError:
        return None
    return Peer


def _beside_csr(incidence: Incidence, x: Tensor, pairs: int) -> dict[str, float]:
    """Compare with two products of CSR matrices, with the faster kind of indices."""
    sizes, calls = (incidence.num_edges, incidence.num_vertices), []
    for kind in (torch.int32, torch.int64):
        there, back = (
            torch.sparse_csr_tensor(one.ptr.to(kind), one.idx.to(kind), torch.ones(len(one.idx)), size)
            for one, size in ((incidence.lists("e"), sizes), (incidence.lists("v"), sizes[::-1]))
        )
        calls.append(partial(_twice, there, back, x))
    own = hypergraph_conv(x, incidence)
    assert torch.allclose(calls[0](), own, rtol=1e-3, atol=1e-3 * float(own.abs().max()))
    fastest = min(calls, key=lambda call: min(_Call(call).seconds() for _ in range(3)))
    work = incidence.index.shape[1] * x.shape[1]
    return {
        "kernel": _over(fastest, _kernel(incidence, x), work, pairs),
        "call": _over(fastest, partial(hypergraph_conv, x, incidence), work, pairs),
    }


def _twice(there: Tensor, back: Tensor, x: Tensor) -> Tensor:
    return back @ (there @ x)


def kernels(data: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """H1: print times of peers over ours, a line a set and width."""
    peer_layer = _layer()
    rows: list[dict[str, Any]] = []
    if peer_layer is None:
        console.print("torch_geometric is missing: pip install --no-deps torch_geometric==2.8.1")
    head = ("CSR/kernel", "CSR/call", "PyG forward", "both ways")
    console.print(f"{'times over ours':<28}{'F':>5}" + "".join(f"{word:>13}" for word in head))
    for name, index in sets(data, console):
        incidence = Incidence(index, allow_empty=True)
        for features in FEATURES:
            x = torch.randn(incidence.num_vertices, features)
            row: dict[str, Any] = {"set": name, "features": features, **_beside_csr(incidence, x, pairs)}
            if peer_layer is not None:
                row |= _beside_layer(peer_layer(features, features), incidence, x, pairs)
            rows.append(row)
            cells = [
                f"{row[key]:.2f}x" if key in row else "-" for key in ("kernel", "call", "forward", "both")
            ]
            console.print(f"{name:<28}{features:>5}" + "".join(f"{cell:>13}" for cell in cells))
    for key, what in (
        ("kernel", "two CSR products over the kernel"), ("call", "two CSR products over a call"),
        ("forward", "PyG forward over a call"), ("both", "PyG both ways over a call"),
    ):  # fmt: skip
        if found := [row[key] for row in rows if key in row]:
            console.print(f"{what}: geometric mean {_mean(found):.2f}x, lowest {min(found):.2f}x")
    return rows


def _kernel(incidence: Incidence, x: Tensor) -> Callable[[], object]:
    """Make a call of both passes in C++, memory for results included."""
    z_like = x.new_empty(incidence.num_edges, x.shape[1])
    edges, vertices = incidence.lists("e"), incidence.lists("v")

    def run() -> Tensor:
        z, y = torch.empty_like(z_like), torch.empty_like(x)
        call_library(x, *edges, None, None, x, z, None)
        call_library(z, *vertices, None, None, z, y, None)
        return y

    assert torch.equal(run(), hypergraph_conv(x, incidence))
    return run


def _beside_layer(layer: Any, incidence: Incidence, x: Tensor, pairs: int) -> dict[str, float]:
    """Compare with the two calls of ``propagate`` inside the layer, whose norms are computed before."""
    index = incidence.index
    of_edges, of_vertices = (inverse(one, torch.ones(1)) for one in (incidence.degree_e, incidence.degree_v))
    there, back, sizes = index, index.flip([0]).contiguous(), (incidence.num_vertices, incidence.num_edges)

    def peer(given: Tensor) -> Tensor:
        made = layer.propagate(there, x=given, norm=of_edges, alpha=None, size=sizes)
        made = layer.propagate(back, x=made, norm=of_vertices, alpha=None, size=sizes[::-1])
        result: Tensor = made.view_as(given)
        return result

    def own(given: Tensor) -> Tensor:
        return propagate(given, incidence, (None, of_edges, of_vertices))

    def both_ways(call: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        given, ones = x.clone().requires_grad_(), torch.ones_like(x)
        return lambda: torch.autograd.grad(call(given), given, ones)

    assert torch.allclose(peer(x), own(x), atol=1e-4)
    work = index.shape[1] * x.shape[1]
    with torch.no_grad():
        forward = _over(lambda: peer(x), lambda: own(x), 4 * work, pairs)
    return {"forward": forward, "both": _over(both_ways(peer), both_ways(own), 4 * work, pairs)}


class _Net(nn.Module):
    """Two layers of a kind, behind a layer that makes 64 features; ``spread`` passes messages."""

    def __init__(self, kind: str, spread: "_Spread") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.spread = kind, spread
        self.into, self.out = nn.Linear(64, 64), nn.Linear(64, 7)
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = first = self.into(x).relu()
        for depth, layer in enumerate(self.layers, 1):
            if self.kind == "HGNN":
                x = self.spread(layer(x), "row")
            elif self.kind == "UniGIN":
                x = layer(x + self.spread(x, "sum"))
            else:
                mixed = 0.9 * functional.normalize(self.spread(x, "scaled")) + 0.1 * first
                beta = math.log(0.5 / depth + 1)
                x = (1 - beta) * mixed + beta * layer(mixed)
            x = x.relu()
        loss: Tensor = self.out(x)
        return loss


class _Spread:
    """Our sums, with scales of hyperedges and vertices as HGNN, UniGIN and UniGCNII have them."""

    def __init__(self, incidence: Incidence) -> None:
        self.incidence = incidence
        like = torch.ones(1)
        of_edges, of_vertices = incidence.degree_e, incidence.degree_v
        two = inverse(of_edges, like) * inverse(of_edges, like, -0.5)
        self.scales: dict[str, tuple[Tensor | None, Tensor | None]] = {
            "row": (inverse(of_edges, like), inverse(of_vertices, like)),
            "sum": (None, None),
            "scaled": (two, inverse(of_vertices, like, -0.5)),
        }

    def __call__(self, x: Tensor, kind: str) -> Tensor:
        return propagate(x, self.incidence, (None, *self.scales[kind]))


class _Gathered(_Spread):
    """The same sums by ``index_select`` and ``scatter`` of torch_geometric, as its layers pass messages."""

    def __init__(self, incidence: Incidence) -> None:
        super().__init__(incidence)
        self.vertices, self.edges = incidence.index

    def __call__(self, x: Tensor, kind: str) -> Tensor:
        from torch_geometric.utils import scatter

        mid, out = self.scales[kind]
        z = scatter(x.index_select(0, self.vertices), self.edges, 0, self.incidence.num_edges, "sum")
        z = z if mid is None else z * mid[:, None]
        y: Tensor = scatter(z.index_select(0, self.edges), self.vertices, 0, len(x), "sum")
        return y if out is None else y * out[:, None]


class _Layers(_Spread):
    """The two calls of ``propagate`` of torch_geometric's own HypergraphConv."""

    def __init__(self, incidence: Incidence) -> None:
        super().__init__(incidence)
        self.index, self.layer = incidence.index, _layer()(64, 64)
        self.back, self.sizes = self.index.flip([0]), (incidence.num_vertices, incidence.num_edges)

    def __call__(self, x: Tensor, kind: str) -> Tensor:
        mid, out = self.scales[kind]
        z = self.layer.propagate(self.index, x=x, norm=mid, alpha=None, size=self.sizes)
        y = self.layer.propagate(self.back, x=z, norm=out, alpha=None, size=self.sizes[::-1])
        made: Tensor = y.view_as(x)
        return made


def epochs(data: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """H2: print times and peak bytes of a training step of peers over ours, a line a model and set."""
    if _layer() is None:
        console.print("torch_geometric is missing: pip install --no-deps torch_geometric==2.8.1")
        return []
    rows: list[dict[str, Any]] = []
    console.print(
        f"{'an epoch with 64 features':<28}{'model':<10}{'PyG over ours':>14}{'peak of a layer':>17}"
    )
    for name, index in sets(data, console):
        incidence = Incidence(index, allow_empty=True)
        x, y = torch.randn(incidence.num_vertices, 64), torch.randint(7, (incidence.num_vertices,))
        for kind, peer in (("HGNN", _Layers), ("UniGIN", _Gathered), ("UniGCNII", _Gathered)):
            nets = [_Net(kind, spread(incidence)) for spread in (peer, _Spread)]
            assert torch.allclose(nets[0](x), nets[1](x), rtol=1e-3, atol=1e-3)
            steps = [_epoch(net, x, y) for net in nets]
            ratio = _over(steps[0], steps[1], 32 * x.numel() + 512 * index.shape[1], pairs)
            scale = {"HGNN": "row", "UniGIN": "sum"}.get(kind, "scaled")
            own, other = (_peak(net.spread, x, scale) for net in reversed(nets))
            degree = index.shape[1] / incidence.num_edges
            rows.append({"set": name, "model": kind, "epoch": ratio, "bytes": own / other, "degree": degree})
            console.print(
                f"{name:<28}{kind:<10}{ratio:>13.2f}x{own / other:>12.3f} at mean degree {degree:.1f}"
            )
    for kind in ("HGNN", "UniGIN", "UniGCNII"):
        found = [row["epoch"] for row in rows if row["model"] == kind]
        console.print(
            f"{kind}: {_mean(found):.2f}x, >= 2.25x on {sum(one >= 2.25 for one in found)} of {len(found)}"
        )
    return rows


def _epoch(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.Adam(net.parameters())

    def run() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run


def _peak(spread: _Spread, x: Tensor, kind: str) -> int:
    """Count what forward and backward of one layer's messages hold at most, result and gradient included."""
    given, ones, native = x.clone().requires_grad_(), torch.ones_like(x), allocator()
    before = native.stats().charged
    with HighWater(native) as counter:
        spread(given, kind).backward(ones)  # type: ignore[no-untyped-call]
    return counter.bytes - before
