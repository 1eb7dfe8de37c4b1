"""A generated family of small nets, loops and optimizers: every seed is one case."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "adam, decay": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1),
    "sgd, momentum": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2),
}
DROPS = ("before the forward", "after the forward", "never, filled with zeros")
"""When a loop drops its gradients."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training loop.

    Attributes:
        seed: makes the case again.
        net: family of the net.
        loss: what is computed outside of the model.
        optimizer: name in `OPTIMIZERS`.
        drops: one of `DROPS`.
        build: makes the model.
        batch: makes the batch of one step.
        call: calls the model and the loss.
    """

    seed: int
    net: str
    loss: str
    optimizer: str
    drops: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    call: Loss

    @property
    def name(self) -> str:
        """Words for a table."""
        return f"{self.net}, {self.loss}"


class Residual(nn.Module):
    """A stack of blocks with a skip connection each."""

    def __init__(self, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.head(x)
        return out


class Attention(nn.Module):
    """One layer of self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-1, -2)).softmax(-1)
        out: Tensor = self.out((scores @ parts[2]).transpose(1, 2).reshape(batch, length, width))
        return out


class Pieces(nn.Module):
    """Two halves with a graph break between them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        out: Tensor = self.second(x)
        return out


class WithLoss(nn.Module):
    """A net whose forward returns the loss."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


def _pairwise(out: Tensor, y: Tensor) -> Tensor:
    distance = (out.unsqueeze(1) - out.unsqueeze(0)).pow(2).sum(-1)
    return distance.exp().neg().mean() + functional.cross_entropy(out, y)


def _wasteful(out: Tensor, y: Tensor) -> Tensor:
    wide = out.repeat(1, 24).sigmoid().mul(2).tanh().log_softmax(-1)
    return functional.cross_entropy(out, y) - wide.mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda out, y: out.mean(),
    "cross entropy": functional.cross_entropy,
    "squares": lambda out, y: (out - 1).pow(2).mean() + out.abs().mean(),
    "pairwise": _pairwise,
    "wasteful": _wasteful,
}
NETS = ("mlp", "conv", "attention", "siamese", "pieces")


def case(seed: int) -> Case:
    """Draw a case; equal seeds give equal cases."""
    draw = random.Random(f"floor {seed}")
    net = NETS[seed % len(NETS)]
    size, width, depth = draw.choice((64, 128, 256)), draw.choice((64, 128, 256)), draw.randint(2, 4)
    classes = draw.choice((10, 64))
    loss = draw.choice(("inside", *LOSSES))

    def build() -> nn.Module:
        torch.manual_seed(seed)
        model = _net(net, width, depth, classes)
        return WithLoss(model, LOSSES["cross entropy"]) if loss == "inside" else model

    shape = {"conv": (size // 8, 3, 16, 16), "attention": (size // 8, 32, width)}.get(net, (size, width))

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        inputs = [torch.randn(shape, generator=generator) for _ in range(2 if net == "siamese" else 1)]
        return (*inputs, torch.randint(classes, (shape[0],), generator=generator))

    def once(model: nn.Module, given: Batch) -> Tensor:
        x, y = given
        found: Tensor = model(x, y) if loss == "inside" else LOSSES[loss](model(x), y)
        return found

    def twice(model: nn.Module, given: Batch) -> Tensor:
        *inputs, y = given
        if loss == "inside":
            found: Tensor = sum((model(x, y) for x in inputs[1:]), start=model(inputs[0], y))
            return found
        outs = [model(x) for x in inputs]
        return sum((LOSSES[loss](out, y) for out in outs[1:]), start=LOSSES[loss](outs[0], y))

    call = twice if net == "siamese" else once
    drops = draw.choice(DROPS)
    return Case(seed, net, loss, draw.choice(tuple(OPTIMIZERS)), drops, build, batch, call)


def _net(net: str, width: int, depth: int, classes: int) -> nn.Module:
    if net == "conv":
        channels = width // 4
        stem = nn.Conv2d(3, channels, 3, padding=1)
        blocks: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.GELU())
            for _ in range(depth)
        ]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        return nn.Sequential(stem, Residual(blocks, head))
    if net == "attention":
        return nn.Sequential(
            Residual([Attention(width, 4) for _ in range(depth)], nn.Identity()),
            _Mean(),
            nn.Linear(width, classes),
        )
    halves = [
        Residual(
            [
                nn.Sequential(
                    nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
                )
                for _ in range(depth)
            ],
            nn.LayerNorm(width),
        )
        for _ in range(2 if net == "pieces" else 1)
    ]
    last = nn.Linear(width, classes)
    if net == "pieces":
        return Pieces(halves[0], nn.Sequential(halves[1], last))
    return nn.Sequential(halves[0], last)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)
