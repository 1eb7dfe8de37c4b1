"""Nets whose training steps are rewritten: from the zoo, and written as people write them."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo import REGISTRY

Net = tuple[nn.Module, tuple[Tensor, ...]]


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Module:
    padding = kernel // 2
    layers = (
        nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
    return nn.Sequential(*layers)


class Inception(nn.Module):
    """Four branches, joined: 1x1, 1x1 and 3x3, 1x1 and 5x5, pool and 1x1 (Szegedy et al., 2015)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            (
                _conv(inputs, width, 1),
                nn.Sequential(_conv(inputs, width, 1), _conv(width, 2 * width, 3)),
                nn.Sequential(_conv(inputs, width // 2, 1), _conv(width // 2, width, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(inputs, width, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class RepVgg(nn.Module):
    """Sums of a 3x3, a 1x1 convolution and the identity (Ding et al., 2021), with one norm behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(width, width, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.wide(x) + self.narrow(x)) + x)


class Classified(nn.Module):
    """Blocks over images, averaged, with a loss."""

    def __init__(self, width: int, blocks: list[nn.Module], outputs: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = _conv(3, width, 3), nn.Sequential(*blocks), nn.Linear(outputs, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))), y)


class Written(nn.Module):
    """A block of a transformer with attention and GELU as papers write them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / (q.shape[-1] ** 0.5), -1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(-2))
        y = self.up(self.norm2(x))
        y = 0.5 * y * (1.0 + torch.erf(y / 2.0**0.5))
        made: Tensor = x + self.down(y)
        return made


class Text(nn.Module):
    """Blocks over words, with the loss of the next word."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(512, width), nn.Linear(width, 512)
        self.blocks = nn.Sequential(*(Written(width, heads) for _ in range(depth)))

    def forward(self, ids: Tensor) -> Tensor:
        made = self.head(self.blocks(self.words(ids)))
        return functional.cross_entropy(made[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _images(size: int, batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(10, (batch,))


def inception() -> Net:
    """Three blocks."""
    return Classified(32, [Inception(32, 16), Inception(80, 16), Inception(80, 16)], 80), _images(24, 4)


def repvgg() -> Net:
    """Four blocks."""
    return Classified(32, [RepVgg(32) for _ in range(4)], 32), _images(24, 4)


def written() -> Net:
    """Four blocks of 128 numbers over 128 words."""
    return Text(128, 4, 4), (torch.randint(512, (2, 128)),)


def _of_zoo(name: str) -> Callable[[], Net]:
    return lambda: REGISTRY[name].make("bench")


NETS: Final[dict[str, Callable[[], Net]]] = {
    "gpt2": _of_zoo("gpt2"),
    "resnet18": _of_zoo("resnet18"),
    "inception": inception,
    "repvgg": repvgg,
    "llama": _of_zoo("llama"),
    "written": written,
}
"""``gpt2``, ``resnet18`` and ``llama`` are those of the zoo; see there."""
