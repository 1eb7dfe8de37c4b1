"""Recommenders: tables of embeddings, perceptrons and products of all pairs, with and without ranges."""

import random
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from benchmarks.recorder.families.case import Case, Tensors, robust, squared

_ROWS = 40


class Ranges:
    """Puts a range of the profiler around calls; older versions of torch leave an op behind for each."""

    def __init__(self, leave_ops: bool) -> None:
        self.leave_ops = leave_ops
        self._open: list[Any] = []

    def around(self, module: nn.Module, name: str) -> None:
        """Mark every call of a module."""
        module.register_forward_pre_hook(lambda *_: self._enter(name))
        module.register_forward_hook(lambda *_: self._leave())

    def _enter(self, name: str) -> None:
        if self.leave_ops:
            torch.zeros(1)
        self._open.append(record_function(name))
        self._open[-1].__enter__()

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)


def _perceptron(sizes: list[int], last: nn.Module, ranges: Ranges | None, name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers[-1] = last
    if ranges is not None:
        for number, layer in enumerate(layers):
            ranges.around(layer, f"{name}_{number}")
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    """A perceptron over numbers, tables over categories, and a perceptron over their products."""

    def __init__(self, rng: random.Random, *, bags: bool, ranges: Ranges | None) -> None:
        super().__init__()
        self.bags, width = bags, 8
        self.pairs, count = rng.random() < 0.7, rng.randint(2, 6)
        tables = [
            nn.EmbeddingBag(_ROWS, width, mode=rng.choice(("sum", "mean")))
            if bags else nn.Embedding(_ROWS, width)
            for _ in range(count)
        ]  # fmt: skip
        first = nn.ModuleList(tables)
        bottom = _perceptron([5, *(16 for _ in range(rng.randint(1, 3))), width], nn.ReLU(), ranges, "bottom")
        if rng.random() < 0.5:
            self.tables, self.bottom = first, bottom
        else:
            self.bottom, self.tables = bottom, first
        self.from_tables = rng.random() < 0.3
        made = width + (count + 1) * count // 2 if self.pairs else width * (count + 1)
        sizes = [made, *(16 for _ in range(rng.randint(1, 3))), 1]
        self.top = _perceptron(sizes, nn.Sigmoid(), ranges, "top")
        at = torch.tril_indices(count + 1, count + 1, -1)
        self.rows, self.columns = at[0], at[1]
        if ranges is not None:
            for number, table in enumerate(tables):
                ranges.around(table, f"table_{number}")

    def found(self, sparse: torch.Tensor, starts: torch.Tensor) -> list[torch.Tensor]:
        """Look the categories up."""
        if self.bags:
            return [table(sparse[k].flatten(), starts) for k, table in enumerate(self.tables)]
        return [table(sparse[k]).sum(1) for k, table in enumerate(self.tables)]

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        if self.from_tables:
            rows = self.found(sparse, starts)
            bottom = self.bottom(dense)
        else:
            bottom = self.bottom(dense)
            rows = self.found(sparse, starts)
        if self.pairs:
            stacked = torch.cat([bottom, *rows], 1).view(len(dense), -1, bottom.shape[1])
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            joined = torch.cat([bottom, products[:, self.rows, self.columns]], 1)
        else:
            joined = torch.cat([bottom, *rows], 1)
        return torch.clamp(self.top(joined), 1e-4, 1 - 1e-4)


def _entropy(out: Any, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy(out, target)


def _inputs(model: Recommender) -> Tensors:
    count = len(model.tables)
    return torch.randn(12, 5), torch.randint(_ROWS, (count, 12, 3)), torch.arange(0, 36, 3)


def _recommender(rng: random.Random, ranges: Ranges | None) -> Case:
    bags = rng.random() < 0.5
    model = Recommender(rng, bags=bags, ranges=ranges)
    loss = rng.choice((_entropy, squared, robust))
    notes: dict[str, object] = {"bags": bags, "pairs": model.pairs, "tables first": model.from_tables}
    return Case(model, _inputs(model), torch.rand(12, 1).round(), loss, notes)


def recommender(rng: random.Random) -> Case:
    """Without any range."""
    return _recommender(rng, None)


def ranged_recommender(rng: random.Random) -> Case:
    """With a range around every layer, inside `nn.Sequential` too."""
    return _recommender(rng, Ranges(leave_ops=rng.random() < 0.6))
