"""R2: training across calls gives the bits of training in one process, on three topologies."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.micro.rows import Row
from tightrope_ranks.fabric import LocalFabric, RemoteModule, SharedFabric, register
from tightrope_ranks.fabric.memory import Caller

_STEPS = 20


@register("bench.stack")
def stack(seed: int, *widths: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*(one for a, b in pairwise(widths) for one in (nn.Linear(a, b), nn.GELU())))


@register("bench.table")
def table(seed: int, rows: int, width: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.EmbeddingBag(rows, width, mode="sum")


Part = tuple[str, int, str, tuple[int, ...], str]
"""Name, node, maker, arguments, optimizer."""
SERVER: Sequence[Part] = (("server", 1, "bench.stack", (1, 16, 64, 64, 4), "AdamW"),)
STAGES: Sequence[Part] = (
    ("stage 0", 1, "bench.stack", (2, 16, 64, 64), "SGD"),
    ("stage 1", 2, "bench.stack", (3, 64, 64, 4), "Adam"),
)
RECOMMENDER: Sequence[Part] = (
    ("table 0", 1, "bench.table", (4, 500, 16), "SGD"),
    ("table 1", 2, "bench.table", (5, 300, 16), "Adagrad"),
    ("top", 1, "bench.stack", (6, 48, 32, 1), "Adam"),
)

Model = Callable[[Sequence[Callable[..., Tensor]], torch.Generator], Tensor]


def _server(parts: Sequence[Callable[..., Tensor]], generator: torch.Generator) -> Tensor:
    """Two workers' batches, one after the other, against the parameters of one server."""
    losses = [parts[0](torch.randn(32, 16, generator=generator)).square().mean() for _ in range(2)]
    return losses[0] + losses[1]


def _stages(parts: Sequence[Callable[..., Tensor]], generator: torch.Generator) -> Tensor:
    return parts[1](parts[0](torch.randn(32, 16, generator=generator)).tanh()).square().mean()


def _recommender(parts: Sequence[Callable[..., Tensor]], generator: torch.Generator) -> Tensor:
    dense = torch.randn(32, 16, generator=generator)
    rows = [parts[at](torch.randint(300, (32, 5), generator=generator)) for at in range(2)]
    return (parts[2](torch.cat([dense, *rows], 1)) - 1).square().mean()


TOPOLOGIES: dict[str, tuple[Sequence[Part], Model]] = {
    "parameter server": (SERVER, _server),
    "two stages": (STAGES, _stages),
    "recommender": (RECOMMENDER, _recommender),
}


def _remote(fabric: Caller, parts: Sequence[Part], model: Model) -> Iterator[Tensor]:
    modules = [RemoteModule(fabric, node, name, maker, *given) for name, node, maker, given, _ in parts]
    optimizers = [one.optimizer(part[4], lr=0.05) for one, part in zip(modules, parts, strict=True)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(_STEPS):
        loss = model(modules, generator)
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        yield loss.detach()
    for module in modules:
        yield from module.fetch()


def _local(parts: Sequence[Part], model: Model) -> Iterator[Tensor]:
    """Plain torch, which knows nothing of calls."""
    makers: dict[str, Callable[..., nn.Module]] = {"bench.stack": stack, "bench.table": table}
    modules = [makers[maker](*given) for _, _, maker, given, _ in parts]
    optimizers = [
        getattr(torch.optim, part[4])(one.parameters(), lr=0.05)
        for one, part in zip(modules, parts, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    for _ in range(_STEPS):
        loss = model(modules, generator)
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()
    for module in modules:
        yield from (one.detach() for one in module.parameters())


def r2(quick: bool = False) -> list[Row]:
    """Compare losses and parameters bit by bit."""
    torch.set_num_threads(1)
    rows = []
    with SharedFabric(3, modules=["benchmarks.fabric.training"]) as shared, LocalFabric(3) as local:
        for name, (parts, model) in TOPOLOGIES.items():
            expected = list(_local(parts, model))
            equal = [
                sum(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
                for found in (list(_remote(shared, parts, model)), list(_remote(local, parts, model)))
            ]
            rows.append(
                Row(
                    f"R2, {name}",
                    "bitwise equal to one process",
                    f"{equal[0]} (processes) and {equal[1]} (in process) of {len(expected)} losses and "
                    "parameters "
                    f"equal after {_STEPS} steps; real processes",
                    equal == [len(expected)] * 2,
                )
            )
    return rows
