"""Gradients of inputs from kernels that ask for the input, and read nothing of it but its shape.

Idea        Torch's kernels for the gradients of a convolution's input and of a maximum pool take the input
            to learn its shape, strides and type. Here they are handed addresses that nobody has ever
            touched, so that the input need not be held.
Source      ``convolution_backward`` with one gradient wanted, ``max_pool2d_with_indices_backward``
Guarantee   The bits of torch's ops on a CPU, for what `tightrope.capture.frugal` rewrites
            (`tests/capture/test_capture_frugal.py` compares dtypes, ranks, strides, groups and layouts).
Complexity  That of the kernels.
Gaps        Untouched addresses take no memory and read as zeros: a kernel that did read the input would
            compute something else without an error.
"""

import mmap
from typing import Any

import torch

from tightrope.price.kernels import register


def unread(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make a tensor for its shape: its addresses are reserved, and take no memory while nobody reads them.

    Args:
        shape: in elements.
        strides: likewise.
        dtype: of its elements.

    >>> unread((2, 3), (3, 1), torch.float32).shape
    torch.Size([2, 3])
    """
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    reserved = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(reserved, dtype=dtype).as_strided(shape, strides)


@register("tightrope.convolution_input")
def convolution_input(
    gradient: torch.Tensor, weight: torch.Tensor, shape: list[int], strides: list[int], *geometry: Any
) -> tuple[torch.Tensor]:
    """Compute the gradient of a convolution's input.

    Args:
        gradient: of the output.
        weight: as in the forward.
        shape: of the input.
        strides: of the input, in elements.
        geometry: stride, padding, dilation, transposed, output padding, groups.
    """
    given = unread(tuple(shape), tuple(strides), gradient.dtype)
    made, _, _ = torch.ops.aten.convolution_backward.default(
        gradient, given, weight, None, *geometry, [True, False, False]
    )
    return (made,)


@register("tightrope.max_pool_input")
def max_pool_input(
    gradient: torch.Tensor, shape: list[int], strides: list[int], *window: Any
) -> torch.Tensor:
    """Compute the gradient of a maximum pool's input.

    Args:
        gradient: of the output.
        shape: of the input.
        strides: of the input, in elements.
        window: size, stride, padding, dilation, whether sizes are rounded up, and the places of the maxima as
            the forward returns them.
    """
    given = unread(tuple(shape), tuple(strides), gradient.dtype)
    found: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward.default(gradient, given, *window)
    return found
