"""Transformer layers whose tensors, and whose rows, are divided among the ranks of a group.

Idea        Heads and the inner rows of the MLP are divided among ``t`` ranks. Between the products, what is
            row by row (norms, dropouts, sums) runs on all rows on every rank (``mode="tensor"``) or on
            s/t rows of the sequence each (``mode="sequence"``), with a gather before and a scatter behind
            each pair of products. Rows stand first, ``[s, b, h]``, so a gather is one piece of memory.
Source      Shoeybi et al., Megatron-LM (2019), for tensors; Korthikanti et al. (2022), for the sequence
Guarantee   Equal weights give the result and the gradients of ``mode="serial"`` but for the order of sums.
Complexity  Per layer and direction, two pairs of collectives of ``s b h`` values.
Gaps        Dense attention with a causal mask; no embedding and no head.

    [s/t] norm -> gather -> qkv -> attention -> out -> scatter -> dropout -> + -> norm -> gather -> up ...
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tightrope.core import TightropeError
from tightrope.core.units import shown
from tightrope_ranks.sequence.collectives import (
    WORLD,
    enter,
    gather,
    gathered_linear,
    scatter,
    total,
)
from tightrope_ranks.sequence.dropout import drop

Mode = Literal["serial", "tensor", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How layers are divided.

    Attributes:
        mode: what is divided, see the module text.
        ranks: of the group.
        group: its name, see `tightrope_ranks.sequence.name_group`.
        regather: in ``sequence`` mode, save this rank's rows of what was gathered and gather again in the
            backward. Leave it off where a planner decides that: it sees one gather, and may run it again.
        attention: ``plain`` computes scores, softmax and dropout one by one; ``again`` does, and runs them
            again in the backward; ``fused`` calls torch's own kernel.
    """

    mode: Mode = "serial"
    ranks: int = 1
    group: str = WORLD
    regather: bool = False
    attention: Literal["plain", "again", "fused"] = "plain"

    def __post_init__(self) -> None:
        if self.mode not in ("serial", "tensor", "sequence"):
            raise TightropeError(f"mode={shown(self.mode)}: give serial, tensor or sequence.")
        if self.ranks < 1 or (self.mode == "serial" and self.ranks != 1):
            raise TightropeError(
                f"ranks={self.ranks} with mode={self.mode!r}: give 1 in serial mode, else at least 1."
            )

    @property
    def rows(self) -> int:
        """Number of ranks among which the rows of the sequence are divided."""
        return self.ranks if self.mode == "sequence" else 1


