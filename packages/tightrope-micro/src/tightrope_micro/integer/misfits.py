"""Nets that whole numbers do not fit: values without an end, channels of unlike sizes."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Op, TightropeError, View
from tightrope_micro.constants import is_constant
from tightrope_micro.forward.capture import FloatNet
from tightrope_micro.integer.epilogue import Rescale, Whole

_MOST_OFF: Final = 1.0
"""Units of the result by which a channel of a narrow net may be off."""


def refuse_endless(net: FloatNet, ranges: Mapping[str, float]) -> None:
    """Refuse numbers that no whole one stands for.

    Raises:
        TightropeError: a weight or a range is not finite; names the op.
    """
    for op in net.graph.ops:
        constants = [net.constants.read(v) for v in op.arguments if isinstance(v, View) and is_constant(v)]
        if not all(np.isfinite(one).all() for one in constants):
            raise TightropeError(
                f"{op.describe()} has a weight that is NaN or infinite: it cannot be quantized. Load weights "
                "that are finite."
            )
    inputs = [storage.module for storage in net.graph.storages if storage.external]
    for name in (*inputs, *(op.name for op in net.graph.ops)):
        if not np.isfinite(ranges[name]):
            raise TightropeError(
                f"{name} takes values on the samples that are not finite, so that it has no range. Give "
                "samples without NaN and infinity."
            )


def refuse_far_off(found: Rescale, bounds: Whole, ratios: NDArray[np.float64], most: int, op: Op) -> None:
    """Refuse a shift with which a channel is off by more than a unit before it saturates.

    Raises:
        TightropeError: it is; names the channel, and the one that takes the bits.
    """
    share = np.abs(np.array(found.multipliers) * 2.0**-found.shift / ratios - 1)
    off = share * np.minimum(bounds * ratios, most + 0.5)
    worst, largest = int(off.argmax()), int(ratios.argmax())
    if off[worst] > _MOST_OFF:
        raise TightropeError(
            f"narrow=True: {op.describe()}: all channels share one shift, and channel {worst} would be off "
            f"by up to {off[worst]:.3g} of {most} units. Its unit (of its largest weight, or of a large "
            f"bias) is {ratios[largest] / ratios[worst]:.3g} times smaller than that of channel {largest}. "
            "Leave narrow out, or scale the channels of that layer to like sizes, and those of the "
            "next one back."
        )
