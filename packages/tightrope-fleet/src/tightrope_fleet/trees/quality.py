"""How good answers are."""

import numpy as np

from tightrope.core.errors import TightropeError
from tightrope_fleet.trees.bins import Floats


def auc(labels: Floats, score: Floats) -> float:
    """Chance that a row with label 1 has a larger score than one with label 0; ties count half.

    >>> auc(np.array([0.0, 1.0, 1.0]), np.array([0.2, 0.2, 0.9]))
    0.75
    """
    ones = labels > 0.5
    if ones.all() or not ones.any():
        raise TightropeError("all labels are equal: there is no AUC.")
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    num = int(ones.sum())
    return float((ranks[ones].sum() - num * (num + 1) / 2) / (num * (len(labels) - num)))


def root_mean_square(labels: Floats, score: Floats) -> float:
    """Root of the mean square error."""
    return float(np.sqrt(np.mean((labels - score) ** 2)))
