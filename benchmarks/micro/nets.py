"""Small networks whose forward returns the loss, each with a batch and an optimizer."""

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[torch.Tensor, ...], torch.optim.Optimizer]


class Block(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, *, normed: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not normed)
        self.norm = nn.BatchNorm2d(outputs) if normed else nn.Identity()
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + self.skip(x))


class Residual(nn.Module):
    """A stem, blocks, the mean over each map, and a dense layer."""

    def __init__(self, widths: tuple[int, ...], *, channels: int = 3, normed: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, 1 + (a != b), normed=normed) for a, b in pairs))
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.stem(x)))
        return F.cross_entropy(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


class Pooled(nn.Module):
    """Every other kernel: pools, groups, no biases, a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 8, (3, 1), padding=(1, 0), groups=2)
        self.fc = nn.Linear(32, 3, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 3, 2, padding=1)
        return F.mse_loss(self.fc(x.flatten(1)), y)


class Dense(nn.Module):
    """Two dense layers, the first with most of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(F.relu(self.first(F.relu(x)))), y)


def dense() -> Made:
    """A perceptron, batch 2, with momentum."""
    torch.manual_seed(4)
    model = Dense()
    data = torch.randn(2, 64), torch.tensor([4, 0])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


class LeNet(nn.Module):
    """LeNet-5 with ReLU and largest elements: 61,706 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.dense = nn.Sequential(
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return F.cross_entropy(self.dense(x.flatten(1)), y)


class Gestures(nn.Module):
    """A perceptron of 33-20-10-4."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(
            nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 4)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.dense(x), y)


def lenet() -> Made:
    """LeNet-5, batch 1."""
    torch.manual_seed(5)
    model = LeNet()
    data = torch.randn(1, 1, 28, 28), torch.tensor([5])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01)


def gestures() -> Made:
    """Gestures, batch 1."""
    torch.manual_seed(6)
    model = Gestures()
    data = torch.randn(1, 33), torch.tensor([2])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01)


def residual() -> Made:
    """A residual net of three widths, batch 1: 77,706 parameters, 37 million multiply-accumulates a step."""
    torch.manual_seed(0)
    model = Residual((16, 32, 64))
    return model, (torch.randn(1, 3, 32, 32), torch.tensor([3])), torch.optim.SGD(model.parameters(), lr=0.01)


class ResidualScores(Residual):
    """The residual net without its loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = self.blocks(F.relu(self.stem(x)))
        return cast(torch.Tensor, self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)))


def residual_scores() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Inference of the residual net, batch 1."""
    torch.manual_seed(0)
    return ResidualScores((16, 32, 64)).eval(), (torch.randn(1, 3, 32, 32),)


def normed() -> Made:
    """A small residual net with batch norm, batch 3."""
    torch.manual_seed(1)
    model = Residual((4, 8), normed=True)
    data = torch.randn(3, 3, 8, 8), torch.tensor([1, 2, 9])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def pooled() -> Made:
    """Pools, groups and a squared error, with every option of the update."""
    torch.manual_seed(2)
    model = Pooled()
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    return model, (torch.randn(2, 1, 8, 8), torch.randn(2, 3)), rule


def frozen() -> Made:
    """A net of which the last layer alone is trained."""
    torch.manual_seed(3)
    model = Residual((4,), channels=1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("fc" in name)
    data = torch.randn(2, 1, 6, 6), torch.tensor([0, 7])
    return model, data, torch.optim.SGD(model.fc.parameters(), lr=0.1)


class Sided(nn.Module):
    """A block of POET's net: two convolutions, beside them a third, each with a batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 + (inputs != outputs)
        self.first, self.side = (nn.Conv2d(inputs, outputs, 3, stride, 1) for _ in range(2))
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(F.relu(self.norms[1](self.second(y))) + self.norms[2](self.side(x)))


class PoetResNet(nn.Module):
    """The net that POET calls resnet18_cifar: 67 nodes forward, 133 with the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16)
        widths = (16, 16, 16, 32, 32, 64, 64)
        self.blocks = nn.Sequential(*(Sided(a, b) for a, b in pairwise(widths)))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.norm(self.stem(x)))
        return F.cross_entropy(self.fc(F.avg_pool2d(x, 8, 1).flatten(1)), y)


def poet_resnet() -> Made:
    """POET's net for images of 32 x 32, batch 1."""
    torch.manual_seed(10)
    model = PoetResNet()
    data = torch.randn(1, 3, 32, 32), torch.tensor([3])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01)


class Encoder(nn.Module):
    """One block of a transformer: attention and two dense layers, a layer norm behind each."""

    def __init__(self, width: int, heads: int, hidden: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.first, self.second = (
            nn.Linear(width, width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        )  # fmt: skip
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        split = (batch, rows, self.heads, width // self.heads)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed = mixed.transpose(1, 2).reshape(batch, rows, width)
        x = self.norm(x + self.out(mixed))
        return cast(torch.Tensor, self.last(x + self.second(F.gelu(self.first(x)))))


class Sentences(nn.Module):
    """An encoder of words and their places, with a dense layer on the mean of its rows."""

    def __init__(self, *, words: int, rows: int, width: int, heads: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(1, rows, width))
        self.blocks = nn.Sequential(
            *(Encoder(width, heads, 4 * width, causal=k % 2 == 1) for k in range(blocks))
        )
        self.fc = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.words(x) + self.places)
        return F.cross_entropy(self.fc(x.mean(1)), y)


def bert_tiny() -> Made:
    """An encoder as wide as BERT-tiny: 2 blocks of width 128, 2 heads, 32 words, batch 1."""
    torch.manual_seed(8)
    model = Sentences(words=128, rows=32, width=128, heads=2, blocks=2, classes=10)
    data = torch.randint(0, 128, (1, 32)), torch.tensor([3])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.01)


def sentences() -> Made:
    """A small encoder, batch 3, with momentum."""
    torch.manual_seed(9)
    model = Sentences(words=12, rows=5, width=8, heads=2, blocks=2, classes=10)
    data = torch.randint(0, 12, (3, 5)), torch.tensor([1, 2, 9])
    return model, data, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


NETS: dict[str, Callable[[], Made]] = {
    "residual": residual,
    "normed": normed,
    "pooled": pooled,
    "frozen": frozen,
    "dense": dense,
    "sentences": sentences,
}
