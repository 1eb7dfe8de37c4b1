"""A mixture of experts that drops nothing, and keeps its input, its routing and one row per choice."""

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.core import TightropeError
from tightrope_experts.capacity import capacity_of, limited
from tightrope_experts.layout import check_count
from tightrope_experts.products import gather, gather_backward, spread, spread_backward
from tightrope_experts.sizes import ROWS

Activation = Callable[[Tensor], Tensor]
"""Takes (rows, W) and returns (rows, H), row by row."""
_NAMES: Final = ("silu", "gelu", "relu", "tanh")
ACTIVATIONS: Final[dict[str, Activation]] = {name: getattr(functional, name) for name in _NAMES}


class Weights(NamedTuple):
    """Weights of experts, or their gradients, in any memory order."""

    up: Tensor  # (E, W, M)
    down: Tensor  # (E, M, H)
    up_bias: Tensor | None = None  # (E, W)
    down_bias: Tensor | None = None  # (E, M)


def forward_of(
    x: Tensor, chosen: Tensor, gates: Tensor, weights: Weights, activation: Activation, rows: int
) -> tuple[Tensor, Tensor]:
    """Return the rows before the activation, sorted by expert, and the sums for tokens."""
    before = spread(x, chosen, weights.up, weights.up_bias, rows)
    with torch.autocast(x.device.type, enabled=False):
        hidden = activation(before)
    return before, gather(hidden, chosen, gates, weights.down, weights.down_bias, rows)


def backward_of(
    grad: Tensor, kept: tuple[Tensor, ...], weights: Weights, activation: Activation, rows: int
) -> tuple[Tensor, Tensor, Weights]:
    """Return the gradients of tokens, gates and weights; ``kept`` is ``x, chosen, gates, before``."""
    x, chosen, gates, before = kept
    up, down, up_bias, down_bias = weights
    with torch.autocast(x.device.type, enabled=False):
        taken: Any = torch.func.vjp(activation, before)
    hidden, pull = taken
    of_hidden, of_gates, of_down, of_down_bias = gather_backward(
        grad.contiguous(), hidden, chosen, gates, down, down_bias, rows
    )
    (of_before,) = pull(of_hidden)
    of_x, of_up, of_up_bias = spread_backward(of_before.contiguous(), x, chosen, up, up_bias, rows)
    biases = (None if up_bias is None else of_up_bias, None if down_bias is None else of_down_bias)
    return of_x, of_gates, Weights(of_up, of_down, *biases)


class _Experts(torch.autograd.Function):
    """The whole layer behind the router; see `mix`."""

    @staticmethod
    def forward(
        ctx: Any, activation: Activation, rows: int, x: Tensor, chosen: Tensor, gates: Tensor, *weights: Any
    ) -> Tensor:
        before, made = forward_of(x, chosen, gates, Weights(*weights), activation, rows)
        ctx.save_for_backward(x, chosen, gates, before, *weights)
        ctx.activation, ctx.rows = activation, rows
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        kept, weights = ctx.saved_tensors[:4], Weights(*ctx.saved_tensors[4:])
        of_x, of_gates, found = backward_of(grad, kept, weights, ctx.activation, ctx.rows)
        return None, None, of_x, None, of_gates, *found


_CHECKED: "weakref.WeakKeyDictionary[Any, set[Any]]" = weakref.WeakKeyDictionary()
"""Owners of activations, and what was checked of them."""


def check_activation(activation: Activation, *, before: tuple[int, int], like: Tensor) -> None:
    """Call an activation twice on a few rows, the first time that it is seen, and multiply them.

    It is refused where it is random, writes over its input or returns other rows, or where the device of
    ``like`` does not compute in its type. ``before`` are the numbers of a row before and behind it.
    """
    owner = getattr(activation, "__self__", None)
    key = (getattr(activation, "__name__", ""), before, like.dtype, like.device)
    try:
        known = _CHECKED.setdefault(owner if isinstance(owner, nn.Module) else activation, set())
    except TypeError:  # nothing refers weakly to it: it is checked in every call
        known = set()
    if key in known:
        return
    rows, said = torch.linspace(-2, 2, 3 * before[0]).view(3, -1).to(like), ""
    given = rows.clone()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.autocast(like.device.type, enabled=False):
        torch.manual_seed(0)
        try:
            torch.mm(rows, rows.t())
            first, second = activation(given), activation(rows.clone())
        except NotImplementedError as error:  # torch's, where it has no kernel
            raise TightropeError(
                f"This {like.device.type} does not compute in {like.dtype}. Use torch.float32."
            ) from error
    if not torch.equal(rows, given):
        said = "It writes over its input: leave out inplace=True."
    elif first.shape != (3, before[1]) or first.dtype != rows.dtype:
        said = (
            f"For rows of {before[0]} numbers in {rows.dtype} it returns {tuple(first.shape)} in "
            f"{first.dtype}. It must return rows of {before[1]} numbers in the same type."
        )
    elif not torch.equal(first, second):
        said = "It is random, and runs again in the backward. Put dropout around the experts."
    if said:
        name = getattr(activation, "__name__", activation)
        raise TightropeError(f"The activation {name!s} does not fit. {said}")
    known.add(key)


