"""The budget that a refusal names counts what a forward has to leave for its backward while the loss runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import Flag, Graph, Op, Part, Result, Storage, View
from tightrope.core.graph import RETURN
from tightrope.lower.remainder import staying
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.refusal import Expected


def made(storage: int) -> tuple[Result, ...]:
    return (Result(-1, View(storage, "float32", (16,), (1,))),)


@pytest.mark.parametrize(("random", "bytes_"), [(True, 128), (False, 0)])
def test_only_what_cannot_be_computed_again_stays(random: bool, bytes_: int) -> None:
    ops = (
        Op(0, "mask", "mask", (0,), (1,), results=made(1), flags=Flag.RANDOM if random else Flag(0)),
        Op(1, "masked", "mul", (0, 1), (2,), results=made(2)),
        Op(2, "unread", "mask", (0,), (3,), results=made(3), flags=Flag.RANDOM),
        Op(3, "return", RETURN),
        Op(4, "gradient", "mul", (2, 4), (5,), results=made(5)),
    )
    storages = tuple(Storage(i, 128, external=i in (0, 4)) for i in range(6))
    graph = Graph(ops, storages, (), (Part(4), Part(5)))
    assert staying(graph) == bytes_


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wide = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(12)]
        self.blocks, self.last = nn.Sequential(*wide), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.blocks(x))
        return found


def test_a_measured_loss_is_refused_with_what_the_forward_keeps() -> None:
    model: Any = tightrope.compile(Masked(), budget="1GiB", progress=False)
    model(torch.ones(256, 64)).sum().backward()
    (unit,) = (unit for unit in compiled_of(model).calls.units.values() if len(unit.graph.parts) == 2)
    room = replace(unit.room, headroom=replace(unit.room.headroom, peak=10**9, seen=True))
    refused = unit.refused(room, Expected())
    masks = 12 * 256 * 64
    assert refused.smallest_found is not None
    assert refused.smallest_found >= room.held + room.hidden + 10**9 + masks
