"""Models that change a value in place and return a view of it: the view is traced behind the backward."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.run.ledger.accounts import accounts


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.inner(x)
        h[:, 0] = 0
        return h.transpose(0, 1)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu, flatten": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten()),
        (4, 3, 8, 8),
    ),
    "dropout, unflatten": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1, inplace=True), nn.Unflatten(1, (4, 4))),
        (8, 16),
    ),
    "rows, transpose": (Masked, (8, 16)),
}


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    out = model(x)
    (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", NETS)
def test_the_bits_are_those_of_eager(name: str) -> None:
    make, shape = NETS[name]
    x = torch.rand(shape)
    torch.manual_seed(0)
    model = make()
    with accounts().unlimited():
        wanted = step(model, x)
    tightrope.compile(model, budget="64MiB")
    for _ in range(2):
        assert all(map(torch.equal, step(model, x), wanted))
    assert tightrope.report(model).level == "L1"
