"""Modules that run more than once: experts, two inputs through one net, loops over children."""

import random
from typing import cast

import torch
from torch import nn

from benchmarks.recorder.families.case import Case, numbers, robust, squared

_WIDTH = 12


def _perceptron(rng: random.Random) -> nn.Module:
    act = rng.choice((nn.ReLU, nn.GELU, nn.SiLU))
    return nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), act(), nn.Linear(2 * _WIDTH, _WIDTH))


class Expert(nn.Module):
    """A perceptron with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(_WIDTH, 16), nn.Linear(_WIDTH, 16)
        self.down = nn.Linear(16, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.down(nn.functional.silu(self.gate(x)) * self.up(x)))


class Experts(nn.Module):
    """A router and experts: all of them weighted, or each for the rows that chose it."""

    def __init__(self, rng: random.Random, sparse: bool) -> None:
        super().__init__()
        self.sparse, count = sparse, rng.randint(2, 5)
        own = rng.random() < 0.5
        self.router = nn.Linear(_WIDTH, count, bias=False)
        self.experts = nn.ModuleList(Expert() if own else _perceptron(rng) for _ in range(count))
        self.always = Expert() if rng.random() < 0.4 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.router(x), -1)
        if self.sparse:
            best, chosen = weights.topk(2, -1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows, which = torch.where(chosen == number)
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, which].unsqueeze(-1))
        else:
            made = torch.stack([expert(x) for expert in self.experts], 1)
            out = (made * weights.unsqueeze(-1)).sum(1)
        return out + self.always(x) if self.always is not None else out


class Block(nn.Module):
    """Something between a norm and a sum."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(_WIDTH), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, x + self.inner(self.norm(x)))


def experts(rng: random.Random) -> Case:
    """Blocks of experts."""
    sparse = rng.random() < 0.5
    layers = [Block(Experts(rng, sparse)) for _ in range(rng.randint(1, 3))]
    model = nn.Sequential(nn.Linear(4, _WIDTH), *layers, nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 2))
    return numbers(model, (torch.randn(16, 4),), rng, sparse=sparse)


class Siamese(nn.Module):
    """Two inputs through one trunk, compared."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.images, self.compare = rng.random() < 0.5, rng.choice(("gap", "cosine", "layer"))
        if self.images:
            layers: list[nn.Module] = []
            for before, after in ((1, 4), (4, 8))[: rng.randint(1, 2)]:
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
                layers += [nn.MaxPool2d(2)] if rng.random() < 0.5 else []
            made = next(one.num_features for one in reversed(layers) if isinstance(one, nn.BatchNorm2d))
            self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        else:
            blocks = [Block(_perceptron(rng)) for _ in range(rng.randint(1, 3))]
            self.trunk, made = nn.Sequential(nn.Linear(6, _WIDTH), *blocks), _WIDTH
        self.out = nn.Linear(made, 8)
        if self.compare == "layer":
            self.head = nn.Linear(8, 1)

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        """One side."""
        return cast(torch.Tensor, self.out(self.trunk(x)))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        a, b = self.seen(one), self.seen(other)
        if self.compare == "layer":
            return cast(torch.Tensor, self.head((a - b).abs()))
        if self.compare == "cosine":
            return nn.functional.cosine_similarity(a, b).unsqueeze(1)
        return (a - b).pow(2).sum(1, keepdim=True)


def siamese(rng: random.Random) -> Case:
    """Two inputs through one net."""
    model = Siamese(rng)
    shape = (4, 1, 8, 8) if model.images else (4, 6)
    loss = rng.choice((squared, robust))
    notes: dict[str, object] = {"images": model.images, "compare": model.compare}
    return Case(model, (torch.randn(shape), torch.randn(shape)), torch.rand(4, 1), loss, notes)


class Loops(nn.Module):
    """Children that run in loops: one again and again, lists forward and back, cells over time."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.how, depth = rng.choice(("again", "back", "cells", "pairs", "grown")), rng.randint(2, 4)
        self.times, self.functional = rng.randint(2, 5), rng.random() < 0.5
        self.enter = nn.Linear(6, _WIDTH)
        if self.how == "cells":
            self.cell: nn.Module = rng.choice((nn.GRUCell, nn.RNNCell))(_WIDTH, _WIDTH)
        elif self.how == "again":
            self.block = Block(_perceptron(rng))
        else:
            self.down = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(depth))
            self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(depth))
            self.up = nn.ModuleList(nn.Linear(2 * _WIDTH, _WIDTH) for _ in range(depth))
        self.act = nn.Tanh()
        self.leave = nn.Linear(_WIDTH, 2)

    def shaped(self, x: torch.Tensor) -> torch.Tensor:
        """The function between layers."""
        return torch.relu(x) if self.functional else cast(torch.Tensor, self.act(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        if self.how == "cells":
            state = torch.zeros_like(x)
            for _ in range(self.times):
                state = self.cell(x, state)
            return cast(torch.Tensor, self.leave(state))
        if self.how == "again":
            for _ in range(self.times):
                x = self.shaped(self.block(x))
            return cast(torch.Tensor, self.leave(x))
        kept = []
        for layer, norm in zip(self.down, self.norms, strict=True):
            x = self.shaped(norm(layer(x)))
            kept.append(x)
        if self.how == "back":
            for layer, before in zip(reversed(self.up), reversed(kept), strict=True):
                x = self.shaped(layer(torch.cat([x, before], 1)))
        elif self.how == "pairs":
            for layer, before in zip(self.up, reversed(kept), strict=True):
                x = x + self.shaped(layer(torch.cat([x, before], 1)))
        else:
            for layer, before in zip(self.up, kept, strict=True):
                x = layer(torch.stack([x, before], -1).flatten(1)) * 0.5 + before
        return cast(torch.Tensor, self.leave(x))


def loops(rng: random.Random) -> Case:
    """Loops over children."""
    model = Loops(rng)
    return numbers(model, (torch.randn(5, 6),), rng, how=model.how, functional=model.functional)
