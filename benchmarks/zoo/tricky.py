"""Two small nets made of what breaks graph tools: mutation, sharing, and hand-written gradients.

    name             scale  call                                batch       parameters
    inplace_tied     bench  InplaceTied(vocab=4096, width=256)  4 x 128      1,574,656
    inplace_tied     test   InplaceTied(vocab=64, width=16)     2 x 8            3,184
    custom_function  bench  GatedNet(width=512, depth=4)        1024 x 512   2,101,248
    custom_function  test   GatedNet(width=16, depth=2)         8 x 16           1,088

``inplace_tied``: in-place ReLU, an in-place update through a view, one block called twice, and an
output layer that shares the embedding's weight. ``custom_function``: an ``autograd.Function`` that
saves its inputs and recomputes its gate in the backward.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.case import Scale, entry


class InplaceTied(nn.Module):
    """Next-token model with tied weights, a block used twice and in-place updates."""

    def __init__(self, *, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.block = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids[:, :-1])
        for _ in range(2):
            update = self.block(self.norm(x))
            update[:, 1:].add_(x[:, :-1], alpha=0.5)
            x = x + update.mul_(0.5)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class Gate(torch.autograd.Function):
    """``x * sigmoid(gate)`` that saves its two inputs only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
        """Return the gated input."""
        ctx.save_for_backward(x, gate)
        return x * gate.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients for ``x`` and ``gate``."""
        (grad,) = grads
        x, gate = ctx.saved_tensors
        open_share = gate.sigmoid()
        return grad * open_share, grad * x * open_share * (1 - open_share)


class GatedNet(nn.Module):
    """Residual layers ``x + Gate(a(x), b(x))`` with a squared-error loss."""

    def __init__(self, *, width: int, depth: int) -> None:
        super().__init__()
        self.value = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for value, gate in zip(self.value, self.gate, strict=True):
            x = x + Gate.apply(value(x), gate(x))  # type: ignore[no-untyped-call]
        return functional.mse_loss(x, target)


def _inplace_tied(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return InplaceTied(vocab=4096, width=256), (torch.randint(4096, (4, 129)),)
    return InplaceTied(vocab=64, width=16), (torch.randint(64, (2, 9)),)


def _custom_function(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    batch, width, depth = (1024, 512, 4) if scale == "bench" else (8, 16, 2)
    return GatedNet(width=width, depth=depth), (torch.randn(batch, width), torch.randn(batch, width))


ENTRIES = (
    entry("inplace_tied", _inplace_tied, "inplace", "tied"),
    entry("custom_function", _custom_function, "custom_function"),
)
