"""Loops as statements with affine accesses, the order in which they run, and the cells that arrays share.

S[t, i, j]            an instance of a statement; t is the time step of the loop
A[t + 1, j + 64]      what it writes or reads: affine in t, i, j
(0, t, 3, i, j // 8)  when it runs: terms that are compared one by one
A[t mod 1, j mod 8]   where elements stay: elements that share a cell follow each other
"""

from typing import TypeAlias

import msgspec

Affine: TypeAlias = tuple[int, ...]
"""A constant, then a factor per dimension of the statement; the first dimension is ``t``."""
Formula: TypeAlias = "int | float | tuple[str | int | float | Formula, ...]"
"""The number of a read, a constant, or an op and its operands: ``("mul", 0, ("sigmoid", 1))``."""


class LoopAccess(msgspec.Struct, frozen=True):
    """An element of an array: one affine expression per dimension of it."""

    array: str
    index: tuple[Affine, ...]


class LoopTerm(msgspec.Struct, frozen=True):
    """One place of a time vector: ``(affine // divisor) mod modulo``, without ``mod`` where that is 0."""

    affine: Affine
    divisor: int = 1
    modulo: int = 0


class LoopStatement(msgspec.Struct, frozen=True):
    """An assignment for every point of a box.

    Attributes:
        name: unique.
        extents: of its dimensions after ``t``.
        target: what it writes.
        reads: what it reads; a sum names its target too.
        formula: of what is read.
        place: in one iteration of the loop as it was written.
        when: the terms of its time; as many in every statement.
    """

    name: str
    extents: tuple[int, ...]
    target: LoopAccess
    reads: tuple[LoopAccess, ...]
    formula: Formula
    place: int
    when: tuple[LoopTerm, ...]


class LoopArray(msgspec.Struct, frozen=True):
    """An array.

    Attributes:
        name: unique.
        shape: without the dimension of time.
        over_time: whether its first dimension is time.
        cells: per dimension, time first if there is one, how many are kept; 0 = all.
        outside: whether it is read or written outside of the loop too, so that all of it has to be there.
    """

    name: str
    shape: tuple[int, ...]
    over_time: bool
    cells: tuple[int, ...] = ()
    outside: bool = False


class LoopProgram(msgspec.Struct, frozen=True):
    """A loop, the order in which it runs, and what was proved of both for any number of steps.

    Attributes:
        direction: 1 where the loop as written counts up, -1 where it counts down.
        arrays: all that is read or written.
        statements: in the order in which they were written.
        parallel: places of time vectors whose steps may run at once.
    """

    direction: int
    arrays: tuple[LoopArray, ...]
    statements: tuple[LoopStatement, ...]
    parallel: tuple[int, ...] = ()
