"""A mixture of experts, written down twice: a product per token and expert, and products of blocks."""

import torch
from torch import Tensor


def dense(x: Tensor, chosen: Tensor, gates: Tensor, up: Tensor, down: Tensor, activation) -> Tensor:  # type: ignore[no-untyped-def]
    """Sum over the choices of every token, one at a time; ``E`` = no expert."""
    rows = []
    for token, choices, weights in zip(x, chosen.tolist(), gates, strict=True):
        found = torch.zeros_like(token)
        for expert, weight in zip(choices, weights, strict=True):
            if expert < len(up):
                found = found + weight * (down[expert] @ activation((up[expert] @ token)[None])[0])
        rows.append(found)
    return torch.stack(rows)


class Blocks:
    """A block-sparse matrix of rows by (experts x hidden): its topology, by rows and by columns.

    Rows of an expert are padded to blocks. Block (i, j) is there where the rows of block i go to the expert
    that columns of block j belong to.
    """

    def __init__(self, chosen: Tensor, num_experts: int, hidden: int, size: int) -> None:
        flat = chosen.t().reshape(-1)
        self.order = torch.sort(flat, stable=True).indices.tolist()
        self.size, self.per_expert = size, -(-hidden // size)
        self.rows: list[int | None] = []  # row of `flat` in each padded row
        self.expert_of_block: list[int] = []
        at = 0
        for expert in range(num_experts):
            count = int((flat == expert).sum())
            padded = -(-count // size) * size
            self.rows += [*self.order[at : at + count], *[None] * (padded - count)]
            self.expert_of_block += [expert] * (padded // size)
            at += count
        self.blocks = [
            (i, expert * self.per_expert + j)
            for i, expert in enumerate(self.expert_of_block)
            for j in range(self.per_expert)
        ]
        by_column = sorted(range(len(self.blocks)), key=lambda n: self.blocks[n][::-1])
        self.transposed = by_column  # a second index: no value moves

    def layer(self, x: Tensor, gates: Tensor, up: Tensor, down: Tensor, activation) -> Tensor:  # type: ignore[no-untyped-def]
        """Sparse = dense x dense, the activation, then dense = sparse x dense, in the order of columns."""
        size, num_tokens = self.size, len(x)
        given = torch.stack(
            [x[row % num_tokens] if row is not None else torch.zeros_like(x[0]) for row in self.rows]
        )
        wide = up.shape[1] // self.per_expert
        values = {}
        for i, column in self.blocks:
            expert, j = divmod(column, self.per_expert)
            values[i, column] = given[i * size : (i + 1) * size] @ up[expert, j * wide : (j + 1) * wide].t()
        made = torch.zeros(len(self.rows), x.shape[1])
        for number in self.transposed:
            i, column = self.blocks[number]
            expert, j = divmod(column, self.per_expert)
            part = activation(values[i, column]) @ down[expert, :, j * wide : (j + 1) * wide].t()
            made[i * size : (i + 1) * size] += part
        out, flat = torch.zeros_like(x), gates.t().reshape(-1)
        for place, row in enumerate(self.rows):
            if row is not None:
                out[row % num_tokens] += flat[row] * made[place]
        return out
