"""The quantiser, in C++ (quantise.cpp): addresses of numbers in, bytes out."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Final

from tightrope.core import Bytes
from tightrope.native.interface import INTEGER, POINTER, load

BLOCK: Final = 4096
"""Numbers that share a scale."""


def encoded_bytes(count: int, bits: int) -> Bytes:
    """Bytes that ``count`` numbers of one tensor take.

    >>> encoded_bytes(4096, 1), encoded_bytes(1, 8)
    (516, 8)
    """
    whole, rest = divmod(count, BLOCK)
    size = whole * (4 + BLOCK * bits // 8) + (4 + (rest * bits + 7) // 8 if rest else 0)
    return -(-size // 4) * 4


def encode(
    bits: int,
    tensors: Sequence[int],
    residuals: Sequence[int] | None,
    counts: Sequence[int],
    *,
    ids: Sequence[int],
    seed: int,
    out: int,
) -> None:
    """Encode tensors one behind another.

    Args:
        bits: 1 (sign), 2, 4 or 8 (stochastic).
        tensors: addresses of 32-bit floats.
        residuals: addresses of what was left of each tensor before, updated in place; None = without.
        counts: numbers in each.
        ids: what random numbers depend on beside the seed: equal however tensors are put together.
        seed: of this step.
        out: address of enough bytes, see `encoded_bytes`.
    """
    rests = _addresses(residuals) if residuals is not None else None
    _library().tightrope_encode(
        bits, len(counts), _addresses(tensors), rests, _whole(counts), _whole(ids), seed, out
    )


def decode(
    bits: int, wire: int, stride: Bytes, ranks: int, counts: Sequence[int], factor: float, out: Sequence[int]
) -> None:
    """Write ``factor`` times the sum of what several ranks encoded.

    Args:
        bits: as encoded.
        wire: address of what rank 0 encoded.
        stride: bytes from there to that of rank 1.
        ranks: how many.
        counts: numbers in each tensor.
        factor: 1 / ranks for the mean.
        out: addresses of 32-bit floats.
    """
    _library().tightrope_decode(
        bits, len(counts), ranks, wire, stride, _whole(counts), factor, _addresses(out)
    )


def _addresses(values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (POINTER * max(len(values), 1))(*values)


def _whole(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (INTEGER * max(len(values), 1))(*values)


@cache
def _library() -> ctypes.CDLL:
    native = load("quantise")
    native.tightrope_encode.argtypes = [INTEGER, INTEGER, *[POINTER] * 4, INTEGER, POINTER]
    native.tightrope_encode.restype = None
    native.tightrope_decode.argtypes = [
        INTEGER, INTEGER, INTEGER, POINTER, INTEGER, POINTER, ctypes.c_float, POINTER,
    ]  # fmt: skip
    native.tightrope_decode.restype = None
    return native
