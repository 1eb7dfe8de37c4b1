"""Families of placement instances, each from seeds, each with a placement known from its making.

A case is made by cutting a packing into rectangles and forgetting where they lay. Where some instant of
it is full, that packing is optimal; else its height is an upper bound on the optimum. Files are placed by
the placer first: a case made from one is known to be as good as that.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.placement.generators import training_step
from benchmarks.placement.tilings import SIDE, Cuts, Rectangle, cut, grow
from tightrope.core import Bytes
from tightrope.place import Interval, place

CELL: Final[Bytes] = 1024
"""Bytes, and steps of time, per cell of a packing."""


@dataclass(frozen=True, slots=True)
class Case:
    """An instance to place.

    Attributes:
        buffers: in an order that says nothing.
        known: peak of the placement that it was made from, or its load where that is the claim.
    """

    buffers: list[Interval]
    known: Bytes


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of packing with holes.

    Attributes:
        cuts: how it is cut, before anything is taken out.
        used: share of the area that is left.
        full: number of instants at which nothing is taken out.
    """

    cuts: Cuts
    used: float
    full: int


PROFILES: Final = (
    Profile(Cuts(160, across=0.3), used=0.95, full=2),
    Profile(Cuts(178, across=0.4), used=0.975, full=20),
    Profile(Cuts(208, across=0.4), used=0.98, full=40),
    Profile(Cuts(228, across=0.15), used=0.94, full=0),
    Profile(Cuts(240, across=1.0), used=0.89, full=2),
    Profile(Cuts(480, across=2.0, area=1.5), used=0.61, full=5),
    Profile(Cuts(390, across=1.0), used=0.97, full=10),
)
"""Number, lives and slack of the buffers resemble those of the MiniMalloc files A to F; then a larger one."""


def _case(draw: random.Random, pieces: Sequence[Rectangle]) -> Case:
    shuffled = draw.sample(list(pieces), len(pieces))
    return Case(
        [(high - low, start, end) for start, end, low, high in shuffled], max(high for *_, high in pieces)
    )


def _in_bytes(pieces: Sequence[Rectangle]) -> list[Rectangle]:
    return [(start * CELL, end * CELL, low * CELL, high * CELL) for start, end, low, high in pieces]


def _waste_free(draw: random.Random) -> list[Rectangle]:
    count = draw.randint(340, 400)
    if draw.random() < 0.3:
        return grow(draw, count, draw.uniform(0.3, 0.7))
    across = 3 ** draw.uniform(-1, 1)
    cuts = Cuts(count, across, area=draw.choice((0.3, 0.7, 1.0)), pinwheels=draw.choice((0.0, 0.1, 0.3)))
    return cut(draw, cuts)


def _with_holes(draw: random.Random, *, shorten: float) -> list[Rectangle]:
    """Take rectangles out of a packing, or (with chance ``shorten``) shorten their lives instead."""
    profile = draw.choice(PROFILES)
    pieces = cut(draw, profile.cuts)
    full = draw.sample(range(SIDE), profile.full)
    surplus = SIDE * SIDE * (1 - profile.used)
    left: list[Rectangle] = []
    for start, end, low, high in draw.sample(pieces, len(pieces)):
        born, died = start, end
        if surplus > 0 and not any(start <= now < end for now in full):
            kept = draw.random() < shorten
            born, died = sorted(draw.sample(range(start, end + 1), 2)) if kept else (end, end)
            surplus -= (high - low) * (end - start - died + born)
        if born < died:
            left.append((born, died, low, high))
    return left


@cache
def _solved(file: Path) -> tuple[Rectangle, ...]:
    """Place a file as low as possible, once."""
    from tightrope_planners.place import read_csv

    buffers = read_csv(file).buffers
    found = place(buffers, seconds=10)
    return tuple(
        (start, end, low, low + size) for (size, start, end), low in zip(buffers, found.offsets, strict=True)
    )


def _base(draw: random.Random, files: Sequence[Path]) -> list[Rectangle]:
    """Draw a packing to change: half of them from files where there are any."""
    if files and draw.random() < 0.5:
        return list(_solved(draw.choice(files)))
    return _in_bytes(_with_holes(draw, shorten=0.0))


def permuted(draw: random.Random, files: Sequence[Path]) -> Case:
    """Shuffle the order of the buffers."""
    return _case(draw, _base(draw, files))


def retimed(draw: random.Random, files: Sequence[Path]) -> Case:
    """Move the instants, keeping their order: stretches shrink or grow up to a hundredfold."""
    pieces = _base(draw, files)
    moved = _moved(draw, sorted({time for start, end, *_ in pieces for time in (start, end)}), 1000)
    shift = draw.randint(-(10**6), 10**6)
    return _case(draw, [(moved[a] + shift, moved[b] + shift, low, high) for a, b, low, high in pieces])


