"""Choose how many bits the rows of each message get: error against time.

Idea        A round of messages ends when its slowest link is through. For a time of the round, each link
            takes the steps to more bits that lower the error most per byte, as far as they fit. The best time
            is found among all at which a step just fits.
Source      The problem: Wan et al., MLSys 2023 (AdaQP). Steps on the convex hull: Sinha & Zoltners,
            Operations Research 1979 (multiple-choice knapsack).
Guarantee   `WidthChoice.bound` is the optimum of the linear relaxation. No choice is below; the objective is
            above it by at most one step a link. Equal problems get equal choices.
Complexity  O(G log G + T L log G) for G groups, L links and T times.
Gaps        A group counts for the link of its sender alone.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tightrope.core import TightropeError
from tightrope_ranks.graphs.rows import row_bytes
from tightrope_ranks.values.graphs import WidthChoice, WidthProblem


def measure(problem: WidthProblem, bits: np.ndarray) -> tuple[float, float]:
    """Give the variance and the seconds of a choice."""
    variance = float((problem.beta * _parts(bits)).sum())
    size = (problem.rows * row_bytes(problem.columns, bits)).astype(np.float64)
    links = problem.latency + problem.pace * np.bincount(problem.link, size, minlength=len(problem.round))
    ends = np.zeros(int(problem.round.max(initial=-1)) + 1)
    np.maximum.at(ends, problem.round, links)
    return variance, float(ends.sum())


def scales(problem: WidthProblem) -> tuple[float, float, float, float]:
    """Give the smallest variance and what a choice can add, and likewise of the seconds."""
    low, high = (
        measure(problem, np.full(len(problem.beta), bits, np.uint8))
        for bits in (min(problem.widths), max(problem.widths))
    )
    return high[0], max(low[0] - high[0], 1e-300), low[1], max(high[1] - low[1], 1e-300)


def objective(problem: WidthProblem, bits: np.ndarray) -> float:
    """Weigh the variance and the seconds of a choice, each in parts of what a choice can change."""
    (variance, seconds), (v0, v1, t0, t1) = measure(problem, bits), scales(problem)
    return problem.weight * (variance - v0) / v1 + (1 - problem.weight) * (seconds - t0) / t1


def choose_widths(problem: WidthProblem) -> WidthChoice:
    """Choose bits for each group.

    Raises:
        TightropeError: a number is not finite or negative, or the weight is not within (0, 1).

    Example:
        >>> one = np.zeros(2, np.int64)
        >>> problem = WidthProblem(
        ...     np.array([1.0, 1e-4]), np.array([5, 5]), 64, one, one[:1], np.zeros(1), np.full(1, 1e-6)
        ... )
        >>> choose_widths(problem).bits.tolist()
        [4, 2]
    """
    _check(problem)
    bits = np.full(len(problem.beta), _first(problem), np.uint8)
    v0, v1, t0, t1 = scales(problem)
    per_variance, per_second = problem.weight / v1, (1 - problem.weight) / t1
    bound = -per_variance * v0 - per_second * t0
    steps = _steps(problem)
    for number in np.unique(problem.round):
        links = [_Link(problem, int(link), steps) for link in np.flatnonzero(problem.round == number)]
        bound += _round(links, per_variance, per_second, bits)
    variance, seconds = measure(problem, bits)
    found = objective(problem, bits)
    return WidthChoice(bits, found, min(found, max(0.0, bound)), variance, seconds)


def _parts(bits: np.ndarray) -> np.ndarray:
    return np.where(bits == 32, 0.0, 1 / (2.0 ** np.minimum(bits, 31) - 1) ** 2)


def _first(problem: WidthProblem) -> int:
    """Give the width that takes the fewest bytes: floats where a row has one number."""
    return min(sorted(problem.widths), key=lambda bits: int(row_bytes(problem.columns, bits)))


def _check(problem: WidthProblem) -> None:
    for name in ("beta", "rows", "latency", "pace"):
        values = getattr(problem, name)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise TightropeError(f"{name} of the widths has a value that is negative or not finite.")
    if not 0 < problem.weight < 1:
        raise TightropeError(
            f"weight {problem.weight!r} is not between 0 and 1: it weighs error against time."
        )


def _steps(problem: WidthProblem) -> tuple[np.ndarray, ...]:
    """List the steps on each group's lower hull: group, bits behind it, bytes, variance taken away."""
    widths = np.array(sorted(problem.widths))
    order = np.argsort(row_bytes(problem.columns, widths), kind="stable")
    size, part = row_bytes(problem.columns, widths)[order], _parts(widths)[order]
    hull = [0]
    while hull[-1] < len(widths) - 1:
        at = hull[-1]
        slope = [(part[at] - part[k]) / max(size[k] - size[at], 1e-9) for k in range(at + 1, len(widths))]
        if max(slope) <= 0:
            break
        hull.append(at + 1 + int(np.argmax(slope)))
    groups = np.arange(len(problem.beta))
    found = [(groups[:0], groups[:0], groups[:0], problem.beta[:0])]
    for a, b in pairwise(hull):
        bits = np.full(len(groups), widths[order][b])
        found.append((groups, bits, problem.rows * (size[b] - size[a]), problem.beta * (part[a] - part[b])))
    return tuple(np.concatenate([one[k] for one in found]) for k in range(4))


class _Link:
    """The steps of one link in the order of what they are worth, and what is reached behind each."""

    def __init__(self, problem: WidthProblem, link: int, steps: Sequence[np.ndarray]) -> None:
        groups, bits, size, less = steps
        mine = np.flatnonzero(problem.link[groups] == link)
        worth = less[mine] / np.maximum(size[mine], 1e-9)
        order = mine[np.argsort(-worth, kind="stable")]
        self.groups, self.bits = groups[order], bits[order]
        pace = float(problem.pace[link])
        own = problem.link == link
        first = row_bytes(problem.columns, _first(problem))
        start = problem.latency[link] + pace * float((problem.rows[own] * first).sum())
        self.times = start + pace * np.concatenate([[0.0], np.cumsum(size[order])])
        all_ = float((problem.beta[own] * _parts(np.array(_first(problem)))).sum())
        self.variance = all_ - np.concatenate([[0.0], np.cumsum(less[order])])

    def reached(self, times: np.ndarray) -> np.ndarray:
        """Count the steps that fit in each time."""
        return np.searchsorted(self.times, times * (1 + 1e-12), side="right") - 1


def _round(links: Sequence[_Link], per_variance: float, per_second: float, bits: np.ndarray) -> float:
    """Choose the bits of a round's groups; give the bound of what it adds to the objective."""
    least = max(float(link.times[0]) for link in links)
    times = np.unique(
        np.concatenate([np.array([least]), *(link.times[link.times > least] for link in links)])
    )
    relaxed, whole = per_second * times, per_second * times
    for link in links:
        relaxed = relaxed + per_variance * np.interp(times, link.times, link.variance)
        whole = whole + per_variance * link.variance[link.reached(times)]
    best = times[whole.argmin()]
    for link in links:
        for step in range(int(link.reached(best))):
            bits[link.groups[step]] = link.bits[step]
    return float(relaxed.min())
