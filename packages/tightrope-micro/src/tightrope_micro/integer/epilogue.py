"""From a sum of products to a number of the next format: shift, multiply, round, clamp, in 32 bits.

    y = clamp((((a + half of 2^pre) >> pre) * m + half of 2^shift) >> shift)

Idea        A change of format is a multiplication by a ratio of scales, m / 2^(pre + shift), with one m per
            output channel. Of all pairs of shifts that keep every product below 2^31, the one with the
            smallest error bound is taken. What the sum can be follows from the weights themselves.
Source      Jacob et al. (CVPR 2018) for multiplying by a whole number and a shift; theirs takes 64 bits
Guarantee   `requantizing` says what ``tr_requantize`` in C computes, step by step, so that it can be proved.
Complexity  At most 17 x 31 candidates.
Gaps        One pair of shifts per op, not per channel.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightrope.core import TightropeError
from tightrope_micro.integer.program import RowKind, RowProgram

Whole = NDArray[np.int64]
LIMITS: Final = {"int8": (-(2**7), 2**7 - 1), "uint8": (0, 2**8 - 1), "int16": (-(2**15), 2**15 - 1)}
"""Numbers that a dtype can hold."""
MOST_PRE: Final = 16
"""Largest shift before the multiplication."""
_LARGEST: Final = 2**31 - 1


class Rescale(NamedTuple):
    """A change of format.

    Attributes:
        multipliers: one per channel.
        pre: shift before the multiplication.
        shift: after it.
        error: bound on what it is off by, in units of the result, rounding of the result aside.
    """

    multipliers: tuple[int, ...]
    pre: int
    shift: int
    error: float


def rescale(bounds: Whole, ratios: NDArray[np.float64], what: str, *, most_pre: int = MOST_PRE) -> Rescale:
    """Choose multipliers and shifts for sums of at most ``bounds``, times ``ratios``, one each per channel.

    Args:
        bounds: largest absolute values of the sums.
        ratios: units of the sum / units of the result.
        what: is rescaled, for the refusal.
        most_pre: largest shift before the multiplication.

    Raises:
        TightropeError: no pair keeps products in 32 bits.

    Example:
        >>> rescale(np.array([2**20]), np.array([2.0**-13]), "a sum").shift
        23
    """
    best: Rescale | None = None
    for pre in range(most_pre + 1):
        reduced = ((bounds + ((1 << pre) >> 1)) >> pre).astype(np.float64) + 1
        for shift in range(30, -1, -1):
            times = np.rint(ratios * 2.0 ** (pre + shift))
            if np.all(times <= _LARGEST) and np.all(reduced * times + 2.0 ** max(shift - 1, 0) <= _LARGEST):
                break
        else:
            continue
        off = reduced * np.abs(times * 2.0**-shift - ratios * 2.0**pre) + ((1 << pre) >> 1) * ratios
        if best is None or off.max() < best.error:
            best = Rescale(tuple(int(value) for value in times), pre, shift, float(off.max()))
    if best is None:
        raise TightropeError(
            f"no shifts keep {what} in 32 bits: sums of up to {int(bounds.max())}, times {ratios.max():.3g}. "
            "Take a smaller layer, or data whose range is closer to what the layer can give."
        )
    return best


def requantizing(
    low: int, high: int, times: int, *, shifts: tuple[int, int], ends: tuple[int, int], dtype: str
) -> RowProgram:
    """Write the change of format of one channel as a program.

    Args:
        low: least sum.
        high: largest one.
        times: multiplier.
        shifts: before and after the multiplication.
        ends: of the result.
        dtype: of the result.
    """
    pre, shift = shifts
    one = RowProgram("requantize", 1, "int32_t", f"{dtype}_t")
    found = one.given(low, high)
    found = one.add(RowKind.ADD, found, one.const((1 << pre) >> 1))
    found = one.add(RowKind.SHR, found, one.const(pre))
    found = one.add(RowKind.MUL, found, one.const(times))
    found = one.add(RowKind.ADD, found, one.const((1 << shift) >> 1))
    found = one.add(RowKind.SHR, found, one.const(shift))
    one.add(RowKind.MIN, one.add(RowKind.MAX, found, one.const(ends[0])), one.const(ends[1]))
    return one


def requantized(sums: Whole, times: Whole, pre: int, shift: int, *, wrapped: bool = False) -> Whole:
    """Compute the change of format, before the clamp; ``wrapped`` cuts every step to 32 bits."""

    def cut(value: Whole) -> Whole:
        return wrap32(value) if wrapped else value

    found = cut(cut(sums) + ((1 << pre) >> 1)) >> pre
    found = cut(cut(found * times) + ((1 << shift) >> 1)) >> shift
    return found


def wrap32(value: Whole) -> Whole:
    """Cut to 32 bits as a signed number."""
    cut: Whole = value & 0xFFFFFFFF
    return np.where(cut >= 2**31, cut - 2**32, cut)
