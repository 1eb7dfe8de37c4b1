"""One net of a family: a model, what it is trained with, and how."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """What a training step needs.

    Attributes:
        model: whose modules are to be found.
        inputs: of one call.
        target: that the loss compares the output with.
        loss: of the output and the target, outside the model.
        notes: what was drawn, for people who look at one seed.
    """

    model: nn.Module
    inputs: Tensors
    target: torch.Tensor
    loss: Loss
    notes: dict[str, object] = field(default_factory=dict)


Build = Callable[[random.Random], Case]


def squared(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A squared error that nobody calls a loss."""
    loss: torch.Tensor = (out - target).pow(2).mean()
    return loss


def likelihood(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A cross entropy in steps."""
    logs = torch.log_softmax(out.flatten(0, -2), -1)
    return -logs.gather(1, target.reshape(-1, 1)).mean()


def named_squared(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A squared error as torch calls it."""
    return nn.functional.mse_loss(out, target)


def named_likelihood(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A cross entropy as torch calls it."""
    return nn.functional.cross_entropy(out.flatten(0, -2), target.flatten())


def split_likelihood(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A cross entropy as two functions of torch."""
    return nn.functional.nll_loss(torch.log_softmax(out.flatten(0, -2), -1), target.flatten())


def robust(out: Any, target: torch.Tensor) -> torch.Tensor:
    """A loss of one's own: between absolute and squared."""
    gap = (out - target).abs()
    return torch.where(gap < 1, gap * gap / 2, gap - 0.5).sum() / len(out)


def numbers(model: nn.Module, inputs: Tensors, rng: random.Random, **notes: object) -> Case:
    """A case whose model returns numbers: the target is of their shape, the loss is drawn."""
    with torch.no_grad():
        target = torch.randn_like(model(*inputs))
    loss = rng.choice((squared, named_squared, robust))
    return Case(model, inputs, target, loss, {**notes, "loss": loss.__name__})


def classes(model: nn.Module, inputs: Tensors, rng: random.Random, **notes: object) -> Case:
    """A case whose model returns scores of classes: the loss is drawn."""
    with torch.no_grad():
        out = model(*inputs)
    target = torch.randint(out.shape[-1], out.shape[:-1])
    loss = rng.choice((likelihood, named_likelihood, split_likelihood))
    return Case(model, inputs, target, loss, {**notes, "loss": loss.__name__})
