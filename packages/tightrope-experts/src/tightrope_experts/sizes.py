"""Bytes of a layer of experts, from its sizes alone: no routing changes them on one rank.

Guarantee   What is kept and made is that of `tightrope_experts.mix`, to the byte as the allocator counts.
Gaps        Of several ranks, rows that arrive are counted and exchanges are not: the even load is an
            expectation, and the worst case has every token of every rank choose the experts of one rank.
"""

from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, TightropeError
from tightrope.core.units import round_up
from tightrope_experts.layout import ExpertLayout

_INT64, _MOST = 8, 2**40
ROWS: Final = 1024
"""Rows that are multiplied at once, by default."""


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of a layer.

    Attributes:
        tokens: of one rank in a step, ``T``.
        dim: numbers of a token, ``M``.
        hidden: numbers inside an expert, ``H``.
        experts: of all ranks, ``E``.
        k: experts of a token.
        gated: whether the first product is twice as wide.
        itemsize: bytes of a number.
        rows: multiplied at once, at most.
        ranks: that divide the experts.

    Raises:
        TightropeError: a size is below 1, k is above the experts, or neither ranks nor experts divide
            the others.
    """

    tokens: int
    dim: int
    hidden: int
    experts: int
    k: int = 1
    gated: bool = True
    itemsize: int = 4
    rows: int = ROWS
    ranks: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens", "dim", "hidden", "experts", "k", "itemsize", "rows", "ranks"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise TightropeError(f"{name}={getattr(self, name)}: give a whole number from 1 to 2**40.")
        if self.k > self.experts:
            raise TightropeError(f"k={self.k}: a token chooses at most {self.experts} experts.")
        ExpertLayout(self.ranks, self.experts)  # which refuses what does not divide

    @property
    def wide(self) -> int:
        """Numbers of a row before the activation."""
        return 2 * self.hidden if self.gated else self.hidden

    @property
    def weights(self) -> Bytes:
        """Bytes of the weights of one rank's experts; their gradients take as many."""
        numbers = (self.experts * self.dim * width // self.ranks for width in (self.wide, self.hidden))
        return sum(round_up(number * self.itemsize) for number in numbers)

    @property
    def kept(self) -> Bytes:
        """Bytes kept for the backward on one rank: rows before the activation, choices and gates.

        The layer's input is not in it: it is there anyway.
        """
        rows = self.tokens * self.k
        return (
            round_up(rows * self.wide * self.itemsize)
            + round_up(rows * _INT64)
            + round_up(rows * self.itemsize)
        )

    @property
    def kept_by_autograd(self) -> Bytes:
        """Bytes that sorted rows, grouped products and plain autograd keep instead."""
        rows = self.tokens * self.k
        numbers = 2 * self.dim + self.wide + (2 if self.gated else 1) * self.hidden
        return (
            round_up(rows * numbers * self.itemsize)
            + 2 * round_up(rows * _INT64)
            + round_up(rows * self.itemsize)
        )

    def rows_of_a_rank(self, *, worst: bool) -> int:
        """Rows that arrive at a rank: an even share of all, or all of them."""
        arrive = self.tokens * self.k * self.ranks
        return arrive if worst else arrive // self.ranks

    def rounds(self, *, worst: bool) -> int:
        """Rounds of rows in a product on one rank, under an even load or with all rows at one expert."""
        arrive, local = self.rows_of_a_rank(worst=worst), max(self.experts // self.ranks, 1)
        share = arrive if worst else -(-arrive // local)
        return -(-share // self.rows) * (1 if worst else local)

    def arrived(self, *, worst: bool) -> Bytes:
        """Bytes of the rows that arrive at a rank, as they are kept: 0 on one rank, where none travel."""
        if self.ranks == 1:
            return 0
        return round_up(self.rows_of_a_rank(worst=worst) * (self.dim + self.wide) * self.itemsize)
