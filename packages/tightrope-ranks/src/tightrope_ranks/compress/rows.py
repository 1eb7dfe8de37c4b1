"""Rows of numbers in 2, 4, 8 or 32 bits, in C++ (rows.cpp).

Idea        A row is sent as its smallest value, a step, and levels. A value goes to one of its two
            neighbours, to the nearer one more often, so that the mean of what arrives is the value.
Source      Wan et al., Adaptive Message Quantization and Parallelization, MLSys 2023 (AdaQP).
Guarantee   Unbiased. A row of D numbers has a variance of at most D step^2 / 4, on average D step^2 / 6. The
            same seed gives the same bytes. A row with a value that is not finite arrives as NaN.
Complexity  Linear in the numbers; a row takes 6 bytes and its levels.
Gaps        The step is rounded up to 16 bits, at most 0.8 % above range / (2^bits - 1).
"""

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
from torch import Tensor

from tightrope.native.interface import INTEGER, POINTER, load

WIDTHS: Final = (2, 4, 8, 32)
"""Bits per number that a row may have; 32 is float."""
_HEADER: Final = 6


def row_bytes(columns: int, bits: "int | np.ndarray") -> np.ndarray:
    """Bytes of a row of so many numbers.

    >>> row_bytes(5, np.array([2, 4, 8, 32])).tolist()
    [8, 9, 11, 20]
    """
    bits = np.asarray(bits, np.int64)
    return np.where(bits == 32, 4 * columns, _HEADER + -(-columns * bits // 8))


def encode_rows(
    x: Tensor, which: Tensor, bits: np.ndarray, seed: int, out: Tensor, traced: Tensor | None = None
) -> None:
    """Encode rows ``which`` of ``x``, each in its own ``bits`` (uint8), one behind another into ``out``.

    ``seed`` and the place in ``which`` decide the random numbers. ``traced`` gets squares of ranges.
    """
    assert x.is_contiguous()
    assert out.numel() == row_bytes(x.shape[1], bits).sum()
    add_to = None if traced is None else traced.data_ptr()
    which_, bits_ = which.data_ptr(), bits.ctypes.data
    _library().tightrope_rows_encode(
        x.data_ptr(), x.shape[1], which_, bits_, len(bits), seed, add_to, out.data_ptr()
    )


def decode_rows(wire: Tensor, which: Tensor, bits: np.ndarray, out: Tensor, *, add: bool = False) -> None:
    """Write the rows that `encode_rows` wrote to places ``which`` of ``out``, or add them there."""
    assert out.is_contiguous()
    which_, bits_ = which.data_ptr(), bits.ctypes.data
    _library().tightrope_rows_decode(
        wire.data_ptr(), out.shape[1], which_, bits_, len(bits), add, out.data_ptr()
    )


@cache
def _library() -> ctypes.CDLL:
    native = load("rows")
    shared: list[Any] = [POINTER, INTEGER, POINTER, POINTER, INTEGER, INTEGER, POINTER]
    native.tightrope_rows_encode.argtypes, native.tightrope_rows_decode.argtypes = [*shared, POINTER], shared
    native.tightrope_rows_encode.restype = native.tightrope_rows_decode.restype = None
    return native
