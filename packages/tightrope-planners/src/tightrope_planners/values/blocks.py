"""What is placed: blocks of one or more pieces.

address ^      +--1--+         block = pieces 0, 1, 2 at fixed distances: the placer chooses one offset
        |  +-0-+  +-2-+        for all three. Equal distances make gaps in a lifetime; pieces stacked in
        +--+---+--+---+-> time address make a bucket of neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.core.units import is_whole

_Row = TypeVar("_Row", bound=tuple[int, ...])


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of time x address inside a block.

    Attributes:
        size: bytes.
        start: first instant at which it is alive.
        end: first instant at which it is not.
        low: distance from the block's offset.
    """

    size: Bytes
    start: int
    end: int
    low: Bytes = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Pieces that are placed together.

    Attributes:
        pieces: at least one; two that are alive together do not overlap in address.
        alignment: the block's offset is a multiple of this.
        fixed: the offset that it must have, in its space; None = free.
        hint: an offset that it should have where possible; None = none.
        forbidden: address ranges ``[low, high)`` that none of its bytes may lie in.
        spaces: names of the spaces that it may lie in; empty = any.
    """

    pieces: tuple[Piece, ...]
    alignment: Bytes = 1
    fixed: Offset | None = None
    hint: Offset | None = None
    forbidden: tuple[tuple[Offset, Offset], ...] = ()
    spaces: tuple[str, ...] = ()

    @property
    def height(self) -> Bytes:
        """Distance from the block's offset to its highest byte."""
        return max((piece.low + piece.size for piece in self.pieces), default=0)

    @classmethod
    def of(cls, size: Bytes, start: int, end: int) -> "Block":
        """Make a block of one piece.

        Example:
            >>> Block.of(64, 0, 2).height
            64
        """
        return cls((Piece(size, start, end),))

    @classmethod
    def alias(cls, size: Bytes, lifetimes: tuple[tuple[int, int], ...]) -> "Block":
        """Make a block that is one address with several lifetimes: aliases, in-place pairs, gaps.

        Lifetimes that meet or overlap are joined.

        Raises:
            TightropeError: a lifetime is not two whole numbers.

        Example:
            >>> Block.alias(64, ((0, 2), (2, 5), (8, 9))).pieces
            (Piece(size=64, start=0, end=5, low=0), Piece(size=64, start=8, end=9, low=0))
        """
        joined: list[tuple[int, int]] = []
        for start, end in sorted(_rows(lifetimes, 2, "a lifetime is (start, end)")):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        return cls(tuple(Piece(size, start, end) for start, end in joined))

    @classmethod
    def bucket(cls, members: tuple[tuple[Bytes, int, int], ...], *, alignment: Bytes = 1) -> "Block":
        """Make a block whose members (size, start, end) lie one above the other, each aligned.

        Raises:
            TightropeError: a member is not three whole numbers, or the alignment not one above 0.

        Example:
            >>> [piece.low for piece in Block.bucket(((60, 0, 2), (64, 1, 3)), alignment=64).pieces]
            [0, 64]
        """
        if not is_whole(alignment) or alignment < 1:
            raise TightropeError(f"alignment is {alignment!r:.60}: it must be a whole number above 0.")
        pieces: list[Piece] = []
        low = 0
        for size, start, end in _rows(members, 3, "a member is (size, start, end)"):
            pieces.append(Piece(size, start, end, low))
            low += -(-size // alignment) * alignment
        return cls(tuple(pieces), alignment=alignment)


def _rows(rows: Sequence[_Row], length: int, what: str) -> Sequence[_Row]:
    """Refuse rows that are not so many whole numbers each."""
    if not isinstance(rows, Sequence):
        raise TightropeError(f"{what}, and there must be a sequence of them, not {rows!r:.60}.")
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) != length or not all(map(is_whole, row)):
            raise TightropeError(f"{what}, all whole numbers, not {row!r:.60}.")
    return rows
