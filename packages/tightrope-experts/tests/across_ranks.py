"""What ranks of tests run: functions at the top of a module, and how they are started."""

import copy
import itertools
import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import tightrope
from benchmarks._measure import HighWater
from tightrope.core import DeviceLink, RankError, TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope_experts import MoE
from tightrope_experts.ranks import MoEAcross, Sending, guarded
from tightrope_experts.ranks.choose import Speeds, price_of
from tightrope_experts.ranks.exchange import FAILED, Mesh, store_of
from tightrope_experts.sizes import ExpertSizes

TOKENS = (13, 40, 1, 7, 22, 5, 0, 31)
DIM, HIDDEN = 16, 32


def _rank(rank: int, what: Callable[..., Any], world: int, folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    torch.save(what(rank, world, *arguments), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


multiprocessing.set_forkserver_preload(["tightrope", "tightrope_experts.ranks.choose"])  # imported once


def started(what: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """Run a function on ranks, and return what each returned."""
    with tempfile.TemporaryDirectory() as folder:
        given = (what, world, folder, arguments)
        mp.start_processes(_rank, given, nprocs=world, start_method="forkserver")  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def tokens_of(rank: int) -> Tensor:
    return torch.randn(TOKENS[rank % 8], DIM, generator=torch.Generator().manual_seed(7 + rank))


def full_layer(experts: int) -> MoE:
    torch.manual_seed(0)
    layer = MoE(DIM, HIDDEN, num_experts=experts, k=min(2, experts), bias=experts >= 4)
    for bias in (layer.up_bias, layer.down_bias):
        if bias is not None:
            nn.init.normal_(bias)
    return layer


def loss_of(out: Tensor) -> Tensor:
    return out.square().sum()


def own_part(across: MoEAcross, name: str, whole: Tensor) -> Tensor:
    """Cut what a rank holds out of something of all experts; written apart from the layer."""
    ranks, rank, num = across.mesh.ranks, across.mesh.rank, len(whole)
    if num >= ranks:
        return whole[rank * (num // ranks) : (rank + 1) * (num // ranks)]
    slices = ranks // num
    expert, part, size = rank // slices, rank % slices, HIDDEN // slices
    columns = range(part * size, (part + 1) * size)
    if name == "down":
        return whole[expert : expert + 1, :, columns]
    return whole[expert : expert + 1, [*columns, *(HIDDEN + c for c in columns)]]


def worst_difference(rank: int, world: int, experts: int, sending: list[Sending], node: int) -> list[float]:
    """Compare outputs and gradients of a step with those of one process, for each way.

    The last numbers: whether a parameter moved, and rows that were sent again.
    """
    one = full_layer(experts)
    across = MoEAcross(copy.deepcopy(one), node=node)
    given = [tokens_of(r).requires_grad_() for r in range(world)]
    outs = [one(x) for x in given]
    torch.stack([loss_of(out) for out in outs]).sum().backward()  # type: ignore[no-untyped-call]
    places = [p.data_ptr() for p in across.parameters()]
    worst, again = 0.0, 0
    for across.sending in sending:
        across.zero_grad()
        x = tokens_of(rank).requires_grad_()
        out = across(x)
        loss_of(out).backward()  # type: ignore[no-untyped-call]
        dist.all_reduce(across.router.weight.grad)
        pairs = [(out, outs[rank]), (x.grad, given[rank].grad)]
        pairs.append((across.router.weight.grad, one.router.weight.grad))
        for name, parameter in across.named_parameters(recurse=False):
            whole = getattr(one, name).grad
            pairs.append((world * parameter.grad, own_part(across, name, whole)))
        for got, right in pairs:
            if right.numel():
                scale = max(1.0, right.abs().max().item())
                worst = max(worst, (got - right).abs().max().item() / scale)
        again += int(across.seen.again.sum()) if across.seen else 0
    moved = places != [p.data_ptr() for p in across.parameters()]
    return [worst, float(moved), float(again)]


def every_way(degrees: tuple[int, ...], world: int) -> list[Sending]:
    many = itertools.product(degrees, (1, 2, 4), (1 << 16, 8 * world), (1 << 16, 0, 20))
    return [Sending(*one, rows=16) for one in many]


def differences(rank: int, world: int, experts: int, degrees: tuple[int, ...], node: int) -> list[float]:
    return worst_difference(rank, world, experts, every_way(degrees, world), node)


def two_levels_equal(rank: int, world: int, node: int) -> bool:
    """Compare both levels of an uneven exchange, to the bit."""
    draw = np.random.default_rng(0)
    one, two = Mesh(), Mesh(node=node)
    same = True
    for most in (0, 1, 9):
        matrix = draw.integers(0, most + 1, (world, world))
        rows = torch.randn(int(matrix[rank].sum()), 3)
        same &= torch.equal(one.post(rows, matrix)(), two.post(rows, matrix)())
    return same


def layers_that_do_not_fit(rank: int, world: int) -> list[str]:
    """Return what a rank says of layers that its ranks do not divide, and whether a good one works then."""
    odd = MoE(DIM, 33, num_experts=1), MoE(DIM, HIDDEN, num_experts=1, bias=True), MoE(DIM, 4, num_experts=3)
    said = []
    for layer, node in [*((one, 0) for one in odd), (full_layer(4), 3)]:
        before = {name: one.clone() for name, one in layer.named_parameters()}
        try:
            MoEAcross(layer, node=node)
        except TightropeError as error:
            said.append(str(error))
        assert all(torch.equal(one, before[name]) for name, one in layer.named_parameters())
    MoEAcross(full_layer(4))(tokens_of(rank))
    return said


REFUSED = {
    "nan": "Rank 1 failed. A gate is NaN or infinite. Look at the router's inputs and weights.",
    "width": "Rank 1 failed. x has shape (40, 15). The layer takes (..., 16).",
    "type": "Rank 1 failed. Tokens are torch.float64 and experts torch.float32. Give one type.",
    "expert": "Rank 1 failed. A token chose expert 9. Experts are 0 to 3; 4 stands for none.",
    "settings": "Settings differ between ranks. Give every rank the same.",
    "degree": "degree=2: 4 experts on 2 ranks have the degrees 0, 1.",
    "most": "most=1: a round has up to a row of each rank and lane, 4 here. Give at least that.",
}


def refusals(rank: int, world: int) -> list[str]:
    """Return what a rank says, case by case: rank 1 is wrong in most of them, and both in the last."""
    across = MoEAcross(full_layer(4))
    said = []
    for case in REFUSED:
        x, odd = tokens_of(rank), rank == 1
        across.sending = Sending(
            degree=2 if case == "degree" else 1,
            parts=2 if odd and case == "settings" else 1,
            most=1 if case == "most" else 99,
        )
        try:
            if odd and case == "nan":
                x[:] = torch.nan
            if odd and case == "width":
                x = x[:, :15]
            with guarded():
                if odd and case in ("type", "expert"):
                    chosen = torch.full((len(x), 2), 9 if case == "expert" else 0)
                    across.mixed(x.double() if case == "type" else x, chosen, torch.ones(len(x), 2))
                else:
                    across(x)
        except RankError as error:
            said.append(str(error))
    across.sending = Sending()
    said.append(str(tuple(across(tokens_of(rank)).shape)))  # the ranks still understand each other
    assert not store_of(None).check([FAILED])  # and no rank is said to have failed
    return said


def failures(rank: int, world: int, place: str) -> str:
    """Let rank 1 fail before the layer, or while rows travel; it ends when the other has heard of it."""
    across = MoEAcross(full_layer(4), sending=Sending(parts=4))
    given, calls = across.activation, [0]
    met = store_of(None)

    def activation(before: Tensor) -> Tensor:
        calls[0] += 1
        if rank and calls[0] == {"before": 0, "forward": 2, "backward": 6}[place]:
            raise MemoryError("no bytes are left")
        return given(before)

    across.activation = activation
    try:
        with guarded():
            if rank and place == "before":
                raise MemoryError("no bytes are left")
            loss_of(across(tokens_of(rank).requires_grad_())).backward()  # type: ignore[no-untyped-call]
    except (MemoryError, RankError) as error:
        if not rank:
            met.set("heard", "")
        met.wait(["heard"], timedelta(seconds=40))
        return f"{type(error).__name__}: {error}"
    return ""


def bytes_held(rank: int, world: int, experts: int, ways: list[Sending]) -> list[tuple[int, int]]:
    """Return the most bytes of a step above what was there, and the bound that is told, for each way."""
    torch.manual_seed(0)
    across = MoEAcross(MoE(32, 64, num_experts=experts, k=1))
    x = torch.randn(200, 32, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    link, found = DeviceLink("any", 0.0, 1e9), []
    sizes = ExpertSizes(200, 32, 64, experts, 1, ranks=world)
    for across.sending in (ways[0], *ways):
        across.zero_grad()
        x.grad = None
        before = allocator().stats().charged
        with HighWater(allocator()) as counter:
            across(x).sum().backward()
        assert across.seen is not None
        told = price_of(across.sending, 1, across.seen.counts, sizes, Speeds(1e9, link, link))
        found.append((counter.bytes - before, told.held))
    return found[1:]


class PushedAcross(MoEAcross):
    """Experts of all ranks whose router can be pushed to one of them."""

    push = torch.zeros(4)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        gates, chosen = torch.topk((self.router(tokens) + self.push).softmax(-1), self.k)
        return chosen, gates / gates.sum(-1, keepdim=True)


class Block(nn.Module):
    """A product, and experts with a skip connection."""

    def __init__(self, sending: Sending) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)
        self.experts = PushedAcross(MoE(48, 64, num_experts=4, k=1), sending=sending)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(self.norm(torch.tanh(self.first(x))))


def adversarial(rank: int, world: int, budget: int, sending: Sending, steps: int) -> dict[str, Any]:
    """Train while all tokens go to one expert, to another one, and everywhere."""
    model = Block(sending)
    if budget:
        tightrope.compile(model, budget=budget, progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, arrived = [], []
    with HighWater(allocator()) as counter:
        for step in range(steps):
            x = torch.randn(96, 48, generator=torch.Generator().manual_seed(100 * step + rank))
            model.experts.push = torch.zeros(4)
            model.experts.push[step // 2 % 4] = 100.0 * (step % 3 > 0)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            arrived.append(int(model.experts.seen.matrices.sum((0, 1)).max()) if model.experts.seen else 0)
    return {"losses": losses, "bytes": counter.bytes, "arrived": arrived}
