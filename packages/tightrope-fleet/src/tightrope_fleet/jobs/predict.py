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

from tightrope_fleet.jobs.policies import Floats
from tightrope_fleet.values.work import WorkItem

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


def censored_lives(seen: Sequence[tuple[float, bool]]) -> Floats:
    """Give as many equally likely lifetimes as were seen, by the product-limit estimate.

    What is open counts for every longer lifetime alike; the longest one that was seen bounds all.

    Args:
        seen: lifetimes, and whether each is open: the job lasted at least so long.

    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958.

    >>> censored_lives([(4, False), (1, True), (8, False)]).tolist()
    [4.0, 4.0, 8.0]
    """
    if not any(is_open for _, is_open in seen):
        return np.sort(np.array([life for life, _ in seen], dtype=np.float64))
    ordered = sorted(seen)  # of equal lifetimes those that ended come first
    lives = np.array([life for life, _ in ordered], dtype=np.float64)
    ended = np.array([not is_open for _, is_open in ordered])
    left = 1 - ended / np.arange(len(lives), 0, -1)
    reached = 1 - np.cumprod(left)
    wanted = (np.arange(len(lives)) + 0.5) / len(lives)
    return lives[np.minimum(np.searchsorted(reached, wanted), len(lives) - 1)]


class LifetimeTable:
    """Distributions of lifetimes by features, learned from jobs that have ended, or last at least so long.

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
        self._seen: dict[tuple[Hashable, ...], list[tuple[float, bool]]] = {}
        self._lives: dict[tuple[Hashable, ...], Floats] = {}
        self._likely: dict[tuple[Hashable, ...], Floats] = {}

    def learn(
        self,
        items: Sequence[WorkItem],
        features: Sequence[tuple[Hashable, ...]],
        *,
        open: Sequence[bool] = (),
    ) -> None:
        """Take in jobs.

        Args:
            items: the jobs.
            features: of each.
            open: of each, whether it has not ended, and was last seen at its end; empty: all have ended.
        """
        found: dict[tuple[Hashable, ...], list[tuple[float, bool]]] = {(): []}
        for item, feature, is_open in zip(items, features, open or [False] * len(items), strict=True):
            for length in range(len(feature) + 1):
                found.setdefault(feature[:length], []).append((item.end - item.start, is_open))
        for group, lives in found.items():
            self._seen.setdefault(group, []).extend(lives)
            self._lives[group] = censored_lives(self._seen[group])
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
