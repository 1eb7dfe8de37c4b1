"""Layers of graphs whose sums over neighbours take rows of this rank and of others.

Source      Kipf & Welling, ICLR 2017 (GCN); Hamilton et al., NeurIPS 2017 (GraphSAGE); Velickovic et al.,
            ICLR 2018 (GAT).
Guarantee   A layer gives for a block of nodes what it gives for the whole graph. Only attention keeps the
            rows until the backward.
Gaps        Attention takes memory for each edge and head.
"""

import warnings
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from tightrope_ranks.values.graphs import BlockEdges


class EdgeBlock:
    """The edges into some nodes as layers read them; ``own`` are the rows of its ``num`` nodes."""

    def __init__(self, edges: BlockEdges) -> None:
        self.source, self.target = torch.from_numpy(edges.source), torch.from_numpy(edges.target)
        self.num, self.own = edges.num, slice(edges.first, edges.first + edges.num)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse", UserWarning)
            ends, weight = torch.stack([self.target, self.source]), torch.from_numpy(edges.weight)
            into = torch.sparse_coo_tensor(ends, weight, (edges.num, edges.rows))
            self._into, self._out_of = into.to_sparse_csr(), into.t().to_sparse_csr()

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Add up the rows of each node's neighbours, times the weights: (rows, columns) -> (num, columns)."""
        return _NeighbourSums.apply(rows, self._into, self._out_of)  # type: ignore[no-any-return, no-untyped-call]


class _NeighbourSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor) -> torch.Tensor:
        ctx.out_of = out_of
        return into @ rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (ctx.out_of @ grad) if ctx.needs_input_grad[0] else None, None, None


class _GraphConvolution(nn.Module):
    """GCN: weighted sums of neighbours' rows, times a matrix."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, out)

    def forward(self, rows: torch.Tensor, block: EdgeBlock) -> torch.Tensor:
        return self.linear(block.sums(rows))  # type: ignore[no-any-return]


class _GraphSage(nn.Module):
    """GraphSAGE: the mean of neighbours' rows and the own row, each times a matrix."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(columns, out), nn.Linear(columns, out, bias=False)

    def forward(self, rows: torch.Tensor, block: EdgeBlock) -> torch.Tensor:
        own = rows[block.own].clone()  # a part of the rows would keep all of them for the backward
        return self.own(own) + self.others(block.sums(rows))  # type: ignore[no-any-return]


class _GraphAttention(nn.Module):
    """GAT: sums of neighbours' rows times a matrix, weighted by attention in four heads, or one."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.heads = 1 if out % 4 else 4
        self.linear = nn.Linear(columns, out, bias=False)
        self.bias = nn.Parameter(torch.zeros(out))
        empty = torch.empty(2, self.heads, out // self.heads)
        self.source, self.target = (nn.Parameter(nn.init.xavier_uniform_(one)) for one in empty)

    def forward(self, rows: torch.Tensor, block: EdgeBlock) -> torch.Tensor:
        values = self.linear(rows).view(len(rows), self.heads, -1)
        scores = (values * self.source).sum(-1)[block.source]
        scores = scores + (values[block.own] * self.target).sum(-1)[block.target]
        scores = nn.functional.leaky_relu(scores, 0.2)
        place = block.target.unsqueeze(1).expand_as(scores)
        top = scores.new_full((block.num, self.heads), -torch.inf)
        top = top.scatter_reduce(0, place, scores.detach(), "amax")
        powers = (scores - top[block.target]).exp()
        total = powers.new_zeros(block.num, self.heads).index_add(0, block.target, powers)
        shares = (powers / total[block.target]).unsqueeze(-1) * values[block.source]
        sums = values.new_zeros(block.num, *values.shape[1:]).index_add(0, block.target, shares)
        return torch.flatten(sums, 1) + self.bias


MODELS = {"gcn": _GraphConvolution, "sage": _GraphSage, "gat": _GraphAttention}
READS_HALO = ("gat",)
"""Models whose backward reads the rows, and not their sums alone."""


def build(model: str, columns: tuple[int, ...], seed: int) -> nn.ModuleList:
    """Make the layers between these columns, with random parameters that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.ModuleList(MODELS[model](a, b) for a, b in pairwise(columns))
