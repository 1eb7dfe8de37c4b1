"""Train nets of one form at once, a step of one image each, as the device's step is.

Convolutions of all nets are one convolution in groups; nets share no number. Every net has its own images, in
an order drawn with its own seed, and updates only what it names; a net whose images are at an end rests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_NUM_BLOCKS, _NUM_CLASSES = 6, 5


@dataclass(frozen=True)
class Lesson:
    """What one net learns.

    Attributes:
        start: its parameters.
        names: of those that are updated.
        images: to learn, [n, 1, 8, 8].
        labels: of them.
        seed: of their order.
    """

    start: Mapping[str, Tensor]
    names: frozenset[str]
    images: Tensor
    labels: Tensor
    seed: int


def learned(lessons: Sequence[Lesson], *, rate: float, epochs: int) -> list[dict[str, Tensor]]:
    """Parameters of every net after plain gradient descent, one image a step.

    Args:
        lessons: one per net.
        rate: of all.
        epochs: passes over a net's images.
    """
    held = {name: torch.stack([one.start[name] for one in lessons]) for name in lessons[0].start}
    updated = {
        name: torch.tensor([float(name in one.names) for one in lessons])
        for name in held
        if any(name in one.names for one in lessons)
    }
    for name in updated:
        held[name].requires_grad_()
    images, labels, there = _ordered(lessons, epochs)
    for x, y, counts in zip(images, labels, there, strict=True):
        losses = F.cross_entropy(_scores(held, x), y, reduction="none")
        gradients = torch.autograd.grad((losses * counts).sum(), [held[name] for name in updated])
        with torch.no_grad():
            for (name, mask), gradient in zip(updated.items(), gradients, strict=True):
                held[name].sub_(gradient * mask.view(-1, *[1] * (gradient.dim() - 1)), alpha=rate)
    return [{name: value[k].detach().clone() for name, value in held.items()} for k in range(len(lessons))]


def _ordered(lessons: Sequence[Lesson], epochs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, classes, and whether there is one: of every step and net."""
    orders = []
    for one in lessons:
        draw = torch.Generator().manual_seed(one.seed)
        orders.append(torch.cat([torch.randperm(len(one.images), generator=draw) for _ in range(epochs)]))
    steps = max(map(len, orders))
    images = torch.zeros(steps, len(lessons), *lessons[0].images.shape[2:])
    labels = torch.zeros(steps, len(lessons), dtype=torch.long)
    there = torch.zeros(steps, len(lessons))
    for k, (one, order) in enumerate(zip(lessons, orders, strict=True)):
        images[: len(order), k] = one.images[order, 0]
        labels[: len(order), k] = one.labels[order]
        there[: len(order), k] = 1.0
    return images, labels, there


def _scores(held: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Scores [nets, classes] of one image [8, 8] per net; as `transfer.Digits` computes them."""
    num = len(images)

    def convolved(x: Tensor, layer: str) -> Tensor:
        weight, bias = held[f"{layer}.weight"], held[f"{layer}.bias"]
        return F.conv2d(x, weight.flatten(0, 1), bias.flatten(), padding=1, groups=num)

    x = F.relu(convolved(images[None], "stem"))
    for k in range(_NUM_BLOCKS):
        inner = F.relu(convolved(x, f"blocks.{k}.first"))
        x = F.relu(x + convolved(inner, f"blocks.{k}.second"))
    features = F.max_pool2d(x, 4).reshape(num, -1, 1)
    scores: Tensor = torch.baddbmm(held["fc.bias"][:, :, None], held["fc.weight"], features)
    return scores.reshape(num, _NUM_CLASSES)