def mix(
    x: Tensor,
    chosen: Tensor,
    gates: Tensor,
    up: Tensor,
    down: Tensor,
    activation: Activation,
    *,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    rows: int = ROWS,
) -> Tensor:
    """Send tokens to the experts that they chose, and sum what comes back.

    Args:
        x: (T, M), floating point.
        chosen: (T, k), int64; ``E`` = no expert.
        gates: (T, k), what each choice counts.
        up: (E, W, M), in any memory order.
        down: (E, M, H), in any memory order.
        activation: from (rows, W) to (rows, H), row by row, without parameters or randomness. It runs
            outside of autocast, and once more in the backward. It is tried on a few rows when it is first
            seen, but not while a compiler traces: `MoE` tries its own when it is made.
        biases: of ``up`` (E, W) and ``down`` (E, M).
        rows: multiplied at once, at most: less takes fewer bytes and more rounds.

    Returns:
        (T, M). No token is dropped. For a backward it keeps ``x``, ``chosen``, ``gates`` and ``T * k`` rows
        of W numbers, whatever the routing.

    Raises:
        TightropeError: shapes do not fit, a token chose an expert that there is not, or a gate is NaN.

    Example:
        >>> x, chosen, gates = torch.ones(3, 4), torch.tensor([[0], [1], [1]]), torch.ones(3, 1)
        >>> up, down = torch.ones(2, 5, 4), torch.ones(2, 4, 5)
        >>> mix(x, chosen, gates, up, down, torch.relu).shape
        torch.Size([3, 4])
    """
    check_count("rows", rows, low=1)
    if up.dim() != 3 or down.dim() != 3 or len(up) != len(down) or not len(up):
        raise TightropeError(
            f"up has shape {tuple(up.shape)} and down {tuple(down.shape)}. Give a matrix per expert in both."
        )
    weights = Weights(up, down, *biases)
    _check_fit(x, chosen, gates, weights)
    if torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, up.dtype, down.dtype):
        dtype = torch.get_autocast_dtype(x.device.type)
        lower: Any = (None if one is None else one.to(dtype) for one in weights)
        x, weights = x.to(dtype), Weights(*lower)
    floats = {one.dtype for one in (x, *weights) if one is not None}
    if len(floats) > 1 or not x.is_floating_point():
        raise TightropeError(
            f"x, weights and biases are {', '.join(sorted(map(str, floats)))}. Give one floating-point type, "
            "or use autocast."
        )
    if not torch.compiler.is_compiling():
        check_activation(activation, before=(weights.up.shape[1], weights.down.shape[2]), like=x)
    made: Tensor = _Experts.apply(activation, rows, x, chosen.long(), gates, *weights)  # type: ignore[no-untyped-call]
    return made


def _check_fit(x: Tensor, chosen: Tensor, gates: Tensor, weights: Weights) -> None:
    (num_experts, wide, dim), result = weights.up.shape, weights.down.shape[1]
    whole = not chosen.is_floating_point() and chosen.dtype != torch.bool and gates.is_floating_point()
    if not whole or chosen.shape != gates.shape or chosen.dim() != 2 or not chosen.shape[1]:
        raise TightropeError(
            f"chosen is {chosen.dtype} {tuple(chosen.shape)}, and gates {gates.dtype} {tuple(gates.shape)}. "
            "Give int64 and a floating-point type, both (T, k), with k of at least 1."
        )
    for name, one, right in (
        ("x", x, (len(chosen), dim)),
        ("The bias of up", weights.up_bias, (num_experts, wide)),
        ("The bias of down", weights.down_bias, (num_experts, result)),
    ):
        if one is not None and one.shape != right:
            raise TightropeError(f"{name} has shape {tuple(one.shape)}. Give {right}.")


