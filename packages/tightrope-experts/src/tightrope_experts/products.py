"""Products of rows with the weights of the experts that they go to, in bytes that no routing changes.

Idea        A row is one pair of a token and an expert that it chose. Rows are sorted by expert, choice and
            token. Every expert multiplies its own rows, at most ``rows`` at a time, in one workspace of
            fixed size. So a step in which all tokens choose one expert takes the bytes of any other step.
Guarantee   No row is dropped. Bytes made inside an op depend on shapes alone. For equal ``rows`` a result
            depends on nothing but the inputs, to the bit.
Complexity  Two products of ``T * k`` rows each way, and one sort of ``T * k`` numbers per op.
Gaps        Every expert makes a product of its own: many experts with few rows multiply small matrices.
            Weights of an expert are read once a round.
Source      dropless products of MegaBlocks (MLSys 2023); gradients of gates without results, as in SonicMoE

    chosen (T, k)  --sort-->  rows of expert 0 | rows of expert 1 | ... | rows of no expert
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tightrope.core import TightropeError


class _Routing(NamedTuple):
    """Rows sorted by expert.

    Attributes:
        rows: (T * k): a row's place in ``chosen.T``.
        tokens: (T * k): its token.
        counts: rows of each expert.
    """

    rows: Tensor
    tokens: Tensor
    counts: list[int]

    def clear(self, weights: Tensor) -> Tensor:
        """Set the weights of experts without rows to 0, and return all."""
        for expert, count in enumerate(self.counts):
            if not count:
                weights[expert].zero_()
        return weights

    def rounds(self, most: int) -> Iterator[tuple[int, int, int, bool]]:
        """Yield expert, first row and number of rows of every round, and whether it is the expert's first."""
        start = 0
        for expert, count in enumerate(self.counts):
            for at in range(start, start + count, most):
                yield expert, at, min(most, start + count - at), at == start
            start += count


def _routed(chosen: Tensor, num_experts: int) -> _Routing:
    """Sort rows by expert; ``num_experts`` stands for no expert, and comes last.

    Raises:
        TightropeError: there is no such expert.
    """
    flat = chosen.t().reshape(-1)
    if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) <= num_experts:
        raise TightropeError(
            f"A token chose expert {int(flat.min())} or {int(flat.max())}. Experts are 0 to "
            f"{num_experts - 1}; {num_experts} stands for none."
        )
    rows = torch.sort(flat, stable=True).indices
    counts = torch.bincount(flat, minlength=num_experts + 1)[:num_experts].tolist()
    return _Routing(rows, rows % max(len(chosen), 1), counts)


