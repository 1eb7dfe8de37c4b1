"""Message passing: gather and scatter around layers, with known and unknown kinds of convolutions."""

import random
from typing import cast

import torch
from torch import nn

from benchmarks.recorder.families.case import Case, numbers

_WIDTH, _NODES, _EDGES = 12, 20, 50


def _summed(messages: torch.Tensor, to: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like).index_add(0, to, messages)


class BareConv(nn.Module):
    """A convolution without children: a matrix of its own between gather and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_WIDTH, _WIDTH) / _WIDTH**0.5)
        self.bias = nn.Parameter(torch.zeros(_WIDTH))

    def forward(self, x: torch.Tensor, at: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        made = x @ self.weight
        return _summed(made.index_select(0, at[0]) * edge, at[1], made) + self.bias


class LinearConv(nn.Module):
    """A layer, messages with degrees, and a root of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.edges = nn.Linear(_WIDTH, _WIDTH), nn.Linear(1, _WIDTH)
        self.root = nn.Embedding(1, _WIDTH)

    def forward(self, x: torch.Tensor, at: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        made = self.lin(x)
        weights = self.edges(edge)
        degree = torch.ones(len(x)).index_add(0, at[0], torch.ones(at.shape[1]))
        norm = degree.pow(-0.5)
        norm = norm[at[0]] * norm[at[1]]
        sent = norm.view(-1, 1) * torch.relu(made[at[0]] + weights)
        return _summed(sent, at[1], made) + torch.relu(made + self.root.weight) / degree.view(-1, 1)


class SumConv(nn.Module):
    """Sums of neighbours before a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH),
            nn.BatchNorm1d(2 * _WIDTH),
            nn.ReLU(),
            nn.Linear(2 * _WIDTH, _WIDTH),
        )
        self.eps = nn.Parameter(torch.zeros(1))
        self.bonds = nn.Linear(1, _WIDTH)

    def forward(self, x: torch.Tensor, at: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        sent = torch.relu(x[at[0]] + self.bonds(edge))
        return cast(torch.Tensor, self.mlp((1 + self.eps) * x + _summed(sent, at[1], x)))


class GatedConv(nn.Module):
    """Attention over the edges of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.key = nn.Linear(_WIDTH, _WIDTH), nn.Linear(2 * _WIDTH, 1)

    def forward(self, x: torch.Tensor, at: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        value = self.value(x)
        pair = torch.cat([value[at[0]], value[at[1]]], 1)
        score = nn.functional.leaky_relu(self.key(pair)).exp() * edge.abs()
        total = _summed(score, at[1], value[:, :1])
        return _summed(value[at[0]] * (score / (total[at[1]] + 1e-6)), at[1], value)


class Graph(nn.Module):
    """Layers of messages with norms between them, and what a parent does before, between and after."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        kinds = (BareConv, LinearConv, SumConv, GatedConv)
        kind, depth = rng.choice(kinds), rng.randint(2, 4)
        self.atoms = nn.ModuleList(nn.Embedding(9, _WIDTH) for _ in range(rng.randint(1, 4)))
        self.before = rng.choice(("", "scale", "virtual"))
        self.after = rng.choice(("", "relu", "residual", "both"))
        self.joined, self.mixed = rng.random() < 0.3, rng.random() < 0.2
        self.convs = nn.ModuleList((rng.choice(kinds) if self.mixed else kind)() for _ in range(depth))
        self.norms = nn.ModuleList(
            (nn.BatchNorm1d if rng.random() < 0.6 else nn.LayerNorm)(_WIDTH) for _ in range(depth)
        )
        self.dropout = rng.choice((0.0, 0.2))
        if self.before == "virtual":
            self.virtual = nn.Embedding(1, _WIDTH)
            self.told = nn.ModuleList(
                nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU())
                for _ in range(depth - 1)
            )
        self.head = nn.Linear(_WIDTH * (depth if self.joined else 1), 3)

    def forward(self, atoms: torch.Tensor, at: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        x = sum(table(atoms[:, k]) for k, table in enumerate(self.atoms))
        assert isinstance(x, torch.Tensor)
        owner = torch.zeros(len(x), dtype=torch.long)
        told = self.virtual(owner[:2]) if self.before == "virtual" else None
        seen = []
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            start = x
            if told is not None:
                x = x + told[owner]
            elif self.before == "scale":
                x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-3)
            held = x
            x = norm(conv(x, at, edge))
            if layer < len(self.convs) - 1 and self.after in ("relu", "both"):
                x = torch.relu(x)
            if self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            if self.after in ("residual", "both"):
                x = x + start
            if told is not None and layer < len(self.convs) - 1:
                told = self.told[layer](_summed(held, owner, told) + told)
            seen.append(x)
        pooled = torch.cat(seen, 1) if self.joined else x
        return cast(torch.Tensor, self.head(pooled.mean(0, keepdim=True)))


def graph(rng: random.Random) -> Case:
    """A net over a random graph."""
    model = Graph(rng)
    inputs = (
        torch.randint(9, (_NODES, len(model.atoms))),
        torch.randint(_NODES, (2, _EDGES)),
        torch.randn(_EDGES, 1),
    )
    kinds = sorted({type(conv).__name__ for conv in model.convs})
    return numbers(model, inputs, rng, kinds=kinds, before=model.before, after=model.after)
