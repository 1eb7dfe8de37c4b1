"""A step that was refused leaves nothing behind, and what fits goes on."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import InfeasibleError
from tightrope.run.ledger.accounts import accounts


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class Words(nn.Module):
    """A loss over many words, which is tried in chunks of rows before a step is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(512, 16), nn.Linear(16, 512)

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.words(ids)), ids)


class Wide(nn.Module):
    """Nothing that could be cut into chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.layers(ids[:, None].expand(-1, 64).float()).sum()
        return loss


@pytest.mark.parametrize("kind", [Words, Wide])
def test_the_model_of_a_refused_step_goes_without_the_collector(
    kind: type[nn.Module], uncollected: None
) -> None:
    model = kind()
    gone = weakref.ref(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train: Any = tightrope.step(
        lambda ids, net=model: net(ids),
        budget=2**16, model=model, optimizer=optimizer, progress=False,
    )  # fmt: skip
    with pytest.raises(InfeasibleError):
        train(torch.zeros(256, dtype=torch.long))
    del model, optimizer, train
    assert gone() is None


def test_a_larger_batch_with_an_op_that_does_not_fit_alone_is_refused(uncollected: None) -> None:
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    budget = accounts().charged() + 2**22
    train: Any = tightrope.step(
        lambda ids: model(ids), budget=budget, model=model, optimizer=optimizer, progress=False
    )
    train(torch.zeros(64, dtype=torch.long))
    for _ in range(2):
        with pytest.raises(InfeasibleError, match="Try budget="):
            train(torch.zeros(16_421, dtype=torch.long))
    train(torch.ones(64, dtype=torch.long))
