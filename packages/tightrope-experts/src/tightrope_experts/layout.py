"""Which rank holds what of which expert, and which rows go where in which round.

Idea        ``W`` ranks hold ``E`` experts at every degree: ``E / W`` whole ones each, or, where ranks are
            more, one of ``W / E`` slices. Degree 0 gathers all weights, and tokens stay. Degree ``r`` sends
            each row to ``r`` ranks. Each of them multiplies with ``1 / r`` of the expert, gathered from
            ``W / (E r)`` slices. Each rank derives the same rounds from the rows of all by expert.
            A lane is an expert and one of its copies; at degree 0 a rank has one for itself per expert.
Guarantee   No rank receives more than ``most`` rows in a round, and no lane loses a row. What a rank keeps
            for the backward are its first rounds, of at most ``keep`` rows.
Complexity  ``O(rounds W E)`` integers.
Gaps        Rows of an expert are spread over its copies evenly by number, not by the speed of a rank.
Source      Tutel (MLSys 2023): one layout for all strategies
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightrope.core import TightropeError

Counts = NDArray[np.int64]


def check_count(name: str, value: int, *, low: int) -> None:
    """Refuse what is not a whole number from ``low`` to 2**40, with a `TightropeError` that quotes it."""
    if not isinstance(value, int) or not low <= value <= 2**40:
        raise TightropeError(f"{name}={value}: give a whole number from {low} to 2**40.")


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """Experts over ranks; one of both numbers has to divide the other.

    Example:
        >>> ExpertLayout(8, 2).degrees, ExpertLayout(2, 8).degrees
        ((0, 1, 2, 4), (0, 1))
    """

    ranks: int  # W
    experts: int  # E

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
        """Return the copies of an expert, which are the slices that a rank multiplies as one."""
        return self.slices // max(degree, 1)

    def sharing(self, degree: int) -> int:
        """Return how many neighbouring ranks gather their weights with each other."""
        return self.copies(degree) if degree else self.ranks

    def lanes(self, rank: int, degree: int) -> slice:
        """Return the lanes that a rank serves; a lane's number is ``expert * copies + copy``."""
        if not degree:
            return slice(0, self.experts)
        lane = rank * self.local
        if self.slices > 1:
            lane = rank // self.slices * self.copies(degree) + rank % self.slices % self.copies(degree)
        return slice(lane, lane + self.local)


@dataclass(frozen=True)
class Sending:
    """How rows travel and are multiplied; every rank gives the same.

    Attributes:
        degree: see `tightrope_experts.layout`; all of them give the same results.
        parts: rounds at least, where rows travel: exchanges of one overlap products of another.
        most: rows that a rank receives in a round, at most.
        keep: rows that a rank keeps for the backward, at most; others are sent again.
        rows: multiplied at once, at most.
    """

    degree: int = 1
    parts: int = 1
    most: int = 1 << 16
    keep: int = 1 << 16
    rows: int = 1024

    def __post_init__(self) -> None:
        for name in ("degree", "parts", "most", "keep", "rows"):
            check_count(name, getattr(self, name), low=int(name not in ("degree", "keep")))


class Traffic:
    """Rows of one step, and the rounds that they travel in.

    Attributes:
        counts: (W, E) rows of each rank by expert.
        by_lane: (W, lanes) rows of each rank; those of an expert are split evenly over its copies.
        rounds: their number.
        in_rounds: (rounds, from, lanes).
        matrices: (rounds, from, to) rows that travel; at degree 0, from a rank to itself.
        kept: (rounds, to) whether a rank keeps the rows of a round.
        again: (rounds, from, to) rows that the backward sends again.

    Raises:
        TightropeError: the layout does not have the degree, or a round cannot be as small as ``most``.
    """

    def __init__(self, layout: ExpertLayout, counts: Counts, sending: Sending) -> None:
        if sending.degree not in layout.degrees:
            raise TightropeError(
                f"degree={sending.degree}: {layout.experts} experts on {layout.ranks} ranks "
                f"have the degrees {', '.join(map(str, layout.degrees))}."
            )
        self.layout, self.counts, self.sending, self.by_lane = layout, counts, sending, counts
        if sending.degree:
            copies, ranks = layout.copies(sending.degree), np.arange(layout.ranks)[:, None]
            split = np.diff(counts[:, :, None] * np.arange(copies + 1) // copies, axis=2)
            turned = split[ranks, :, (np.arange(copies) + ranks) % copies]
            self.by_lane = turned.swapaxes(1, 2).reshape(layout.ranks, -1)
        self.lanes = [
            layout.lanes(rank, sending.degree) for rank in range(layout.ranks if sending.degree else 1)
        ]
        self.rounds = self._fewest()
        self.in_rounds, self.matrices = self._divided(self.rounds)
        self.kept: NDArray[np.bool_] = self.matrices.sum(1).cumsum(0) <= sending.keep
        self.again: Counts = np.where(self.kept[:, None], 0, self.matrices)

    def _fewest(self) -> int:
        def largest(rounds: int) -> int:
            return int(self._divided(rounds)[1].sum(1).max(initial=0))

        most, longest = self.sending.most, max(int(self.by_lane.max(initial=0)), 1)
        found = max(self.sending.parts if self.sending.degree else 1, -(-largest(1) // most))
        while (rows := largest(found)) > most:
            if found >= longest:
                raise TightropeError(
                    f"most={most}: a round has up to a row of each rank and lane, {rows} here. "
                    "Give at least that."
                )
            found = min(found + max(found // 8, 1), longest)
        return found

    def _divided(self, rounds: int) -> tuple[Counts, Counts]:
        """Return rows of each rank by lane and by rank, for a number of rounds."""
        split = np.diff(self.by_lane * np.arange(rounds + 1)[:, None, None] // rounds, axis=0)
        if not self.sending.degree:
            return split, split.sum(-1, keepdims=True) * np.eye(self.layout.ranks, dtype=np.int64)
        return split, np.stack([split[..., one].sum(-1) for one in self.lanes], axis=-1)

    def rows_of(self, rank: int, at: int) -> Counts:
        """Return which of a rank's rows, sorted by expert, it sends in a round, in order of destination."""
        own, number = self.by_lane[rank], self.in_rounds[at, rank]
        first = own.cumsum() - own + own * at // self.rounds
        to = [lane for lanes in self.lanes for lane in range(lanes.start, lanes.stop)]
        return np.concatenate([first[lane] + np.arange(number[lane]) for lane in to])

    def experts_of(self, rank: int, at: int) -> Counts:
        """Return the local expert of each row that arrives at a rank in a round, in order of arrival."""
        senders = slice(None) if self.sending.degree else slice(rank, rank + 1)
        arrived = self.in_rounds[at][senders, self.layout.lanes(rank, self.sending.degree)]
        return np.repeat(np.tile(np.arange(arrived.shape[1]), len(arrived)), arrived.reshape(-1))
