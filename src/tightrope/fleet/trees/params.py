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
        loss: ``logistic`` for labels 0 and 1, ``squared`` for numbers.
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
    loss: Literal["logistic", "squared"] = "logistic"
    hessian: Literal["exact", "one"] = "exact"
    padded: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (
            ("trees", 1, 10_000),
            ("depth", 1, 16),
            ("leaves", 0, 2**16),
            ("bins", 2, 65_535),
        ):
            value = getattr(self, name)
            if not is_whole(value) or not low <= value <= high:
                raise TightropeError(f"{name}={shown(value)}: give a whole number from {low} to {high}.")
        for name in ("rate", "l2", "gamma", "child_weight"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1e9:
                raise TightropeError(f"{name}={shown(value)}: give a number from 0 to 1e9.")
        for name, known in (("loss", ("logistic", "squared")), ("hessian", ("exact", "one"))):
            if getattr(self, name) not in known:
                raise TightropeError(f"{name}={shown(getattr(self, name))}: give {' or '.join(known)}.")
        if self.l2 == 0 and self.child_weight == 0:
            raise TightropeError(
                "l2=0 and child_weight=0: a leaf could divide by zero; make one of them larger."
            )
