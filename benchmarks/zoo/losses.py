"""Wrappers and batches: a net becomes a module that returns its scalar loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CrossEntropy(nn.Module):
    """A net and its cross-entropy: ``forward(x, target)`` with classes in dimension 1 of the output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(x), target)


def images(batch: int, size: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Draw ``batch`` square colour images (batch x 3 x size x size) and one class for each."""
    return torch.randn(batch, 3, size, size), torch.randint(num_classes, (batch,))