class MoE(nn.Module):
    """A layer of experts behind a router; a token goes to the ``k`` experts with the largest scores.

    Gates are the softmax of all scores, of which the ``k`` largest are divided by their sum. An expert
    computes ``down @ (activation(a) * b)`` of ``a, b = (up @ token).chunk(2)``, and without a gate
    ``down @ activation(up @ token)``.

    Args:
        dim: numbers of a token, ``M``.
        hidden: numbers inside an expert, ``H``.
        num_experts: ``E``.
        k: experts of a token.
        activation: name in `ACTIVATIONS`, or a function without parameters.
        gated: whether an expert multiplies the activation with a second product.
        bias: whether products have a bias.
        noise: standard deviation of what is added to scores while it trains.
        capacity: factor; 0 drops nothing, and a negative one is a cap: see `tightrope_experts.capacity`.
        rows: multiplied at once, at most.

    Attributes:
        router, up, down: scores of tokens, and weights of all experts.

    Example:
        >>> layer = MoE(8, 16, num_experts=4, k=2)
        >>> layer(torch.ones(2, 5, 8)).shape
        torch.Size([2, 5, 8])

    Source: dropless as MegaBlocks (MLSys 2023); capacities of Tutel (MLSys 2023).
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        num_experts: int,
        k: int = 1,
        activation: str | Activation = "silu",
        gated: bool = True,
        bias: bool = False,
        noise: float = 0.0,
        capacity: float = 0.0,
        rows: int = ROWS,
    ) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("hidden", hidden), ("num_experts", num_experts), ("rows", rows)):
            check_count(name, size, low=1)
        if not 1 <= k <= num_experts:
            raise TightropeError(f"k={k}: a token chooses 1 to {num_experts} experts.")
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise TightropeError(
                f"activation={activation!r}: give one of {', '.join(ACTIVATIONS)}, or a function."
            )
        capacity_of(capacity, num_experts, num_experts, k)
        self.k, self.noise, self.capacity, self.rows, self.gated = k, noise, capacity, rows, gated
        self.activation: Activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        wide = 2 * hidden if gated else hidden
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(num_experts, wide, dim).uniform_(-1, 1) * dim**-0.5)
        self.down = nn.Parameter(torch.empty(num_experts, dim, hidden).uniform_(-1, 1) * hidden**-0.5)
        self.up_bias = nn.Parameter(torch.zeros(num_experts, wide)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(num_experts, dim)) if bias else None
        check_activation(self._act, before=(wide, hidden), like=self.up)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts of tokens (T, M).

        Returns:
            Numbers of experts (T, k) int64, ``E`` where a row is dropped, and gates (T, k).
        """
        scores = self.router(tokens)
        if self.noise and self.training:
            scores = scores + self.noise * torch.randn_like(scores)
        gates, chosen = torch.topk(scores.softmax(-1), self.k)
        num_experts = self.router.out_features
        most = capacity_of(self.capacity, len(tokens), num_experts, self.k)
        return limited(chosen, num_experts, most)[0], gates / gates.sum(-1, keepdim=True)

    def mixed(self, tokens: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """Send tokens (T, M) to the experts that `route` chose, and sum what comes back."""
        biases = (self.up_bias, self.down_bias)
        return mix(tokens, chosen, gates, self.up, self.down, self._act, biases=biases, rows=self.rows)

    def refuse(self, said: str) -> None:
        """Raise a `TightropeError`."""
        raise TightropeError(said)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the experts of each token make of it: (..., M), as ``x``."""
        dim = self.router.in_features
        if not x.dim() or x.shape[-1] != dim:
            self.refuse(f"x has shape {tuple(x.shape)}. The layer takes (..., {dim}).")
        tokens = x.reshape(-1, dim)
        return self.mixed(tokens, *self.route(tokens)).view_as(x)

    def _act(self, before: Tensor) -> Tensor:
        if not self.gated:
            return self.activation(before)
        gate, value = before.chunk(2, dim=-1)
        return self.activation(gate) * value