class DividedLayer(nn.Module):
    """One transformer layer, or one rank's part of it.

    Args:
        hidden: size ``h``.
        heads: ``a``; ``ranks`` divides it.
        sequence: length ``s`` of the whole sequence.
        division: how it is divided.
        dropout: probability, in attention and behind both products.
        dtype: of parameters.
        device: likewise.

    Raises:
        TightropeError: sizes that do not divide.
    """

    mask: torch.Tensor

    def __init__(
        self,
        hidden: int,
        heads: int,
        sequence: int,
        division: Division,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        if hidden % heads or heads % division.ranks or sequence % division.rows:
            raise TightropeError(
                f"hidden={hidden}, heads={heads}, sequence={sequence} on {division.ranks} ranks: heads must "
                "divide hidden, and ranks must divide heads and, in sequence mode, sequence."
            )
        like: dict[str, Any] = {"dtype": dtype, "device": device}
        part = hidden // division.ranks
        self.division, self.heads, self.dropout = division, heads // division.ranks, dropout
        self.norm_1 = nn.LayerNorm(hidden, **like)
        self.qkv = nn.Linear(hidden, 3 * part, **like)
        self.out = nn.Linear(part, hidden, **like)
        self.norm_2 = nn.LayerNorm(hidden, **like)
        self.up = nn.Linear(hidden, 4 * part, **like)
        self.down = nn.Linear(4 * part, hidden, **like)
        if division.attention != "fused":
            hidden_from = torch.ones(sequence, sequence, dtype=torch.bool, device=device).triu(1)
            mask = torch.zeros(sequence, sequence, **like).masked_fill(hidden_from, -1e4)
            self.register_buffer("mask", mask, persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Map this rank's rows ``[s or s/t, b, h]`` to the same rows behind the layer."""
        rows = rows + self._leave(self._attend(self._enter(self.norm_1(rows), self.qkv)), self.out)
        inner = F.gelu(self._enter(self.norm_2(rows), self.up))
        return rows + self._leave(inner, self.down)

    def _enter(self, rows: torch.Tensor, product: nn.Linear) -> torch.Tensor:
        """Multiply by a weight whose results are divided."""
        division = self.division
        if division.mode == "serial":
            return F.linear(rows, product.weight, product.bias)
        if division.mode == "tensor":
            return F.linear(enter(rows, division.ranks, division.group), product.weight, product.bias)
        if division.regather:
            return gathered_linear(rows, product.weight, product.bias, division.ranks, division.group)
        return F.linear(gather(rows, division.ranks, division.group), product.weight, product.bias)

    def _leave(self, inner: torch.Tensor, product: nn.Linear) -> torch.Tensor:
        """Multiply by a weight whose inputs are divided, add the terms up, and drop."""
        division = self.division
        term = F.linear(inner, product.weight)
        if division.mode == "tensor":
            term = total(term, division.ranks, division.group)
        elif division.mode == "sequence":
            term = scatter(term, division.ranks, division.group)
        return _drop(term + product.bias, self.dropout)

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        sequence, batch, width = qkv.shape
        size = width // (3 * self.heads)
        split = qkv.view(sequence, batch * self.heads, 3 * size)
        if self.division.attention == "fused":
            found = self._fused(split, batch)
        elif self.division.attention == "again":
            found = _Again.apply(self, split)  # type: ignore[no-untyped-call]
        else:
            found = self.core(split)
        return found.reshape(sequence, batch, self.heads * size)

    def core(self, split: torch.Tensor) -> torch.Tensor:
        """Attend, head by head: ``[s, b a, 3 d]`` to ``[s, b a, d]``."""
        query, key, value = split.chunk(3, dim=-1)
        scores = torch.bmm(query.transpose(0, 1), key.permute(1, 2, 0))
        scaled = torch.add(self.mask, scores, alpha=1 / math.sqrt(query.shape[-1]))
        shares = _drop(torch.softmax(scaled, -1), self.dropout)
        return torch.bmm(shares, value.transpose(0, 1)).transpose(0, 1)

    def _fused(self, split: torch.Tensor, batch: int) -> torch.Tensor:
        sequence, _, width = split.shape
        heads = split.view(sequence, batch, self.heads, width).permute(1, 2, 0, 3)
        query, key, value = heads.chunk(3, dim=-1)
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        return found.permute(2, 0, 1, 3).reshape(sequence, batch * self.heads, -1)


class _Again(torch.autograd.Function):
    """The core of attention, run again in the backward from the state of the generator that it began with."""

    @staticmethod
    def forward(ctx: Any, layer: DividedLayer, split: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state() if layer.dropout > 0 else None
        ctx.layer, ctx.drawn = layer, state is not None
        ctx.save_for_backward(split, *([] if state is None else [state]))
        return layer.core(split)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        split, *state = ctx.saved_tensors
        again = split.detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[], enabled=ctx.drawn):
            if ctx.drawn:
                torch.set_rng_state(state[0])
            found = ctx.layer.core(again)
        return None, *torch.autograd.grad(found, again, grads[0])


def _drop(value: torch.Tensor, p: float) -> torch.Tensor:
    return drop(value, p) if p > 0 else value


class Stack(nn.Module):
    """Layers one behind the other.

    Args:
        num_layers: of them.
        hidden: size ``h``.
        heads: ``a``.
        sequence: length ``s``.
        division: how they are divided.
        dropout: probability.
        again: run every layer again in the backward: full recomputation, as peers do it.
        dtype: of parameters.
        device: likewise.

    Example:
        >>> model = Stack(2, 32, 4, 8, Division())
        >>> model(torch.ones(8, 1, 32)).shape
        torch.Size([8, 1, 32])
    """

    def __init__(
        self,
        num_layers: int,
        hidden: int,
        heads: int,
        sequence: int,
        division: Division,
        *,
        dropout: float = 0.0,
        again: bool = False,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.division, self.again = division, again
        self.layers = nn.ModuleList(
            DividedLayer(hidden, heads, sequence, division, dropout=dropout, dtype=dtype, device=device)
            for _ in range(num_layers)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Run the layers."""
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=True) if self.again else layer(rows)
        return rows
