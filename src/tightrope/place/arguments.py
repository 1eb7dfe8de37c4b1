"""Refuse arguments that are not the numbers asked for, before anything is placed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.arguments import check_seconds
from tightrope.core.units import is_whole
from tightrope.native.solvers.packer import Integers


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
