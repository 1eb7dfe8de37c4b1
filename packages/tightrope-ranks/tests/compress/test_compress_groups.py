"""Models in groups of four ranks: means are those of the group, to the bit, and other ranks take no part."""

from pathlib import Path
from typing import Any

import pytest
import torch
from compress_workers import join, start
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tightrope_ranks.compress import compress_gradients

STEPS = 24
"""Enough for watching, rehearsal and contest."""


def stage(seed: int, width: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 8))


def loss_of(model: Any, rank: int, step: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(16, 32, generator=generator), torch.randn(16, 8, generator=generator)
    return functional.mse_loss(model(x), y)


class Pair:
    """A model on some ranks and the same one in one process, step by step."""

    def __init__(self, members: list[int], group: Any, rank: int, width: int, **more: Any) -> None:
        self.members, self.rank = members, rank
        self.alone, self.net = stage(members[0], width), stage(members[0], width)
        self.model = DistributedDataParallel(self.net, process_group=group, bucket_cap_mb=0.005)
        self.exchange = compress_gradients(self.model, codecs=("none",), timeout=30, **more)
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (self.net, self.alone)]

    def step(self, number: int) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss_of(self.model, self.rank, number).backward()
        for member in self.members:
            (loss_of(self.alone, member, number) / len(self.members)).backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def run(self) -> None:
        for number in range(STEPS):
            self.step(number)

    def check(self, *, atol: float = 0.0) -> None:
        assert self.exchange.plan is not None
        for one, other in zip(self.net.parameters(), self.alone.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=atol)
        self.exchange.close()


def _groups(rank: int, folder: str) -> None:
    join(rank, folder, 4)
    groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    members = [[0, 1], [2, 3]][rank // 2]
    for width in (64, 64 + 8 * (rank // 2)):  # stages of equal shapes, and of different ones
        pair = Pair(members, groups[rank // 2], rank, width, trials=1)
        pair.run()
        pair.check()
    if rank >= 2:  # the other ranks do something else
        late = Pair(members, groups[1], rank, 48, trials=0)
        late.run()
        late.check()
    distributed.barrier()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    rows = Pair(members, mesh.get_group("shard"), rank, 40, trials=0)
    columns = Pair([[0, 2], [1, 3]][rank % 2], mesh.get_group("replicate"), rank, 56, trials=0)
    for number in range(STEPS):
        rows.step(number)
        columns.step(number)
    rows.check()
    columns.check()
    uneven = [distributed.new_group([0, 1, 2]), distributed.new_group([3])]
    pair = Pair([[0, 1, 2], [3]][rank // 3], uneven[rank // 3], rank, 32, trials=0)
    pair.run()
    pair.check(atol=1e-6)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_means_are_those_of_the_models_own_group(tmp_path: Path) -> None:
    start(_groups, tmp_path, 4)
