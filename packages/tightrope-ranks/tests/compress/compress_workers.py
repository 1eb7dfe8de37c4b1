"""What tests of real ranks share: a net, its training, ranks over gloo, and plans that are given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional

from tightrope_ranks.compress import seconds_of
from tightrope_ranks.compress.forecast import sent_of
from tightrope_ranks.compress.hook import GradientExchange
from tightrope_ranks.values.exchange import ExchangePlan, Message


def net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(64, 4))


def train(
    model: Any, steps: int, rank: int, after: Callable[[int], None] = lambda step: None
) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x = torch.randn(32, 64, generator=generator)
        optimizer.zero_grad()
        loss: Any = functional.cross_entropy(model(x), x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        after(step)
    return [one.detach().clone() for one in model.parameters()]


def divided(exchange: GradientExchange, ends: tuple[int, ...], codec: str) -> ExchangePlan:
    problem = exchange.problem
    assert problem is not None
    messages = tuple(Message(end, codec) for end in ends)
    return ExchangePlan(messages, seconds_of(problem, messages), sent_of(problem, messages), 0.0, "given")


def join(rank: int, folder: str, ranks: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)


def start(run: Callable[[int, str], None], folder: Path, ranks: int) -> None:
    start_processes(run, (str(folder),), nprocs=ranks)  # type: ignore[no-untyped-call]
