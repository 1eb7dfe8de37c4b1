"""Follow predictions as far as they have been right: the closest end, coarse steps, or none at all.

Idea        Every job that ends tells by what factor its first prediction was off. The spread of the last of
            these factors says which rule its predictions carry. Where they are nearly exact, the machine
            whose end is closest is best; where they are off by some factor, coarse steps are (`aligned`);
            where by more than that, best fit, which looks at none.
Source      Our own; the rules are those of `policies.py`. Measuring what predictions are worth is the idea
            of algorithms with predictions (Mitzenmacher, Vassilvitskii 2020).
Guarantee   Decides by jobs that have ended. No machine ever holds more than it has.
Complexity  As `JobPlacer`, and O(log n) per end; a median of at most 256 numbers every 64 ends.
Gaps        Jobs that still run tell nothing, so a predictor that is wrong about long jobs alone is believed
            for too long. One spread for all jobs.
"""

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Final

from tightrope_fleet.jobs.placer import JobPlacer
from tightrope_fleet.jobs.predict import LifePredictor
from tightrope_fleet.values.work import WorkItem

BOUNDS: Final = ((0.3, "gap"), (1.5, "aligned"))
"""Spread of the factors' logarithms below which a rule is followed; best fit beyond. Set on made-up jobs of
the seeds 0 to 2: at 0.25 the closest end gains as much as steps, at 1 steps gain, at 2 they may lose."""
_START: Final = "best-fit"
_REMEMBERED: Final = 256
_ENOUGH: Final = 64
_NORMAL: Final = 1.4826
"""Standard deviation over median distance, of a normal distribution."""


class TrustingPlacer:
    """Place jobs by the rule that the predictions so far deserve.

    Args:
        capacity: of every machine, per resource.
        predictor: of ends.
        again: predict machines that have outlived their end once more.
        most_hosts: machines that there are; 0 = as many as it takes.
    """

    def __init__(
        self, capacity: Sequence[int], *, predictor: LifePredictor, again: bool = True, most_hosts: int = 0
    ) -> None:
        self._placer = JobPlacer(
            capacity, rule="aligned", predictor=predictor, again=again, most_hosts=most_hosts
        )
        self._placer.follow(_START)
        self._predictor = predictor
        self._running: list[tuple[int, int, float]] = []
        self._factors = deque[float](maxlen=_REMEMBERED)
        self._ended = 0

    @property
    def num_used(self) -> int:
        """Machines that hold a job."""
        return self._placer.num_used

    def place(self, position: int, item: WorkItem) -> int:
        """Choose a machine for a job that starts now; -1 where there is none."""
        self._learn(item.start)
        ends = self._predictor.ends(position, item)
        predicted = max(float(ends[len(ends) // 2]) - item.start, 1.0)
        host = self._placer.place(position, item)
        if host >= 0:
            factor = abs(math.log(max(item.end - item.start, 1) / predicted))
            heapq.heappush(self._running, (item.end, position, factor))
        return host

    def _learn(self, now: int) -> None:
        """Take in the jobs that have ended; follow another rule where that is due."""
        before = self._ended // _ENOUGH
        while self._running and self._running[0][0] <= now:
            self._factors.append(heapq.heappop(self._running)[2])
            self._ended += 1
        if self._ended // _ENOUGH > before:
            self._placer.follow(rule_for(_NORMAL * statistics.median(self._factors)))


def rule_for(spread: float) -> str:
    """Name the rule that predictions of that spread carry.

    >>> rule_for(0.1), rule_for(1.0), rule_for(3.0)
    ('gap', 'aligned', 'best-fit')
    """
    return next((rule for bound, rule in BOUNDS if spread < bound), "best-fit")
