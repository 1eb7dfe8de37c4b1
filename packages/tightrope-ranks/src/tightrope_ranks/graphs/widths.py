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

import numpy as np

from tightrope.core import TightropeError
from tightrope_ranks.compress.rows import row_bytes
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
    ends = min(problem.widths), max(problem.widths)
    low, high = (measure(problem, np.full(len(problem.beta), bits, np.uint8)) for bits in ends)
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
    for name in ("beta", "rows", "latency", "pace"):
        values = getattr(problem, name)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise TightropeError(f"{name} of the widths has a value that is negative or not finite.")
    if not 0 < problem.weight < 1:
        raise TightropeError(f"weight {problem.weight!r} is not between 0 and 1: error against time.")
    hull = _hull(problem)
    bits = np.full(len(problem.beta), hull[0][0], np.uint8)
    v0, v1, t0, t1 = scales(problem)
    per_variance, per_second = problem.weight / v1, (1 - problem.weight) / t1
    bound = -per_variance * v0 - per_second * t0
    for number in np.unique(problem.round):
        links = [_Link(problem, int(link), hull) for link in np.flatnonzero(problem.round == number)]
        bound += _round(links, per_variance, per_second, bits)
    variance, seconds = measure(problem, bits)
    found = objective(problem, bits)
    return WidthChoice(bits, found, min(found, max(0.0, bound)), variance, seconds)


def _parts(bits: np.ndarray) -> np.ndarray:
    return np.where(bits == 32, 0.0, 1 / (2.0 ** np.minimum(bits, 31) - 1) ** 2)


def _hull(problem: WidthProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the widths on the lower hull of a row, from the fewest bytes on: bits, bytes, part of beta."""
    bits = np.array(sorted(problem.widths))
    bits = bits[np.argsort(row_bytes(problem.columns, bits), kind="stable")]
    size, part = row_bytes(problem.columns, bits), _parts(bits)
    hull = [0]
    while hull[-1] < len(bits) - 1:
        at = hull[-1]
        slope = (part[at] - part[at + 1 :]) / np.maximum(size[at + 1 :] - size[at], 1e-9)
        if slope.max() <= 0:
            break
        hull.append(at + 1 + int(slope.argmax()))
    return bits[hull], size[hull], part[hull]


class _Link:
    """The steps of one link in the order of what they are worth, and what is reached behind each."""

    def __init__(self, problem: WidthProblem, link: int, hull: Sequence[np.ndarray]) -> None:
        own, (bits, size, part) = np.flatnonzero(problem.link == link), hull
        rows, beta = problem.rows[own], problem.beta[own]
        more, less = np.outer(np.diff(size), rows).ravel(), np.outer(-np.diff(part), beta).ravel()
        order = np.argsort(-less / np.maximum(more, 1e-9), kind="stable")
        self.groups, self.bits = np.tile(own, len(bits) - 1)[order], np.repeat(bits[1:], len(own))[order]
        sizes = float(rows.sum() * size[0]) + np.concatenate([[0.0], np.cumsum(more[order])])
        self.times = problem.latency[link] + problem.pace[link] * sizes
        self.variance = float(beta.sum() * part[0]) - np.concatenate([[0.0], np.cumsum(less[order])])

    def reached(self, times: np.ndarray) -> np.ndarray:
        """Count the steps that fit in each time."""
        return np.searchsorted(self.times, times * (1 + 1e-12), side="right") - 1


def _round(links: Sequence[_Link], per_variance: float, per_second: float, bits: np.ndarray) -> float:
    """Choose the bits of a round's groups; give the bound of what it adds to the objective."""
    least = max(float(link.times[0]) for link in links)
    times = np.unique(np.maximum(np.concatenate([link.times for link in links]), least))
    relaxed = whole = per_second * times
    for link in links:
        relaxed = relaxed + per_variance * np.interp(times, link.times, link.variance)
        whole = whole + per_variance * link.variance[link.reached(times)]
    best = times[whole.argmin()]
    for link in links:
        steps = slice(int(link.reached(best)))  # of a group's steps the last one holds
        bits[link.groups[steps]] = link.bits[steps]
    return float(relaxed.min())