def scaled(draw: random.Random, files: Sequence[Path]) -> Case:
    """Multiply all sizes, or stretch the address space unevenly, so that equal sizes become unequal."""
    pieces = _base(draw, files)
    if draw.random() < 0.5:
        factor = draw.randint(2, 10**6)
        return _case(draw, [(a, b, low * factor, high * factor) for a, b, low, high in pieces])
    moved = _moved(draw, sorted({0, *(at for *_, low, high in pieces for at in (low, high))}), 10**6)
    return _case(draw, [(a, b, moved[low], moved[high]) for a, b, low, high in pieces])


def _moved(draw: random.Random, marks: Sequence[int], step: int) -> dict[int, int]:
    """Give marks new places in the same order."""
    moved = {marks[0]: 0}
    for before, mark in pairwise(marks):
        moved[mark] = moved[before] + 1 + int(step * 10 ** draw.uniform(-1, 1))
    return moved


def recut(draw: random.Random, files: Sequence[Path]) -> Case:
    """Split buffers in time or address, and merge neighbours that share a whole side."""
    pieces = _base(draw, files)
    num_buffers = len(pieces)
    for _ in range(round(num_buffers * draw.uniform(0.1, 0.5))):
        at = draw.randrange(len(pieces))
        start, end, low, high = pieces[at]
        if draw.random() < 0.5 and end - start > 1:
            middle = draw.randrange(start + 1, end)
            pieces[at : at + 1] = [(start, middle, low, high), (middle, end, low, high)]
        elif high - low > 1:
            middle = draw.randrange(low + 1, high)
            pieces[at : at + 1] = [(start, end, low, middle), (start, end, middle, high)]
    for _ in range(round(num_buffers * draw.uniform(0.1, 0.5))):
        _merge(draw, pieces)
    return _case(draw, pieces)


def _merge(draw: random.Random, pieces: list[Rectangle]) -> None:
    """Merge one random buffer with the one above it or after it, if they share a whole side."""
    at = draw.randrange(len(pieces))
    start, end, low, high = pieces[at]
    for other, (born, died, bottom, top) in enumerate(pieces):
        if (born, died, bottom) == (start, end, high) or (born, bottom, top) == (end, low, high):
            pieces[at] = (start, died, low, top)
            del pieces[other]
            return


def perfect_packing(draw: random.Random, files: Sequence[Path]) -> Case:
    """Cut a square of 340 to 400 buffers without waste, in one of many ways."""
    return _case(draw, _in_bytes(_waste_free(draw)))


def with_holes(draw: random.Random, files: Sequence[Path]) -> Case:
    """Take buffers out of a perfect packing until its profile resembles a MiniMalloc file."""
    return _case(draw, _in_bytes(_with_holes(draw, shorten=0.0)))


def shortened(draw: random.Random, files: Sequence[Path]) -> Case:
    """Make the holes by shorter lives as well: they break the coincidences that cuts leave behind."""
    return _case(draw, _in_bytes(_with_holes(draw, shorten=0.5)))


def spliced(draw: random.Random, files: Sequence[Path]) -> Case:
    """Join one packing up to an instant with another one from there on, each perhaps mirrored."""
    first, second = (_mirrored(draw, _base(draw, files)) for _ in range(2))
    end = min(max(end for _, end, *_ in pieces) for pieces in (first, second))
    now = draw.randint(end // 4, 3 * end // 4)
    pieces = [(a, min(b, now), low, high) for a, b, low, high in first if a < now]
    return _case(draw, pieces + [(max(a, now), b, low, high) for a, b, low, high in second if b > now])


def _mirrored(draw: random.Random, pieces: Sequence[Rectangle]) -> list[Rectangle]:
    last, top = max(end for _, end, *_ in pieces), max(high for *_, high in pieces)
    back, down = draw.random() < 0.5, draw.random() < 0.5
    turned = [(last - b, last - a, low, high) if back else (a, b, low, high) for a, b, low, high in pieces]
    return [(a, b, top - high, top - low) if down else (a, b, low, high) for a, b, low, high in turned]


def training(draw: random.Random, files: Sequence[Path]) -> Case:
    """Draw a training step, half of them with recomputation; the claim is that the load is enough."""
    buffers = training_step(
        draw.randint(200, 2000), recompute=draw.random() < 0.5, seed=draw.randrange(2**32)
    )
    return Case(draw.sample(buffers, len(buffers)), place(buffers, seconds=0.001).lower_bound)


FAMILIES: Final[dict[str, Callable[[random.Random, Sequence[Path]], Case]]] = {
    "permuted": permuted,
    "retimed": retimed,
    "scaled": scaled,
    "recut": recut,
    "perfect": perfect_packing,
    "with holes": with_holes,
    "spliced": spliced,
    "training step": training,
    "shortened": shortened,
}
BAR: Final = ("permuted", "retimed", "scaled", "recut", "perfect")
"""Families of the bar; the others say how far it carries."""

HELD_OUT: Final = range(1000, 1200)
"""Seeds on which nothing was tuned."""


def case(family: str, seed: int, files: Sequence[Path] = ()) -> Case:
    """Make one case of a family; equal seeds and files make equal cases."""
    return FAMILIES[family](random.Random(f"{family} {seed}"), files)
