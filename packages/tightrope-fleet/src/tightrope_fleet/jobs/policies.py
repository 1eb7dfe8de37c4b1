"""Which machine a job goes to: rules, each a few lines.

A rule ranks the machines that have room and names one of them. All times are in seconds.

first-fit   the machine in use the longest
best-fit    the machine with the least room left, summed over resources as shares of a machine
aligned     the machine whose life the job lengthens least, in coarse steps; among equals, best fit
expected    like aligned, with the mean over the job's distribution, in steps of an hour
gap         like aligned, but among equals the machine whose end is closest: not robust, for comparison
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
STEPS: Final = np.array([3600.0, 6 * 3600.0, 86400.0, 4 * 86400.0, 14 * 86400.0])
"""Bounds of the steps: an hour, six hours, a day, four days, two weeks. An error
within a step changes nothing, which is what makes `aligned` robust."""
HOUR: Final = 3600.0
Rule: TypeAlias = Callable[[Floats, Floats, Floats, Floats], int]
"""Given, per machine with room: when it came into use, the room left, its predicted end (at least now); and
equally likely ends of the job, ascending. Returns a position."""


def first_fit(opened: Floats, left: Floats, ends: Floats, job: Floats) -> int:
    """Take the machine in use the longest."""
    return int(np.argmin(opened))


def best_fit(opened: Floats, left: Floats, ends: Floats, job: Floats) -> int:
    """Take the machine with the least room left."""
    return int(np.argmin(left))


def aligned(opened: Floats, left: Floats, ends: Floats, job: Floats) -> int:
    """Take the machine whose life grows least, in steps; then best fit."""
    steps = _steps(ends, job)
    return int(np.argmin(np.where(steps == steps.min(), left, np.inf)))


def expected(opened: Floats, left: Floats, ends: Floats, job: Floats) -> int:
    """Take a machine whose life grows by less than an hour on average, if there is one; then best fit."""
    steps = np.maximum(0.0, job[None, :] - ends[:, None]).mean(axis=1) >= HOUR
    return int(np.argmin(np.where(steps == steps.min(), left, np.inf)))


def gap(opened: Floats, left: Floats, ends: Floats, job: Floats) -> int:
    """Take the machine whose life grows least, in steps; then the closest end."""
    steps = _steps(ends, job)
    return int(np.argmin(np.where(steps == steps.min(), np.abs(ends - job[len(job) // 2]), np.inf)))


def _steps(ends: Floats, job: Floats) -> NDArray[np.int64]:
    longer = job[len(job) // 2] - ends
    return np.where(longer <= 0, -1, np.searchsorted(STEPS, longer, side="right"))


RULES: dict[str, Rule] = {
    "first-fit": first_fit,
    "best-fit": best_fit,
    "aligned": aligned,
    "expected": expected,
    "gap": gap,
}
PREDICTING: Final = ("aligned", "expected", "gap")
"""Rules that look at predicted ends."""
HEDGED: Final = "hedged"
TRUSTING: Final = "trusting"
WATCHING: Final = (HEDGED, TRUSTING)
"""Ways that choose among rules as jobs come; see `place.py` and `trust.py`."""
