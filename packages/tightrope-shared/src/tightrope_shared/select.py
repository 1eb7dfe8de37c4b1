"""Pick the best of several candidates when every measurement is noisy, with few of them.

Idea        A belief per candidate: what a model predicted (the proxy), shrunk towards what was measured, as
            far as the noise allows. The leader and whoever may yet beat it are measured again, until the
            chance that anybody is better by more than a tolerance is small. The least measurement is never
            the answer: of many noisy ones it is the luckiest.
Source      Khodak et al., On Noisy Evaluation in Federated Hyperparameter Tuning (MLSys 2023): noise,
            proxies; Russo, Simple Bayesian Algorithms for Best-Arm Identification (2016): the two that are
            measured.
Guarantee   What is measured, when it stops and what is chosen follow from the values told, and nothing else.
            If noise and prediction errors are as the beliefs say, the choice is within the tolerance with the
            stated confidence.
Complexity  O(candidates) per measurement, plus a median over its own measurements.
Gaps        Noise is pooled over candidates; drifts over time are not modelled: ask for measurements in turns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tightrope.core.errors import TightropeError
from tightrope.core.units import is_whole, shown

_MEDIAN: Final = 1.57
"""Variance of a median over that of a mean."""
_NORMAL: Final = 1.4826
_NODES: Final = (
    (0.0, 8 / 15),
    *((sign * 1.3556261799742659, 0.22207592200561266) for sign in (-1, 1)),
    *((sign * 2.8569700138728056, 0.011257411327720689) for sign in (-1, 1)),
)
"""Places of a standard normal variable and their weights."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of one candidate.

    Attributes:
        mean: expected value; lower is better.
        sd: of that expectation.
        looks: measurements so far.
    """

    mean: float
    sd: float
    looks: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and how sure that is.

    Attributes:
        candidate: its number.
        belief: of it.
        confidence: chance that nobody is better by more than the tolerance, at least.
        regret_bound: how much better another one may be, at 95 %.
        looks: measurements of all candidates together.
    """

    candidate: int
    belief: Belief
    confidence: float
    regret_bound: float
    looks: int


