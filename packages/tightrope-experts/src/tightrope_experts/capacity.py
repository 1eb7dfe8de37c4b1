"""How many rows an expert may take, and which rows are dropped where that is limited.

Idea        A capacity factor ``f`` says it as Tutel does: ``f > 0`` is a fixed capacity of
            ``k * int(f * ceil(T / E))`` rows an expert, 0 is whatever this step needs, and ``f < 0`` is that,
            but at most the capacity of ``|f|``. First choices are dropped last, and first tokens of a choice.
Guarantee   Counts of dropped rows are exact. A dropped row counts nothing, and its gate gets no gradient;
            other gates stay as they are.
Source      Tutel (MLSys 2023)
"""

import math

import torch
from torch import Tensor

from tightrope.core import TightropeError


def capacity_of(factor: float, num_tokens: int, num_experts: int, num_choices: int) -> int | None:
    """Return the rows that an expert takes at most; None = all. A factor that leaves none is refused.

    Example:
        >>> capacity_of(1.25, 4096, 32, 2), capacity_of(0.0, 4096, 32, 2)
        (320, None)
    """
    if not math.isfinite(factor):
        raise TightropeError(f"capacity={factor}: give a number. 0 drops nothing.")
    if not factor or not num_tokens:
        return None
    found = num_choices * int(abs(factor) * math.ceil(num_tokens / num_experts))
    if not found:
        raise TightropeError(
            f"capacity={factor} leaves no row for an expert: {num_tokens} tokens choose among {num_experts}. "
            "Give a larger factor, or 0 to drop nothing."
        )
    return found


def load_of(chosen: Tensor, num_experts: int) -> Tensor:
    """Count the rows of each expert, (E,) int64; ``chosen`` is (T, k)."""
    flat = chosen.reshape(-1).long()
    return flat.new_zeros(num_experts + 1).scatter_add_(0, flat, torch.ones_like(flat))[:num_experts]


def places_of(chosen: Tensor, num_experts: int) -> Tensor:
    """Return how many rows of the same expert come before each row: (T, k) int64.

    Example:
        >>> places_of(torch.tensor([[0, 1], [0, 1], [1, 0]]), 2).tolist()
        [[0, 1], [1, 2], [0, 2]]
    """
    flat = chosen.t().reshape(-1).long()
    order = torch.sort(flat, stable=True).indices
    load = load_of(chosen, num_experts + 1)
    starts = (load.cumsum(0) - load)[flat[order]]
    places = torch.empty_like(flat)
    places[order] = torch.arange(len(flat), device=flat.device) - starts
    return places.view(chosen.shape[1], -1).t()


def limited(chosen: Tensor, num_experts: int, capacity: int | None) -> tuple[Tensor, Tensor]:
    """Drop the rows above a capacity of every expert; None drops nothing.

    Returns:
        ``chosen``, (T, k) int64, with ``E`` where a row is dropped, and how many each expert lost, (E,).

    Example:
        >>> limited(torch.tensor([[0], [0], [1]]), 2, 1)
        (tensor([[0],
                [2],
                [1]]), tensor([1, 0]))
    """
    chosen = chosen.long()
    if capacity is None:
        return chosen, chosen.new_zeros(num_experts)
    lost = (load_of(chosen, num_experts) - capacity).clamp(min=0)
    return chosen.masked_fill(places_of(chosen, num_experts) >= capacity, num_experts), lost
