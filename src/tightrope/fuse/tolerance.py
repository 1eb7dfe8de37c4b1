"""How far a fused result may be from the unfused one.

A compiler rounds in another order: sums along rows are added in other groups, and 16-bit values stay
in float32 between ops. So results are compared relative to the largest magnitude in the tensor, in
units of the dtype's rounding step.
"""

from collections.abc import Iterator
from typing import Final

import torch

_STEPS: Final[dict[torch.dtype, float]] = {
    torch.float64: 256, torch.float32: 256, torch.bfloat16: 4, torch.float16: 8,
}  # fmt: skip
"""Rounding steps (``torch.finfo(dtype).eps``) of the largest magnitude."""
BLOCK: Final = 65_536
"""Elements that are compared at once, so that a comparison needs few bytes beside its two tensors."""
WHOLE_STEP: Final = 64
"""Times this for results of a whole step, in which what stretches give goes through many other ops."""


def tolerance(dtype: torch.dtype) -> float:
    """Largest difference allowed, as a part of the largest magnitude; 0 for integers and booleans.

    >>> f"{tolerance(torch.float32):.1e}", tolerance(torch.int64)
    ('3.1e-05', 0.0)
    """
    return _STEPS[dtype] * torch.finfo(dtype).eps if dtype in _STEPS else 0.0


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Measure a difference as a part of the tolerance: up to 1 is equal within it.

    NaN equals NaN, and infinities must be equal. Of values that are all zero nothing may differ.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    0.0
    >>> difference(torch.tensor([1e-30]), torch.zeros(1))
    inf
    """
    allowed = tolerance(wanted.dtype)
    if not allowed:
        return 0.0 if torch.equal(found, wanted) else float("inf")
    apart = largest = 0.0
    for one, two in _blocks(found, wanted):
        odd = ~(torch.isfinite(one) & torch.isfinite(two))
        if odd.any():
            if not torch.equal(one[odd].nan_to_num(), two[odd].nan_to_num()):
                return float("inf")
            one, two = one.masked_fill(odd, 0), two.masked_fill(odd, 0)
        largest = max(largest, float(two.abs().max()))
        apart = max(apart, float((one.to(torch.float64) - two.to(torch.float64)).abs().max()))
    if not apart:
        return 0.0
    scale = allowed * largest
    return apart / scale if scale else float("inf")


def _blocks(one: torch.Tensor, two: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Halve two tensors of one shape along their longest axes."""
    if one.numel() > BLOCK:
        axis = max(range(one.dim()), key=one.size)
        for half, other in zip(one.chunk(2, axis), two.chunk(2, axis), strict=True):
            yield from _blocks(half, other)
    elif one.numel():
        yield one, two