@dataclass(slots=True)
class Selector:
    """Ask what to measure, tell what came of it, choose.

    Args:
        candidates: how many there are.
        prior: predicted values; None = nothing is known.
        prior_sd: of predictions around the truth, in the unit of the values.
        noise_sd: of one measurement, until it is learnt from repeated ones.
        tolerance: how much worse the choice may be.
        confidence: at which to stop.
        max_looks: measurements at most.
        logs: values are positive, and errors relative: 0.02 is two percent.

    Example:
        >>> times = [3.0, 1.0, 2.0]
        >>> selector = Selector(3, noise_sd=0.01, logs=True, max_looks=30)
        >>> while (candidate := selector.ask()) is not None:
        ...     selector.tell(candidate, times[candidate])
        >>> selector.choose().candidate, selector.choose().looks <= 9
        (1, True)
    """

    candidates: int
    prior: Sequence[float] | None = None
    prior_sd: float = math.inf
    noise_sd: float = 0.05
    tolerance: float = 0.02
    confidence: float = 0.95
    max_looks: int = 1000
    logs: bool = False
    _seen: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        if not is_whole(self.candidates) or self.candidates < 1:
            raise TightropeError(f"candidates={shown(self.candidates)}: give one or more.")
        if self.prior is not None and len(self.prior) != self.candidates:
            raise TightropeError(
                f"{len(self.prior)} predictions for {self.candidates} candidates: give one each."
            )
        for name in ("noise_sd", "tolerance", "prior_sd"):
            value = getattr(self, name)
            if not value > 0 or (math.isinf(value) and name != "prior_sd"):  # inf: nothing is predicted
                raise TightropeError(f"{name}={shown(value)}: give a number above 0.")
        if not 0.5 <= self.confidence < 1:
            raise TightropeError(f"confidence={shown(self.confidence)}: give a number from 0.5 to below 1.")
        self._seen = [[] for _ in range(self.candidates)]

    def ask(self) -> int | None:
        """Number of the candidate to measure next; None once that is enough."""
        if sum(map(len, self._seen)) >= self.max_looks:
            return None
        beliefs = self.beliefs()
        leader = min(range(self.candidates), key=lambda c: (beliefs[c].mean, c))
        chance = self._chances(beliefs, leader)
        if self._seen[leader] and self._sure(beliefs, leader, chance):
            return None
        challenger = max(range(self.candidates), key=lambda c: (chance[c], -c))
        if not self._seen[leader] or self.candidates == 1:
            return leader
        return leader if beliefs[leader].sd > beliefs[challenger].sd else challenger

    def tell(self, candidate: int, value: float) -> None:
        """Take a measurement.

        Raises:
            TightropeError: no such candidate, or no finite (with ``logs`` positive) value.
        """
        if not is_whole(candidate) or not 0 <= candidate < self.candidates:
            raise TightropeError(f"candidate {shown(candidate)}: there are 0 to {self.candidates - 1}.")
        if not math.isfinite(value) or (self.logs and value <= 0):
            raise TightropeError(
                f"candidate {candidate}: the value {shown(value)} is not a "
                f"finite{' positive' * self.logs} number."
            )
        self._seen[candidate].append(math.log(value) if self.logs else float(value))

    def beliefs(self) -> list[Belief]:
        """What is known of every candidate, in logarithms with ``logs``."""
        noise, predicted = self.noise(), self._predictions()
        found = []
        for c, values in enumerate(self._seen):
            mean, variance = predicted[c]
            if values:
                error = self._error(values, noise, mean, variance)
                weight = 1.0 if math.isinf(variance) else variance / (variance + error)
                old = 0.0 if math.isinf(mean) else mean
                mean, variance = old + weight * (_middle(values) - old), weight * error
            found.append(Belief(mean, math.sqrt(variance), len(values)))
        return found

    def _error(self, values: list[float], noise: float, mean: float, variance: float) -> float:
        """Variance of the median of one candidate's measurements.

        One that is far from what was expected may be an outlier, and two that differ may hold one: until
        there are three, that counts as noise, so that it is measured again instead of believed.
        """
        apart = 0.0
        if len(values) == 2:
            apart = abs(values[0] - values[1]) / 2
        elif len(values) == 1 and math.isfinite(variance):
            apart = (
                abs(values[0] - mean)
                if abs(values[0] - mean) > 3 * math.hypot(noise, math.sqrt(variance))
                else 0
            )
        return float(max(noise, apart) ** 2 * (_MEDIAN if len(values) > 2 else 1.0) / len(values))

    def noise(self) -> float:
        """Standard deviation of one measurement: as given, until repeated ones tell."""
        apart = [abs(v - _middle(values)) for values in self._seen if len(values) > 1 for v in values]
        repeats = sum(len(values) - 1 for values in self._seen if values)
        if repeats < 3:
            return self.noise_sd
        learnt = _NORMAL * _middle(apart) * math.sqrt(len(apart) / repeats)
        return (self.noise_sd * 3 + max(learnt, self.noise_sd / 10) * repeats) / (3 + repeats)

    def choose(self) -> Selection:
        """Choose, after any number of measurements.

        Raises:
            TightropeError: nothing was predicted and nothing measured.
        """
        beliefs = self.beliefs()
        known = [c for c in range(self.candidates) if math.isfinite(beliefs[c].mean)]
        if not known:
            raise TightropeError("nothing was predicted and nothing measured: tell at least one value.")
        best = min(known, key=lambda c: (beliefs[c].mean, c))
        doubt = self._doubt(beliefs, best, self._chances(beliefs, best))
        top = beliefs[best].mean + 1.96 * beliefs[best].sd
        bound = max([0.0] + [top - b.mean + 1.96 * b.sd for c, b in enumerate(beliefs) if c != best])
        looks = sum(map(len, self._seen))
        return Selection(best, beliefs[best], max(1.0 - doubt, 0.0), bound, looks)

    def _predictions(self) -> list[tuple[float, float]]:
        """Expected value and variance of every candidate before its own measurements.

        Predictions are shrunk towards their mean by the part of their spread that their own errors explain:
        the best prediction of many is a lucky one. How far is known from the predictions alone, and the fewer
        they are the less well, which makes variances larger (Morris 1983, equations 1.15 to 1.18). What all
        predictions are off by is learnt from what was measured.
        """
        if self.prior is None:
            return [(-math.inf, math.inf)] * self.candidates
        raw = [math.log(value) if self.logs else float(value) for value in self.prior]
        if math.isinf(self.prior_sd):
            return [(value, math.inf) for value in raw]
        count, error = len(raw), self.prior_sd**2
        mean = sum(raw) / count
        apart = [(value - mean) ** 2 for value in raw]
        whole, lost = math.fsum(apart), 0.0
        if count > 3 and whole:
            lost = (count - 3) / (count - 1) * min(error * (count - 1) / whole, 1.0)
        means = [mean + (1 - lost) * (value - mean) for value in raw]
        spare = 2 * lost**2 / max(count - 3, 1)
        variances = [error * (1 - (count - 1) / count * lost) + spare * one for one in apart]
        off = [_middle(values) - means[c] for c, values in enumerate(self._seen) if values]
        shift = _middle(off) * len(off) / (len(off) + 3) if off else 0.0
        return [(value + shift, one) for value, one in zip(means, variances, strict=True)]

    def _sure(self, beliefs: list[Belief], leader: int, chance: list[float]) -> bool:
        """Whether the chance that somebody is better by more than the tolerance is small enough."""
        allowed = 1 - self.confidence
        if max(chance) > allowed:
            return False
        return sum(chance) <= allowed or self._doubt(beliefs, leader, chance) <= allowed

    def _doubt(self, beliefs: list[Belief], leader: int, chance: list[float]) -> float:
        """Chance that somebody is better than the leader by more than the tolerance.

        Others are likelier to be better, and all at once, where the leader itself turns out worse; given
        what the leader is, they are independent. So this is a mean over five values of the leader (the rule
        of Gauss and Hermite).
        """
        if max(chance) >= 1.0 or not math.isfinite(beliefs[leader].mean):
            return 1.0
        best, nobody = beliefs[leader], 0.0
        for at, weight in _NODES:
            value, alone = best.mean + at * best.sd - self.tolerance, 1.0
            for c, belief in enumerate(beliefs):
                if c != leader:
                    alone *= 1 - _below((value - belief.mean) / belief.sd if belief.sd else -math.inf)
            nobody += weight * alone
        return min(max(1.0 - nobody, max(chance)), sum(chance))

    def _chances(self, beliefs: list[Belief], leader: int) -> list[float]:
        """Chance of every candidate to be better than the leader by more than the tolerance."""
        best, chances = beliefs[leader], []
        for c, belief in enumerate(beliefs):
            if c == leader:
                chances.append(0.0)
            elif math.isinf(belief.sd):
                chances.append(1.0)
            else:
                sd = math.hypot(belief.sd, best.sd)
                chances.append(_below((best.mean - belief.mean - self.tolerance) / sd if sd else -math.inf))
        return chances


def _middle(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def shrink(values: Sequence[float], noise_sd: float, prior: Sequence[float] | None = None) -> list[float]:
    """Move measurements towards their mean, or towards a fitted prediction, as far as they are noise.

    With a prediction, a line is fitted to the measurements first. The share that is kept is the spread that
    noise does not explain over the whole one (empirical Bayes), at least 5 %.

    >>> shrink([0.0, 1.0], noise_sd=10.0)
    [0.475, 0.525]
    """
    count = len(values)
    mean = sum(values) / count
    line = [mean] * count
    if prior is not None and count > 2:
        middle = sum(prior) / count
        across = sum((p - middle) ** 2 for p in prior)
        slope = (
            sum((p - middle) * (v - mean) for p, v in zip(prior, values, strict=True)) / across
            if across
            else 0
        )
        line = [mean + max(slope, 0.0) * (p - middle) for p in prior]
    whole = sum((v - at) ** 2 for v, at in zip(values, line, strict=True)) / max(count - 1, 1)
    kept = min(max(1 - noise_sd**2 / whole, 0.05), 1.0) if whole else 1.0
    return [at + kept * (v - at) for v, at in zip(values, line, strict=True)]
