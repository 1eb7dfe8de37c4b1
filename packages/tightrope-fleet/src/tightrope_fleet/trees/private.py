"""Differential privacy for trees, with a ledger of what every choice spends.

Idea        Every tree gets an equal part of epsilon. Half of it goes to the leaves, by the Laplace mechanism;
            half is divided over the levels, where a split is drawn by the exponential mechanism. Nodes of one
            level have different rows, so they spend in parallel; levels, leaves and trees spend in sequence.
Source      Li et al., Privacy-Preserving Gradient Boosting Decision Trees (AAAI 2020); FedTree (MLSys 2023).
Guarantee   Epsilon-differential privacy of the forest for adding or removing one row, given: first
            derivatives clipped to [-clip, clip], second derivatives of 1, cuts from public ranges, no stop
            that depends on rows. The ledger adds up to epsilon exactly. Epsilon = infinity gives the forest
            of the same settings without noise, to the last bit.
Complexity  As without.
Gaps        The number of rows is public. The noise is of floats: attacks on their last bits are not defended
            against. Draws come from a seeded generator, so that a run can be repeated: use a secret seed
            where it counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.units import shown
from tightrope_fleet.trees.bins import Floats
from tightrope_fleet.trees.params import Boosting


@dataclass(frozen=True, slots=True)
class Privacy:
    """What is promised to every row.

    Attributes:
        epsilon: of the whole forest; infinity adds no noise.
        ranges: public least and largest value, one pair for all features or one per feature.
        clip: bound on first derivatives.
        seed: of the noise.
    """

    epsilon: float
    ranges: tuple[tuple[float, float], ...]
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise TightropeError(f"epsilon={shown(self.epsilon)}: give a number above 0; inf adds no noise.")
        if not self.ranges or any(not low < high for low, high in self.ranges):
            raise TightropeError(
                f"ranges={shown(self.ranges)}: give the public range of the features, (least, largest): cuts "
                "that follow the rows would tell about them."
            )

    def ranges_for(self, width: int) -> Sequence[tuple[float, float]]:
        """One range per feature."""
        if len(self.ranges) not in (1, width):
            raise TightropeError(
                f"{len(self.ranges)} ranges for {width} features: give one, or one per feature."
            )
        return self.ranges * (width if len(self.ranges) == 1 else 1)


@dataclass(frozen=True, slots=True)
class Spent:
    """A line of the ledger.

    Attributes:
        tree: which tree.
        what: ``level 0`` ... or ``leaves``.
        epsilon: what it spends.
        scale: of the noise.
    """

    tree: int
    what: str
    epsilon: float
    scale: float


@dataclass(slots=True)
class PrivateChoice:
    """Draws splits and leaves, and writes down what that spends.

    Raises:
        TightropeError: growth by leaf, or second derivatives that are not 1: nothing is known of those.
    """

    privacy: Privacy
    params: Boosting
    ledger: list[Spent] = field(default_factory=list)
    _random: np.random.Generator = field(init=False)
    _tree: int = -1
    _level: int = 0

    def __post_init__(self) -> None:
        p = self.params
        if p.loss == "softmax" or p.stop or p.min_rows > 1:
            raise TightropeError(
                "differential privacy holds for two classes or a number, without early stopping or a "
                "smallest number of rows. Leave out loss='softmax', stop and min_rows."
            )
        if p.leaves or p.hessian != "one" or p.l2 <= 0 or p.child_weight > 0 or p.gamma > 0:
            raise TightropeError(
                "differential privacy holds for leaves=0, hessian='one', l2 above 0, child_weight=0 "
                f"and gamma=0. The settings are leaves={p.leaves}, hessian={p.hessian!r}, l2={p.l2:g}, "
                f"child_weight={p.child_weight:g} and gamma={p.gamma:g}."
            )
        self._random = np.random.default_rng(self.privacy.seed)

    def begin_tree(self) -> None:
        """Start the ledger of the next tree."""
        self._tree, self._level = self._tree + 1, 0

    @property
    def per_level(self) -> float:
        """Epsilon of one level of one tree."""
        return self.privacy.epsilon / self.params.trees / 2 / self.params.depth

    @property
    def per_leaf(self) -> float:
        """Epsilon of the leaves of one tree."""
        return self.privacy.epsilon / self.params.trees / 2

    @property
    def gain_sensitivity(self) -> float:
        """Most that one row changes a score, see `score_of`: three times the squared bound."""
        return 3.0 * self.privacy.clip**2

    @property
    def leaf_sensitivity(self) -> float:
        """Most that one row changes the value of a leaf: the bound on derivatives over 1 + l2."""
        return self.privacy.clip / (1.0 + self.params.l2)

    def choose(self, gain: Floats) -> NDArray[np.intp]:
        """Draw a candidate per node with weight exp(epsilon gain / 2 sensitivity)."""
        if self._level >= self.params.depth:  # children of the last level are not split
            return np.zeros(len(gain), np.intp)
        scale = 2.0 * self.gain_sensitivity / self.per_level
        self.ledger.append(Spent(self._tree, f"level {self._level}", self.per_level, scale))
        self._level += 1
        if np.isinf(self.privacy.epsilon):
            return np.asarray(gain.argmax(axis=1), np.intp)
        noisy = gain / scale + self._random.gumbel(size=gain.shape)
        return np.asarray(noisy.argmax(axis=1), np.intp)

    def worth(self, g: Floats, h: Floats) -> Floats:
        """Value of leaves, with Laplace noise of scale sensitivity / epsilon."""
        scale = self.leaf_sensitivity / self.per_leaf
        self.ledger.append(Spent(self._tree, "leaves", self.per_leaf, scale))
        value = -g / (h + self.params.l2)
        return (
            value if np.isinf(self.privacy.epsilon) else value + self._random.laplace(0.0, scale, len(value))
        )


def score_of(g: Floats, left: NDArray[np.bool_], l2: float) -> float:
    """Score of one split of rows with second derivatives of 1, written out: what the sensitivity is about.

    A gain is this without the score of the node itself, which all splits of a node share: draws are the same,
    but the sensitivity of a gain would be four times the square of the bound.

    >>> score_of(np.array([1.0, -1.0]), np.array([True, False]), 1.0)
    1.0
    """
    return float(sum(part.sum() ** 2 / (len(part) + l2) for part in (g[left], g[~left])))
