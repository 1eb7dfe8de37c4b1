"""When will a job end? Predictions at arrival, and again once a job has outlived one.

Idea        A prediction is a distribution of ends: equally likely ones, whose median counts where one number
            is needed. Once a job of age `a` has outlived it, the median of those lifetimes that are longer
            than `a` follows. A table learns such distributions: jobs that have ended, by features, from the
            most specific group with enough of them to all. Where nothing is known of how long others went
            on, a job is taken to go on for as long again.
Source      Barbalho et al., "Virtual Machine Allocation with Lifetime Predictions", MLSys 2023, for
            predictions in placement; re-prediction as in LAVA, MLSys 2025. The table is our own.
Guarantee   A repeated prediction is later than now. Predictions use what the table was given alone.
Complexity  Learning O(n log n); a prediction O(groups + log n).
Gaps        No model beyond groups; features are what the caller gives.
"""

import math
import random
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from tightrope.core.work import WorkItem
from tightrope.fleet.jobs.policies import Floats

_ENOUGH = 30
_TAIL = 5
_LIKELY = 16


class LifePredictor(Protocol):
    """Says when jobs end."""

    def ends(self, position: int, item: WorkItem) -> Floats:
        """Give equally likely ends of a job that arrives, ascending; its own end is not to be looked at."""

    def again(self, position: int, item: WorkItem, now: int) -> float:
        """Predict once more, for a job that has outlived its prediction."""


class Oracle:
    """True ends, or true lifetimes times log-normal errors: for measuring, not for use.

    Args:
        items: the jobs.
        sigma: standard deviation of the error of the logarithm; 0 = the truth.
        seed: of the errors.
    """

    def __init__(self, items: Sequence[WorkItem], *, sigma: float = 0.0, seed: int = 0) -> None:
        draw = random.Random(seed)
        self._ends = [
            np.array(
                [item.start + (item.end - item.start) * math.exp(sigma * draw.gauss(0, 1) if sigma else 0)]
            )
            for item in items
        ]

    def ends(self, position: int, item: WorkItem) -> Floats:
        """Give the true end, with its error."""
        return self._ends[position]

    def again(self, position: int, item: WorkItem, now: int) -> float:
        """Expect a job to go on for as long again."""
        return now + max(1, now - item.start)


class LifetimeTable:
    """Distributions of lifetimes by features, learned from jobs that have ended.

    Args:
        features: of every job that will be asked about; each is a list, the last ones the most specific.

    Example:
        >>> jobs = [WorkItem("a", (1,), 0, 10), WorkItem("b", (1,), 5, 15), WorkItem("c", (1,), 20, 99)]
        >>> table = LifetimeTable([("x",)] * 3)
        >>> table.learn(jobs[:2], [("x",)] * 2)
        >>> float(table.ends(2, jobs[2])[0])
        30.0
    """

    def __init__(self, features: Sequence[tuple[Hashable, ...]]) -> None:
        self._features = features
        self._lives: dict[tuple[Hashable, ...], Floats] = {}
        self._likely: dict[tuple[Hashable, ...], Floats] = {}

    def learn(self, items: Sequence[WorkItem], features: Sequence[tuple[Hashable, ...]]) -> None:
        """Take in jobs that have ended."""
        found: dict[tuple[Hashable, ...], list[float]] = {(): []}
        for item, feature in zip(items, features, strict=True):
            for length in range(len(feature) + 1):
                found.setdefault(feature[:length], []).append(item.end - item.start)
        for group, lives in found.items():
            self._lives[group] = np.sort(np.append(self._lives.get(group, np.zeros(0)), lives))
            if size := len(self._lives[group]):
                middles = ((np.arange(_LIKELY) + 0.5) / _LIKELY * size).astype(np.int64)
                self._likely[group] = self._lives[group][middles]

    def ends(self, position: int, item: WorkItem) -> Floats:
        """Give likely ends from the most specific group that has enough jobs."""
        return item.start + self._likely.get(self._group(position, 0), np.ones(1))

    def again(self, position: int, item: WorkItem, now: int) -> float:
        """Predict from those jobs of the group that lived longer."""
        age = now - item.start
        lives = self._lives.get(self._group(position, age), np.zeros(0))
        longer = int(np.searchsorted(lives, age, side="right"))
        if len(lives) - longer < _TAIL:
            return now + max(1, age)
        return max(now + 1, item.start + float(lives[longer + (len(lives) - longer) // 2]))

    def _group(self, position: int, age: int) -> tuple[Hashable, ...]:
        feature = self._features[position]
        for length in range(len(feature), 0, -1):
            lives = self._lives.get(feature[:length])
            if lives is not None and len(lives) - np.searchsorted(lives, age, side="right") >= _ENOUGH:
                return feature[:length]
        return ()
