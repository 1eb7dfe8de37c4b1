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

All ops take ``chosen`` (T, k) int64, where ``E`` stands for no expert, ``weights`` (E, outputs, inputs) in
any memory order, ``bias`` (E, outputs) or None, and ``rows``, the most that are multiplied at once.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tightrope.core import TightropeError


class _Routing(NamedTuple):
    """Rows sorted by expert: their places in ``chosen.T``, their tokens, and how many each expert has."""

    rows: Tensor
    tokens: Tensor
    counts: list[int]

    def rounds(self, most: int) -> Iterator[tuple[int, slice, Tensor, int]]:
        """Yield the expert of every round, its rows, their tokens, and 0 where it is the expert's first."""
        start = 0
        for expert, count in enumerate(self.counts):
            end = start + count
            for at in range(start, end, most):
                here = slice(at, min(at + most, end))
                yield expert, here, self.tokens[here], int(at > start)
            start = end

    def rest(self, made: Tensor) -> Tensor:
        """Set the rows of no expert to 0."""
        made[sum(self.counts) :].zero_()
        return made

    def like(self, weights: Tensor) -> Tensor:
        """Make room for the gradients of weights; it is 0 where an expert has no rows."""
        made = torch.empty_like(weights)
        for expert, count in enumerate(self.counts):
            if not count:
                made[expert].zero_()
        return made

    def sorted(self, gates: Tensor, like: Tensor) -> Tensor:
        """Return gates (T, k) in the order of rows: (T * k, 1)."""
        return gates.t().reshape(-1)[self.rows].to(like.dtype).unsqueeze(1)


def _routed(chosen: Tensor, num_experts: int) -> _Routing:
    flat = chosen.t().reshape(-1)
    if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) <= num_experts:
        raise TightropeError(
            f"A token chose expert {int(flat.min())} or {int(flat.max())}. Experts are 0 to "
            f"{num_experts - 1}; {num_experts} stands for none."
        )
    rows = torch.sort(flat, stable=True).indices
    counts = torch.bincount(flat, minlength=num_experts + 1)[:num_experts].tolist()
    return _Routing(rows, rows % max(len(chosen), 1), counts)


def _room_for(bias: Tensor | None, weights: Tensor) -> Tensor:
    return torch.zeros_like(bias) if bias is not None else weights.new_zeros(0)


