"""The placer's knobs, and what is refused before anything is placed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.arguments import check_seconds
from tightrope.core.units import is_whole
from tightrope.native.solvers.packer import SWITCHES, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Switch single techniques of the placer off; the proved optimum never depends on them.

    Attributes:
        scaling: divide sizes by their greatest common divisor.
        compression: keep only instants whose set of live buffers is not inside another's.
        zero_cuts: solve stretches of time that no buffer connects one by one.
        lifelong: give the lowest addresses to buffers that live through a whole stretch.
        portfolio: first fit in twelve orders instead of one.
        dives: skyline dives in five orders.
        squeaky: repeat with the buffers that end too high moved forward.
        search: canonical depth-first search; it and `niches` prove more than the load bound.
        section_bounds: prune when floor + remaining bytes of an instant exceed the goal.
        dominance: skip offsets under which another unplaced buffer would fit.
        hatless: stop at a buffer that nothing unplaced lies above.
        decomposition: split the unplaced buffers at zero cuts during the search.
        skip_inference: a buffer passed over must rest on one that is still unplaced.
        restarts: try other orders with growing node limits.
        memory: remember states that were searched to the end without a solution.
        neighbourhoods: free the buffers around a time window of the best answer and search again.
        hot_core: settle the time around the largest load first and fit the rest around it.
        weights: restart with orders that favour the instants at which the search failed most.
        trials: give a restart up early unless it is among the deepest tenth of the recent ones.
        niches: search that fills the section with the fewest choices first; it proves what `search` proves.
        fusion: search on niches after some buffers of equal lives, of equal sizes in turn, or five that turn
            around a middle one, became one.
    """

    scaling: bool = True
    compression: bool = True
    zero_cuts: bool = True
    lifelong: bool = True
    portfolio: bool = True
    dives: bool = True
    squeaky: bool = True
    search: bool = True
    section_bounds: bool = True
    dominance: bool = True
    hatless: bool = True
    decomposition: bool = True
    skip_inference: bool = True
    restarts: bool = True
    memory: bool = True
    neighbourhoods: bool = True
    hot_core: bool = True
    weights: bool = True
    trials: bool = True
    niches: bool = True
    fusion: bool = True

    @property
    def bits(self) -> int:
        """The switches as the native placer reads them."""
        assert tuple(field.name for field in fields(self)) == SWITCHES
        return sum(1 << position for position, name in enumerate(SWITCHES) if getattr(self, name))


def check_whole(name: str, value: object) -> None:
    """Refuse what is not a whole number of at least 0.

    Raises:
        TightropeError: quotes the value.
    """
    if not is_whole(value) or value < 0:  # type: ignore[operator]
        raise TightropeError(
            f"{name} is {value!r:.60}: it must be a whole number, and it must not be negative."
        )


def check_effort(seconds: object, seed: object = 0) -> None:
    """Refuse seconds that are not a number from 0 to a million, and a seed that is not a whole one.

    Raises:
        TightropeError: quotes the value.
    """
    check_seconds("seconds", seconds, zero=True)
    check_whole("seed", seed)


def integers(values: Sequence[Any]) -> Integers:
    """Turn whole numbers into an array; fractions are refused, not cut off.

    Raises:
        ValueError, TypeError, OverflowError: something is not a whole number of at most 62 bits.
    """
    table = np.array(values)
    if table.dtype.kind == "O":  # beyond 64 bits, or rows of unequal length
        return np.array(values, dtype=np.int64)
    if table.size and table.dtype.kind not in "iu":
        raise TypeError(f"{table.dtype} given")
    return table.astype(np.int64)