def _added(total: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Write a product, or add it to those of earlier rounds."""
    if first:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)


def _width(weights: Tensor, transposed: bool) -> int:
    """Return the numbers of a row behind the product."""
    return weights.shape[2 if transposed else 1]


def _weight(weights: Tensor, expert: int, transposed: bool) -> Tensor:
    """Return a weight as (inputs, outputs)."""
    return weights[expert] if transposed else weights[expert].t()


@torch.library.custom_op("tightrope_experts::spread", mutates_args=())
def spread(
    x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int, transposed: bool
) -> Tensor:
    """Multiply every token with the weights of the experts that it chose.

    Args:
        x: (T, M).
        chosen: (T, k), int64; ``E`` = no expert.
        weights: (E, W, M), or (E, M, W) where ``transposed``.
        bias: (E, W), or None.
        rows: multiplied at once, at most.
        transposed: see there.

    Returns:
        (T * k, W), sorted by expert; rows of no expert are 0.

    Raises:
        TightropeError: a token chose an expert that there is not.
    """
    routing = _routed(chosen, len(weights))
    made = x.new_empty(chosen.numel(), _width(weights, transposed))
    space = x.new_empty(min(rows, chosen.numel()), x.shape[1])
    end = 0
    for expert, at, count, _ in routing.rounds(rows):
        end = at + count
        given = torch.index_select(x, 0, routing.tokens[at:end], out=space[:count])
        torch.mm(given, _weight(weights, expert, transposed), out=made[at:end])
        if bias is not None:
            made[at:end].add_(bias[expert])
    made[end:].zero_()
    return made


@spread.register_fake
def _(x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int, transposed: bool) -> Tensor:
    return x.new_empty(chosen.numel(), _width(weights, transposed))


@torch.library.custom_op("tightrope_experts::spread_backward", mutates_args=())
def spread_backward(
    grad: Tensor, x: Tensor, chosen: Tensor, weights: Tensor, rows: int, transposed: bool, biased: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the tokens, the weights and the bias of `spread` (empty where it has none)."""
    routing = _routed(chosen, len(weights))
    of_x, of_weights = torch.zeros_like(x), routing.clear(torch.empty_like(weights))
    of_bias = weights.new_zeros((len(weights), grad.shape[1]) if biased else (0,))
    space = x.new_empty(min(rows, chosen.numel()), x.shape[1])
    ones = grad.new_ones(min(rows, chosen.numel()))
    for expert, at, count, first in routing.rounds(rows):
        tokens, came = routing.tokens[at : at + count], grad[at : at + count]
        given = torch.index_select(x, 0, tokens, out=space[:count])
        _added(_weight(of_weights, expert, transposed), given.t(), came, first=first)
        if biased:
            of_bias[expert].addmv_(came.t(), ones[:count])
        back = torch.mm(came, _weight(weights, expert, transposed).t(), out=space[:count])
        of_x.index_add_(0, tokens, back)
    return of_x, of_weights, of_bias


@spread_backward.register_fake
def _(
    grad: Tensor, x: Tensor, chosen: Tensor, weights: Tensor, rows: int, transposed: bool, biased: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_bias = weights.new_empty((len(weights), grad.shape[1]) if biased else (0,))
    return torch.empty_like(x), torch.empty_like(weights), of_bias


@torch.library.custom_op("tightrope_experts::gather", mutates_args=())
def gather(
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
    transposed: bool,
) -> Tensor:
    """Multiply every row with its expert's weights, and sum the rows of each token, weighted by gates.

    Args:
        hidden: (T * k, H), sorted by expert as `spread` returns rows.
        chosen: (T, k), int64; ``E`` = no expert.
        gates: (T, k).
        weights: (E, M, H), or (E, H, M) where ``transposed``.
        bias: (E, M), or None.
        rows: multiplied at once, at most.
        transposed: see there.

    Returns:
        (T, M).

    Raises:
        TightropeError: a gate is not a number.
    """
    if not bool(torch.isfinite(gates).all()):
        raise TightropeError("A gate is NaN or infinite. Look at the router's inputs and weights.")
    routing = _routed(chosen, len(weights))
    width = _width(weights, transposed)
    made = hidden.new_zeros(len(chosen), width)
    space = hidden.new_empty(min(rows, chosen.numel()), width)
    sorted_gates = gates.t().reshape(-1)[routing.rows].to(hidden.dtype).unsqueeze(1)
    for expert, at, count, _ in routing.rounds(rows):
        found = space[:count]
        torch.mm(hidden[at : at + count], _weight(weights, expert, transposed), out=found)
        if bias is not None:
            found.add_(bias[expert])
        found.mul_(sorted_gates[at : at + count])
        made.index_add_(0, routing.tokens[at : at + count], found)
    return made


@gather.register_fake
def _(
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
    transposed: bool,
) -> Tensor:
    return hidden.new_empty(len(chosen), _width(weights, transposed))


@torch.library.custom_op("tightrope_experts::gather_backward", mutates_args=())
def gather_backward(
    grad: Tensor,
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
    transposed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of rows, gates, weights and bias of `gather` (empty where it has none).

    A gate's gradient is the product of its row with what comes back to the row: results of experts are not
    needed.
    """
    routing = _routed(chosen, len(weights))
    of_hidden, of_weights = torch.zeros_like(hidden), routing.clear(torch.empty_like(weights))
    of_bias = torch.zeros_like(bias) if bias is not None else weights.new_empty(0)
    space = grad.new_empty(min(rows, chosen.numel()), grad.shape[1])
    product = hidden.new_empty(min(rows, chosen.numel()), hidden.shape[1])
    dots, ones = hidden.new_zeros(chosen.numel()), grad.new_ones(min(rows, chosen.numel()))
    sorted_gates = gates.t().reshape(-1)[routing.rows].to(hidden.dtype).unsqueeze(1)
    for expert, at, count, first in routing.rounds(rows):
        here, weight = slice(at, at + count), _weight(weights, expert, transposed)
        came = torch.index_select(grad, 0, routing.tokens[here], out=space[:count])
        back = torch.mm(came, weight.t(), out=of_hidden[here])
        torch.sum(torch.mul(back, hidden[here], out=product[:count]), 1, out=dots[here])
        if bias is not None:
            dots[here].addmv_(came, bias[expert])
        came.mul_(sorted_gates[here])
        back.mul_(sorted_gates[here])
        _added(_weight(of_weights, expert, transposed), hidden[here].t(), came, first=first)
        if bias is not None:
            of_bias[expert].addmv_(came.t(), ones[:count])
    of_gates = torch.empty_like(dots, dtype=gates.dtype).index_copy_(0, routing.rows, dots.to(gates.dtype))
    return of_hidden, of_gates.view(gates.shape[1], -1).t().contiguous(), of_weights, of_bias


@gather_backward.register_fake
def _(
    grad: Tensor,
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
    transposed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_bias = torch.empty_like(bias) if bias is not None else weights.new_empty(0)
    of_gates = gates.new_empty(gates.shape)
    return torch.empty_like(hidden), of_gates, torch.empty_like(weights), of_bias
