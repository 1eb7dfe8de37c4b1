"""Which elements a dropout of a compiled step leaves: a function of the step and of its place in the step."""

import numpy as np
from numpy.typing import NDArray


def dropout_mask(step: int, number: int, count: int, share: float) -> NDArray[np.bool_]:
    """Draw the mask of a dropout as the device does.

    Args:
        step: that is computed, from 1 on.
        number: of the dropout in the step, from 1 on, in the order of the forward.
        count: of elements.
        share: of elements that are left out.

    Returns:
        [count], True where an element stays.

    Example:
        >>> float(dropout_mask(1, 1, 10_000, 0.25).mean().round(2))
        0.75
    """
    first = _mixed(np.array([(step * 0x9E3779B9 + number) % 2**32], np.uint64))
    drawn = _mixed(first ^ np.arange(count, dtype=np.uint64)) >> np.uint64(8)
    return drawn >= np.uint64(round(share * (1 << 24)))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))
