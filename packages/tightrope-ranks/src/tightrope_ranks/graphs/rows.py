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
from typing import Final

import numpy as np
import torch

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
    x: torch.Tensor,
    which: torch.Tensor,
    bits: np.ndarray,
    seed: int,
    out: torch.Tensor,
    traced: torch.Tensor | None = None,
) -> None:
    """Encode rows of ``x`` one behind another.

    Args:
        x: (rows, columns), 32-bit floats, contiguous.
        which: rows to encode, 64-bit integers.
        bits: of each of these, one of `WIDTHS`, uint8.
        seed: of this message; with the place in ``which`` it decides the random numbers.
        out: bytes, as many as `row_bytes` says.
        traced: the square of each row's range is added here, 32-bit floats.
    """
    assert x.is_contiguous()
    assert out.numel() == row_bytes(x.shape[1], bits).sum()
    _library().tightrope_rows_encode(
        x.data_ptr(), x.shape[1], which.data_ptr(), bits.ctypes.data, len(bits), seed,
        None if traced is None else traced.data_ptr(), out.data_ptr(),
    )  # fmt: skip


def decode_rows(
    wire: torch.Tensor, which: torch.Tensor, bits: np.ndarray, out: torch.Tensor, *, add: bool = False
) -> None:
    """Write rows to places ``which`` of ``out``, or add them there.

    Args:
        wire: what `encode_rows` wrote.
        which: rows of ``out``.
        bits: as encoded.
        out: (rows, columns), 32-bit floats, contiguous.
        add: to what is there.
    """
    assert out.is_contiguous()
    _library().tightrope_rows_decode(
        wire.data_ptr(), out.shape[1], which.data_ptr(), bits.ctypes.data, len(bits), add, out.data_ptr()
    )


@cache
def _library() -> ctypes.CDLL:
    native = load("rows")
    native.tightrope_rows_encode.argtypes = [
        POINTER, INTEGER, POINTER, POINTER, INTEGER, INTEGER, POINTER, POINTER,
    ]  # fmt: skip
    native.tightrope_rows_decode.argtypes = [
        POINTER, INTEGER, POINTER, POINTER, INTEGER, INTEGER, POINTER,
    ]  # fmt: skip
    native.tightrope_rows_encode.restype = native.tightrope_rows_decode.restype = None
    return native
