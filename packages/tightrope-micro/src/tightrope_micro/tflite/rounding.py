"""Numbers of TensorFlow Lite's reference kernels: multipliers, limits, powers of a softmax.

Idea        A ratio is a whole number of 31 bits and a shift. A softmax looks powers up by how far a number is
            below the largest of its row; the table has what the reference computes for each such distance.
Source      Jacob et al. (CVPR 2018), section 2.2; gemmlowp's fixedpoint.h for the power
Guarantee   The same bits as the reference kernels with double rounding, which the benchmark M5 compares.
Complexity  Constant per number.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ONE: Final = 2**31
_MOST: Final = 2**31 - 1
_MOST_16: Final = 2**15 - 1
_FAR: Final = 2**61
_POWERS: Final = (
    (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401), (4, 242),
)  # fmt: skip
"""exp(-2^k) in 31 bits, by k."""
_FRACTION: Final = 26
"""Bits behind the point of a distance."""


def half_away(value: float) -> int:
    """Round to the nearest whole number, halves away from zero.

    >>> half_away(2.5), half_away(-2.5), half_away(0.49999999999999994)
    (3, -3, 0)
    """
    whole = math.trunc(value)
    rest = value - whole
    return whole + (rest >= 0.5) - (rest <= -0.5)


def single(value: float) -> float:
    """Round to float32; what is too large becomes endless.

    >>> single(0.1), single(1e300)
    (0.10000000149011612, inf)
    """
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def multiplier_of(ratio: float) -> tuple[int, int]:
    """Write a ratio as a multiplier of 31 bits and a shift to the left.

    >>> multiplier_of(0.75), multiplier_of(1.0), multiplier_of(1e-12)
    ((1610612736, 0), (1073741824, 1), (0, 0))
    """
    part, shift = math.frexp(ratio)
    whole = half_away(part * _ONE)
    if whole == _ONE:
        whole, shift = whole // 2, shift + 1
    return (0, 0) if shift < -31 else (whole, shift)


def mean_multiplier(ratio: float, count: int) -> tuple[int, int]:
    """Write a ratio over a count, which divides the multiplier."""
    multiplier, shift = multiplier_of(ratio)
    more = min(count.bit_length() - 1, 32, 31 + shift)
    return (multiplier << more) // count, shift - more


def stays(most: int, multiplier: int, shift: int) -> bool:
    """Tell whether no intermediate leaves 32 bits when numbers up to ``most`` are scaled.

    >>> stays(2**24, 2**30, 6), stays(2**24, 2**30, 7), stays(2**31 - 1, 2**30, -8)
    (True, False, True)
    """
    if shift > 0:
        return most << shift <= _MOST - 256
    return most <= _MOST and (most * multiplier >> 31) + (1 << -shift >> 1) < _MOST - 256


class ShiftedProduct(NamedTuple):
    """A product of a sum that is shifted: (sum * multiplier + start) >> shift."""

    multiplier: int
    shift: int
    start: int


def nearest(ratio: float, most: int, low: int, high: int) -> ShiftedProduct | None:
    """Write a product in float64 that is rounded to the nearest whole number, halves away from zero.

    Args:
        ratio: that sums are multiplied by, from 2^-60 to 2^30.
        most: largest size of a sum.
        low: results below it do not differ.
        high: results above it do not differ.

    Returns:
        What has the same results for every sum: each sum at which the result changes is tried. None where
        nothing has.
    """
    shift = min(62, 31 - math.frexp(ratio)[1])
    steps = np.arange(low + 1, high + 1, dtype=np.float64)
    tried = np.floor((steps - 0.5) / ratio)[:, None] + np.arange(-2, 4)
    product = tried * ratio
    rest = product - np.trunc(product)
    reached = np.trunc(product) + (rest >= 0.5) - (rest <= -0.5) >= steps[:, None]
    first = [int(row[at]) for row, at in zip(tried, reached.argmax(1), strict=True)]
    aims = [int(step) << shift for step in steps]
    middle = round(math.ldexp(ratio, shift))
    for multiplier in (middle, middle - 1, middle + 1, middle - 2, middle + 2):
        ends = zip(aims, first, strict=True)
        least = max((aim - max(at, -most) * multiplier for aim, at in ends if at <= most), default=-_FAR)
        ends = zip(aims, first, strict=True)
        largest = min(
            (aim - 1 - min(at - 1, most) * multiplier for aim, at in ends if at > -most), default=_FAR
        )
        if least <= largest and 0 <= multiplier < _ONE:
            half = 1 << shift >> 1
            return ShiftedProduct(
                multiplier, shift, half if least <= half <= largest else (least + largest) // 2
            )
    return None


def softmax_powers(scale: float, beta: float) -> NDArray[np.int32]:
    """Powers in 31 bits, by how far a number is below the largest of its row; 0 behind the last.

    >>> softmax_powers(0.1, 1.0)[:2].tolist()
    [2147483647, 1943123572]
    """
    multiplier, shift = multiplier_of(min(beta * scale * 2**_FRACTION, _MOST))
    last = min(255, math.floor(31 * 2**_FRACTION / 2**shift))
    return np.array([_power(_high(-k * 2**shift, multiplier)) for k in range(last + 1)], np.int32)


def curve_table(name: str, given: tuple[float, int], made: tuple[float, int]) -> NDArray[np.int8]:
    """A function of every 8-bit number, from -128 on, each step rounded to float32.

    Args:
        name: of `TFLITE_CURVES`.
        given: unit and zero of what it is given.
        made: of its result.

    >>> curve_table("TANH", (0.1, 0), (1 / 128, 0))[[0, 128, 138]].tolist()
    [-128, 0, 97]
    """
    x = np.float32(given[0]) * (np.arange(-128, 128) - given[1]).astype(np.float32)
    scaled = TFLITE_CURVES[name](x) * (np.float32(1) / np.float32(made[0]))
    whole = np.trunc(scaled) + np.where(np.abs(scaled - np.trunc(scaled)) >= 0.5, np.sign(scaled), 0)
    found: NDArray[np.int8] = np.clip(whole + made[1], -128, 127).astype(np.int8)
    return found


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        power = np.exp(-x.astype(np.float64)).astype(np.float32)  # rounded once, as of a C library
    return np.asarray(np.float32(1) / (np.float32(1) + power), np.float32)


TFLITE_CURVES: Final[Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]]] = {
    "LOGISTIC": _sigmoid,
    "TANH": lambda x: np.tanh(x.astype(np.float64)).astype(np.float32),
}
"""Op that the reference kernels look up -> its function."""


def hard_swish_table(given: tuple[float, int], made: tuple[float, int]) -> NDArray[np.int8] | None:
    """Compute x * min(max(x + 3, 0), 6) / 6 of every 8-bit number, from -128 on, in 16 bits.

    Args:
        given: unit and zero of what it is given.
        made: of its result.

    Returns:
        None where the unit of the result is too small.
    """
    fine = np.float32(1 / 128) * np.float32(given[0])
    out, shift = multiplier_of(float(fine / np.float32(made[0])))
    gate, left = multiplier_of(float(fine / np.float32(np.float32(3) / np.float32(32768))))
    out, gate = (min((m + (1 << 15)) >> 16, _MOST_16) for m in (out, gate))
    if shift > 0:
        return None
    found = []
    for k in range(-128, 128):
        x = (k - given[1]) << 7
        y = _short(x << max(0, left - 1)) if left > 0 else x
        y = _high_16(y, gate)
        y = _short(y << 1) if left > 0 else _divide(y, -left) if left < 0 else y
        product = ((y + (1 << 15)) >> 1) * _high_16(x, out)
        share = abs(product) >> 15
        share = -share if product < 0 else share
        found.append((_divide(share, -shift) if shift else share) + made[1])
    return np.clip(np.array(found, np.int64).astype(np.int16), -128, 127).astype(np.int8)


def _short(x: int) -> int:
    return max(-_MOST_16 - 1, min(_MOST_16, x))


def _high_16(a: int, b: int) -> int:
    """Multiply to a * b / 2^15, rounded by a nudge of the product's sign and a division that truncates."""
    product = a * b
    nudged = abs(product + ((1 << 14) if product >= 0 else 1 - (1 << 14)))
    return nudged >> 15 if product >= 0 else -(nudged >> 15)


def _high(a: int, b: int) -> int:
    return (a * b + (1 << 30)) >> 31


def _power(distance: int) -> int:
    """Exp of a number that is not positive, with 26 bits behind the point."""
    if not distance:
        return _MOST
    quarter = 1 << (_FRACTION - 2)
    rest = (distance & (quarter - 1)) - quarter
    found = _small_power(max(rest << 5, -_ONE))
    for bit, factor in _POWERS:
        if (rest - distance) >> (_FRACTION + bit) & 1:
            found = _high(found, factor)
    return found


def _small_power(a: int) -> int:
    """Exp of a number from -1/4 to 0, in 31 bits, by a Taylor polynomial around -1/8."""
    x = a + (1 << 28)
    square = _high(x, x)
    fourth = _divide(_high(square, square), 2)
    inner = _high(fourth + _high(square, x), 715827883) + square
    return 1895147668 + _high(1895147668, x + _divide(inner, 1))


def _divide(x: int, by: int) -> int:
    return (x + (1 << (by - 1)) - (x < 0)) >> by
