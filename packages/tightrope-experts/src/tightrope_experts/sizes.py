"""Bytes of a layer of experts, from its sizes alone: no routing changes them on one rank.

Guarantee   What is kept and made is that of `tightrope_experts.mix`, to the byte as the allocator counts.
Gaps        Of several ranks, rows that arrive are counted and exchanges are not: the even load is an
            expectation, and the worst case has every token of every rank choose the experts of one rank.
"""

from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, TightropeError
from tightrope.core.units import round_up
from tightrope_experts.layout import ExpertLayout, check_count

ROWS: Final = 1024
"""Rows that are multiplied at once, by default."""


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of a layer; refused where ``k`` is above the experts, or experts and ranks do not divide."""

    tokens: int  # of one rank in a step, T
    dim: int  # numbers of a token, M
    hidden: int  # numbers inside an expert, H
    experts: int  # of all ranks, E
    k: int = 1  # experts of a token
    gated: bool = True  # whether the first product is twice as wide
    itemsize: int = 4  # bytes of a number
    rows: int = ROWS  # multiplied at once, at most
    ranks: int = 1  # that divide the experts

    def __post_init__(self) -> None:
        for name in ("tokens", "dim", "hidden", "experts", "k", "itemsize", "rows", "ranks"):
            check_count(name, getattr(self, name), low=1)
        if self.k > self.experts:
            raise TightropeError(f"k={self.k}: a token chooses at most {self.experts} experts.")
        _ = self.layout

    @property
    def layout(self) -> ExpertLayout:
        """Experts over ranks."""
        return ExpertLayout(self.ranks, self.experts)

    @property
    def wide(self) -> int:
        """Numbers of a row before the activation."""
        return 2 * self.hidden if self.gated else self.hidden

    @property
    def weights(self) -> Bytes:
        """Bytes of the weights of one rank's experts; their gradients take as many."""
        numbers = (self.experts * self.dim * width // self.ranks for width in (self.wide, self.hidden))
        return sum(round_up(number * self.itemsize) for number in numbers)

    def _bytes(self, numbers: int, indices: int) -> Bytes:
        """Count bytes of rows of some numbers and indices, and of gates."""
        rows = self.tokens * self.k
        return sum(
            map(round_up, (rows * numbers * self.itemsize, rows * self.itemsize, *[8 * rows] * indices))
        )

    @property
    def kept(self) -> Bytes:
        """Bytes kept for the backward on one rank, but for the input: rows, choices and gates."""
        return self._bytes(self.wide, 1)

    @property
    def kept_by_autograd(self) -> Bytes:
        """Bytes that sorted rows, grouped products and plain autograd keep instead."""
        return self._bytes(2 * self.dim + self.wide + (2 if self.gated else 1) * self.hidden, 2)

    def load(self, *, worst: bool) -> dict[str, int]:
        """Forecast a rank's load where rows are even, or all at one expert.

        Returns:
            ``rows`` that arrive, ``rounds`` of its products, and ``arrived``, the bytes of rows that travel.
        """
        rows = self.tokens * self.k * (self.ranks if worst else 1)
        local = 1 if worst else self.layout.local
        rounds = -(-rows // (local * self.rows)) * local
        travel = rows * (self.dim + self.wide) * self.itemsize if self.ranks > 1 else 0
        return {"rows": rows, "rounds": rounds, "arrived": round_up(travel)}
