"""Which rank holds what of which expert, and which rows go where in which round.

Idea        One layout of parameters serves every degree. ``W`` ranks hold ``E`` experts: ``E / W`` whole ones
            each, or, where ranks are more, one of ``W / E`` slices. Degree 0 gathers all weights, and tokens
            stay. Degree ``r`` sends each row to ``r`` ranks. Each of them multiplies with ``1 / r`` of the
            expert, gathered from ``W / (E r)`` slices. Changing the degree moves no parameter.
            All ranks know the rows of all ranks by expert, so each derives the same rounds without a message.
Guarantee   No rank receives more than ``most`` rows in a round, and a lane (an expert and one of its copies)
            loses no row. What a rank keeps for the backward are its first rounds, of at most ``keep`` rows.
Complexity  ``O(rounds W E)`` integers.
Gaps        Rows of an expert are spread over its copies evenly by number, not by the speed of a rank.
Source      Tutel (MLSys 2023): one layout for all strategies
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightrope.core import TightropeError

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Experts over ranks.

    Args:
        ranks: ``W``.
        experts: ``E``.

    Raises:
        TightropeError: neither number divides the other.

    Example:
        >>> ExpertLayout(8, 2).degrees, ExpertLayout(2, 8).degrees
        ((0, 1, 2, 4), (0, 1))
    """

    ranks: int
    experts: int

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.experts < 1:
            raise TightropeError(f"{self.experts} experts on {self.ranks} ranks: give at least one of both.")
        if self.experts % self.ranks and self.ranks % self.experts:
            raise TightropeError(
                f"{self.experts} experts do not divide over {self.ranks} ranks: some rank would own none, or "
                f"another number. Give a multiple or a divisor of {self.ranks}."
            )

    @property
    def local(self) -> int:
        """Experts of which a rank holds something."""
        return max(self.experts // self.ranks, 1)

    @property
    def slices(self) -> int:
        """Parts that an expert is cut into."""
        return max(self.ranks // self.experts, 1)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that rows can travel at."""
        return (0, *(r for r in range(1, self.slices + 1) if not self.slices % r))

    def copies(self, degree: int) -> int:
        """Return the copies of an expert at a degree of at least 1: each is ``degree`` ranks."""
        return self.slices // degree

    def peers(self, rank: int, degree: int) -> range:
        """Return the ranks that share their slices with a rank, itself among them."""
        if not degree:
            return range(self.ranks)
        size = self.copies(degree)
        start = rank // size * size
        return range(start, start + size) if self.slices > 1 else range(rank, rank + 1)

    def lanes(self, rank: int, degree: int) -> range:
        """Return the lanes that a rank serves; a lane's number is ``expert * copies + copy``."""
        if self.slices == 1:
            return range(rank * self.local, (rank + 1) * self.local)
        lane = rank // self.slices * self.copies(degree) + rank % self.slices % self.copies(degree)
        return range(lane, lane + 1)

    def check(self, degree: int) -> None:
        """Refuse a degree that the layout does not have.

        Raises:
            TightropeError: names those that it has.
        """
        if degree not in self.degrees:
            raise TightropeError(
                f"degree={degree}: {self.experts} experts on {self.ranks} ranks have the degrees "
                f"{', '.join(map(str, self.degrees))}."
            )


@dataclass(frozen=True)
class Traffic:
    """Rows of one step, and the rounds that they travel in.

    Attributes:
        layout: see there.
        degree: at least 1.
        counts: (W, E) rows of each rank by expert.
        parts: rounds at least: more overlap exchanges with products.
        most: rows that a rank receives in a round, at most.
        keep: rows that a rank keeps for the backward, at most; others are sent again.
    """

    layout: ExpertLayout
    degree: int
    counts: Counts
    parts: int
    most: int
    keep: int

    @cached_property
    def by_lane(self) -> Counts:
        """(W, lanes): rows of each rank by lane: those of an expert are split evenly over its copies."""
        copies = self.layout.copies(self.degree)
        bounds = self.counts[:, :, None] * np.arange(copies + 1) // copies
        split = np.diff(bounds, axis=2)
        turned = (np.arange(copies) + np.arange(len(self.counts))[:, None]) % copies
        taken = np.take_along_axis(split, np.broadcast_to(turned[:, None, :], split.shape), axis=2)
        return taken.reshape(len(self.counts), -1)

    @cached_property
    def rounds(self) -> int:
        """Number of rounds.

        Raises:
            TightropeError: a round cannot be as small as ``most``.
        """
        whole = int(self._arrive(self.by_lane).sum(0).max(initial=0))
        found = max(self.parts, math.ceil(whole / self.most), 1)
        longest = max(int(self.by_lane.max(initial=0)), 1)
        while int(self._in_rounds(found).sum(1).max(initial=0)) > self.most:
            if found >= longest:
                raise TightropeError(
                    f"most={self.most}: a round has up to a row of each rank and lane, "
                    f"{int(self._in_rounds(found).sum(1).max())} here. Give at least that."
                )
            found = min(found + max(found // 8, 1), longest)
        return found

    def _arrive(self, by_lane: Counts) -> Counts:
        """(..., from, lanes) to (..., from, to)."""
        every = [self.layout.lanes(rank, self.degree) for rank in range(self.layout.ranks)]
        return np.stack([by_lane[..., lanes.start : lanes.stop].sum(-1) for lanes in every], axis=-1)

    def _lanes_in_rounds(self, rounds: int) -> Counts:
        bounds = self.by_lane * np.arange(rounds + 1)[:, None, None] // rounds
        return np.diff(bounds, axis=0)

    def _in_rounds(self, rounds: int) -> Counts:
        return self._arrive(self._lanes_in_rounds(rounds))

    @cached_property
    def lanes_in_rounds(self) -> Counts:
        """(rounds, from, lanes)."""
        return self._lanes_in_rounds(self.rounds)

    @cached_property
    def matrices(self) -> Counts:
        """(rounds, from, to): rows that travel."""
        return self._arrive(self.lanes_in_rounds)

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """(rounds, to): whether a rank keeps the rows of a round."""
        found: NDArray[np.bool_] = self.matrices.sum(1).cumsum(0) <= self.keep
        return found

    def sent_again(self, at: int) -> Counts:
        """(from, to): rows of a round that the backward sends again."""
        return np.where(self.kept[at], 0, self.matrices[at])

    def rows_of(self, rank: int, at: int) -> Counts:
        """Return which of a rank's rows, sorted by expert, it sends in a round, in order of destination."""
        own, starts = self.by_lane[rank], np.concatenate([[0], self.by_lane[rank].cumsum()])
        first = own * at // self.rounds
        number = self.lanes_in_rounds[at, rank]
        wanted = [
            np.arange(starts[lane] + first[lane], starts[lane] + first[lane] + number[lane])
            for to in range(self.layout.ranks)
            for lane in self.layout.lanes(to, self.degree)
        ]
        return np.concatenate(wanted)

    def experts_of(self, rank: int, at: int) -> Counts:
        """Return the local expert of each row that arrives at a rank in a round, in order of arrival."""
        lanes = self.layout.lanes(rank, self.degree)
        arrived = self.lanes_in_rounds[at][:, lanes.start : lanes.stop]
        return np.repeat(np.tile(np.arange(len(lanes)), len(arrived)), arrived.reshape(-1))
