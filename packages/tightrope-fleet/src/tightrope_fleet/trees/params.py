"""What a boosted forest is asked for: size, objective, growth, protection."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tightrope.core.errors import TightropeError
from tightrope.core.units import is_whole, shown

Protection: TypeAlias = Literal["none", "masks", "paillier"]
MAX_ROWS: Final = 2**20
"""Over all parties: sums of fixed-point numbers stay exact in 53 bits."""


@dataclass(frozen=True, slots=True)
class Boosting:
    """The knobs of a forest, in the words of gradient boosting.

    Attributes:
        trees: rounds of boosting.
        depth: splits on the longest path of a tree.
        leaves: 0 grows level by level; else the best leaf is split first, up to this many leaves.
        rate: what every leaf is multiplied by.
        bins: cuts per feature plus one, at most; features with fewer distinct values have a bin per value.
        l2: added to the second derivatives of a leaf (lambda).
        gamma: gain that a split has to exceed.
        child_weight: second derivatives that a child has at least.
        min_rows: rows that a child has at least; from 2 on they are counted, for half as many bytes more.
        loss: ``logistic`` for labels 0 and 1, ``squared`` for numbers, ``softmax`` for classes 0, 1, 2 ...
        classes: of a softmax, which grows a tree per class in every round; else 0.
        stop: rounds without a smaller loss of rows that are held out, after which training ends and the trees
            since the smallest are dropped; 0 = all rounds, of all rows.
        hold_out: share of the rows that is held out with ``stop``.
        hessian: ``exact``, or ``one``: second derivatives are 1, as differential privacy needs.
        padded: messages take the bytes of the largest tree, so that neither their number nor their size tells
            anything and the forecast is exact.
    """

    trees: int = 50
    depth: int = 6
    leaves: int = 0
    rate: float = 0.1
    bins: int = 255
    l2: float = 1.0
    gamma: float = 0.0
    child_weight: float = 1.0
    min_rows: int = 1
    loss: Literal["logistic", "squared", "softmax"] = "logistic"
    classes: int = 0
    stop: int = 0
    hold_out: float = 0.2
    hessian: Literal["exact", "one"] = "exact"
    padded: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (
            ("trees", 1, 10_000),
            ("depth", 1, 16),
            ("leaves", 0, 2**16),
            ("bins", 2, 65_535),
            ("min_rows", 1, MAX_ROWS),
            ("classes", *((2, 1000) if self.loss == "softmax" else (0, 0))),
            ("stop", 0, 10_000),
        ):
            value = getattr(self, name)
            if not is_whole(value) or not low <= value <= high:
                raise TightropeError(f"{name}={shown(value)}: give a whole number from {low} to {high}.")
        for name in ("rate", "l2", "gamma", "child_weight"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1e9:
                raise TightropeError(f"{name}={shown(value)}: give a number from 0 to 1e9.")
        for name, known in (("loss", ("logistic", "squared", "softmax")), ("hessian", ("exact", "one"))):
            if getattr(self, name) not in known:
                raise TightropeError(f"{name}={shown(getattr(self, name))}: give {' or '.join(known)}.")
        if not isinstance(self.hold_out, float) or not 0 < self.hold_out < 1:
            raise TightropeError(f"hold_out={shown(self.hold_out)}: give a share between 0 and 1.")
        if self.l2 == 0 and self.child_weight == 0:
            raise TightropeError(
                "l2=0 and child_weight=0: a leaf could divide by zero; make one of them larger."
            )

    @property
    def outputs(self) -> int:
        """Trees of a round."""
        return self.classes or 1

    @property
    def channels(self) -> int:
        """Sums per bin: both derivatives, and rows where they are counted."""
        return 2 + (self.min_rows > 1)
