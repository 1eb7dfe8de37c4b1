"""The backward of batch norm, without the allocation that torch's op makes and drops unused."""

import ctypes
from collections.abc import Sequence
from functools import cache

from tightrope.core import NativeError
from tightrope.native.interface import INTEGER, POINTER, REAL, integers, load


@cache
def missing() -> str:
    """Say why torch's kernel cannot be called here; the empty string = it can."""
    try:
        _library()
    except NativeError as error:
        return str(error)
    return ""


@cache
def _library() -> ctypes.CDLL:
    native = load("batch_norm")
    pointers = [POINTER] * 5
    native.tightrope_batch_norm_backward.argtypes = [
        POINTER, INTEGER, ctypes.c_int, *pointers, REAL, *[POINTER] * 3
    ]  # fmt: skip
    return native


def batch_norm_backward(
    sizes: Sequence[int], inputs: Sequence[int | None], made: Sequence[int | None], *, eps: float, wide: bool
) -> None:
    """Compute the gradients of a batch norm in training, on contiguous memory of one type.

    Args:
        sizes: of the input.
        inputs: addresses of the gradient, the input, the weight (or None), the mean, the inverse deviation.
        made: addresses for the gradients of input, weight and bias; None = not wanted.
        eps: as in the forward.
        wide: float64 instead of float32.

    Raises:
        NativeError: torch's kernel raised, or the library does not load.
    """
    failed = _library().tightrope_batch_norm_backward(
        integers(sizes), len(sizes), int(wide), *inputs, eps, *made
    )
    if failed:
        raise NativeError(f"torch's backward of batch norm refused an input of shape {tuple(sizes)}.")