@torch.library.custom_op("tightrope_experts::spread", mutates_args=())
def spread(x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """Multiply every token, of ``x`` (T, M), with the weights of the experts that it chose.

    Returns:
        (T * k, W), sorted by expert; rows of no expert are 0.

    Raises:
        TightropeError: a token chose an expert that there is not.
    """
    routing = _routed(chosen, len(weights))
    made = x.new_empty(chosen.numel(), weights.shape[1])
    space = x.new_empty(min(rows, chosen.numel()), x.shape[1])
    for expert, here, tokens, _ in routing.rounds(rows):
        given = torch.index_select(x, 0, tokens, out=space[: len(tokens)])
        torch.mm(given, weights[expert].t(), out=made[here])
        if bias is not None:
            made[here].add_(bias[expert])
    return routing.rest(made)


spread.register_fake(lambda x, chosen, weights, *_: x.new_empty(chosen.numel(), weights.shape[1]))


@torch.library.custom_op("tightrope_experts::spread_backward", mutates_args=())
def spread_backward(
    grad: Tensor, x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the tokens, the weights and the bias of `spread` (empty where it has none)."""
    routing = _routed(chosen, len(weights))
    of_x, of_weights, of_bias = torch.zeros_like(x), routing.like(weights), _room_for(bias, weights)
    space = x.new_empty(min(rows, chosen.numel()), x.shape[1])
    ones = grad.new_ones(len(space))
    for expert, here, tokens, again in routing.rounds(rows):
        given = torch.index_select(x, 0, tokens, out=space[: len(tokens)])
        of_weights[expert].t().addmm_(given.t(), grad[here], beta=again)
        if bias is not None:
            of_bias[expert].addmv_(grad[here].t(), ones[: len(tokens)])
        of_x.index_add_(0, tokens, torch.mm(grad[here], weights[expert], out=given))
    return of_x, of_weights, of_bias


@spread_backward.register_fake
def _(
    _: Tensor, x: Tensor, _chosen: Tensor, weights: Tensor, bias: Tensor | None, _rows: int
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(weights), _room_for(bias, weights)


@torch.library.custom_op("tightrope_experts::gather", mutates_args=())
def gather(
    hidden: Tensor, chosen: Tensor, gates: Tensor, weights: Tensor, bias: Tensor | None, rows: int
) -> Tensor:
    """Multiply every row with its expert's weights, and sum the rows of each token, weighted by gates (T, k).

    Rows of ``hidden`` (T * k, H) are sorted by expert, as `spread` returns them.

    Returns:
        (T, M).

    Raises:
        TightropeError: a gate is not a number.
    """
    if not bool(torch.isfinite(gates).all()):
        raise TightropeError("A gate is NaN or infinite. Look at the router's inputs and weights.")
    routing = _routed(chosen, len(weights))
    made = hidden.new_zeros(len(chosen), weights.shape[1])
    space = hidden.new_empty(min(rows, chosen.numel()), weights.shape[1])
    counted = routing.sorted(gates, hidden)
    for expert, here, tokens, _ in routing.rounds(rows):
        found = torch.mm(hidden[here], weights[expert].t(), out=space[: len(tokens)])
        if bias is not None:
            found.add_(bias[expert])
        made.index_add_(0, tokens, found.mul_(counted[here]))
    return made


gather.register_fake(lambda hidden, chosen, _, weights, *__: hidden.new_empty(len(chosen), weights.shape[1]))


@torch.library.custom_op("tightrope_experts::gather_backward", mutates_args=())
def gather_backward(
    grad: Tensor,
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of rows, gates, weights and bias of `gather` (empty where it has none).

    A gate's gradient is the product of its row with what comes back to the row: results of experts are not
    needed.
    """
    routing = _routed(chosen, len(weights))
    of_hidden, of_weights = torch.empty_like(hidden), routing.like(weights)
    of_bias, dots = _room_for(bias, weights), hidden.new_zeros(chosen.numel())
    space = grad.new_empty(min(rows, chosen.numel()), grad.shape[1])
    product, ones = hidden.new_empty(len(space), hidden.shape[1]), grad.new_ones(len(space))
    counted = routing.sorted(gates, hidden)
    for expert, here, tokens, again in routing.rounds(rows):
        came = torch.index_select(grad, 0, tokens, out=space[: len(tokens)])
        back = torch.mm(came, weights[expert], out=of_hidden[here])
        torch.sum(torch.mul(back, hidden[here], out=product[: len(tokens)]), 1, out=dots[here])
        if bias is not None:
            dots[here].addmv_(came, bias[expert])
        came.mul_(counted[here])
        back.mul_(counted[here])
        of_weights[expert].t().addmm_(hidden[here].t(), came, beta=again)
        if bias is not None:
            of_bias[expert].addmv_(came.t(), ones[: len(tokens)])
    of_gates = torch.empty_like(dots, dtype=gates.dtype).index_copy_(0, routing.rows, dots.to(gates.dtype))
    by_token = of_gates.view(gates.shape[1], -1).t().contiguous()
    return routing.rest(of_hidden), by_token, of_weights, of_bias


@gather_backward.register_fake
def _(
    _: Tensor, hidden: Tensor, _c: Tensor, gates: Tensor, weights: Tensor, bias: Tensor | None, _r: int
) -> tuple[Tensor, ...]:
    room = _room_for(bias, weights)
    return torch.empty_like(hidden), gates.new_empty(gates.shape), torch.empty_like(weights), room
