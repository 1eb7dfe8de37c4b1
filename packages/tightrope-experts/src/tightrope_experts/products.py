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


class Routing(NamedTuple):
    """Rows sorted by expert: their places in ``chosen.T``, their tokens, and how many each expert has."""

    rows: Tensor
    tokens: Tensor
    counts: list[int]

    def rounds(self, most: int, like: Tensor) -> Iterator[tuple[int, slice, Tensor, Tensor, int]]:
        """Yield the expert of every round, its rows, their tokens, room for them, 0 in its first."""
        space, start = like.new_empty(min(most, len(self.rows)), like.shape[1]), 0
        for expert, count in enumerate(self.counts):
            for at in range(start, start + count, most):
                here = slice(at, min(at + most, start + count))
                yield expert, here, self.tokens[here], space[: here.stop - at], int(at > start)
            start += count

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


def routed(chosen: Tensor, num_experts: int) -> Routing:
    """Sort rows by expert; refuse experts that there are not."""
    flat = chosen.t().reshape(-1)
    low, high = (int(flat.min()), int(flat.max())) if len(flat) else (0, 0)
    if low < 0 or high > num_experts:
        raise TightropeError(
            f"A token chose expert {low if low < 0 else high}. Experts are 0 to {num_experts - 1}; "
            f"{num_experts} stands for none."
        )
    rows = torch.sort(flat, stable=True).indices
    counts = torch.bincount(flat, minlength=num_experts + 1)[:num_experts].tolist()
    return Routing(rows, rows % max(len(chosen), 1), counts)


def check_gates(gates: Tensor) -> None:
    """Refuse gates that are no numbers."""
    if not bool(torch.isfinite(gates).all()):
        raise TightropeError("A gate is NaN or infinite. Look at the router's inputs and weights.")


def _room_for(bias: Tensor | None, weights: Tensor) -> Tensor:
    return torch.zeros_like(bias) if bias is not None else weights.new_zeros(0)


@torch.library.custom_op("tightrope_experts::spread_rows", mutates_args=())
def spread(x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """Multiply every token, of ``x`` (T, M), with the weights of the experts that it chose.

    Returns:
        (T * k, W), sorted by expert; rows of no expert are 0.
    """
    routing = routed(chosen, len(weights))
    made = x.new_empty(chosen.numel(), weights.shape[1])
    for expert, here, tokens, space, _ in routing.rounds(rows, x):
        given = torch.index_select(x, 0, tokens, out=space)
        torch.mm(given, weights[expert].t(), out=made[here])
        if bias is not None:
            made[here].add_(bias[expert])
    return routing.rest(made)


spread.register_fake(lambda x, chosen, weights, *_: x.new_empty(chosen.numel(), weights.shape[1]))


@torch.library.custom_op("tightrope_experts::spread_rows_backward", mutates_args=())
def spread_backward(
    grad: Tensor, x: Tensor, chosen: Tensor, weights: Tensor, bias: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the tokens, the weights and the bias of `spread` (empty where it has none)."""
    routing, ones = routed(chosen, len(weights)), grad.new_ones(min(rows, chosen.numel()))
    of_x, of_weights, of_bias = torch.zeros_like(x), routing.like(weights), _room_for(bias, weights)
    for expert, here, tokens, space, again in routing.rounds(rows, x):
        given = torch.index_select(x, 0, tokens, out=space)
        of_weights[expert].t().addmm_(given.t(), grad[here], beta=again)
        if bias is not None:
            of_bias[expert].addmv_(grad[here].t(), ones[: len(tokens)])
        of_x.index_add_(0, tokens, torch.mm(grad[here], weights[expert], out=given))
    return of_x, of_weights, of_bias


spread_backward.register_fake(
    lambda _, x, _c, weights, bias, _r: (*map(torch.empty_like, (x, weights)), _room_for(bias, weights))
)


@torch.library.custom_op("tightrope_experts::gather_rows", mutates_args=())
def gather(
    hidden: Tensor, chosen: Tensor, gates: Tensor, weights: Tensor, bias: Tensor | None, rows: int
) -> Tensor:
    """Multiply every row with its expert's weights, and sum the rows of each token, weighted by gates (T, k).

    Rows of ``hidden`` (T * k, H) are sorted by expert, as `spread` returns them. Returns (T, M).
    """
    check_gates(gates)
    routing, made = routed(chosen, len(weights)), hidden.new_zeros(len(chosen), weights.shape[1])
    counted = routing.sorted(gates, hidden)
    for expert, here, tokens, space, _ in routing.rounds(rows, made):
        found = torch.mm(hidden[here], weights[expert].t(), out=space)
        if bias is not None:
            found.add_(bias[expert])
        made.index_add_(0, tokens, found.mul_(counted[here]))
    return made


gather.register_fake(lambda hidden, chosen, _, weights, *__: hidden.new_empty(len(chosen), weights.shape[1]))


@torch.library.custom_op("tightrope_experts::gather_rows_backward", mutates_args=())
def gather_backward(
    grad: Tensor,
    hidden: Tensor,
    chosen: Tensor,
    gates: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of rows, gates, weights and bias of `gather` (empty where it has none)."""
    routing = routed(chosen, len(weights))
    of_hidden, of_weights = torch.empty_like(hidden), routing.like(weights)
    of_bias, dots = _room_for(bias, weights), hidden.new_zeros(chosen.numel())
    product = hidden.new_empty(min(rows, chosen.numel()), hidden.shape[1])
    counted = routing.sorted(gates, hidden)
    for expert, here, tokens, space, again in routing.rounds(rows, grad):
        came = torch.index_select(grad, 0, tokens, out=space)
        back = torch.mm(came, weights[expert], out=of_hidden[here])
        torch.sum(torch.mul(back, hidden[here], out=product[: len(tokens)]), 1, out=dots[here])
        if bias is not None:
            dots[here].addmv_(came, bias[expert])
            of_bias[expert].addmv_(came.t(), counted[here, 0])
        came.mul_(counted[here])
        back.mul_(counted[here])
        of_weights[expert].t().addmm_(hidden[here].t(), came, beta=again)
    of_gates = torch.empty_like(dots, dtype=gates.dtype).index_copy_(0, routing.rows, dots.to(gates.dtype))
    by_token = of_gates.view(gates.shape[1], -1).t().contiguous()
    return routing.rest(of_hidden), by_token, of_weights, of_bias


@gather_backward.register_fake
def _(
    _: Tensor, hidden: Tensor, _c: Tensor, gates: Tensor, weights: Tensor, bias: Tensor | None, _r: int
) -> tuple[Tensor, ...]:
    room = _room_for(bias, weights)
    return torch.empty_like(hidden), gates.new_empty(gates.shape), torch.empty_like(weights), room
