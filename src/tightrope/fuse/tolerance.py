"""How far a fused result may be from the unfused one.

A compiler rounds in another order: sums along rows are added in other groups, and 16-bit values stay
in float32 between ops. So results are compared relative to the largest magnitude in the tensor, in
units of the dtype's rounding step.
"""

from typing import Final

import torch

_STEPS: Final[dict[torch.dtype, float]] = {
    torch.float64: 256, torch.float32: 256, torch.bfloat16: 4, torch.float16: 8,
}  # fmt: skip
"""Rounding steps (``torch.finfo(dtype).eps``) of the largest magnitude."""
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

    NaN equals NaN, and infinities must be equal.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    0.0
    """
    allowed = tolerance(wanted.dtype)
    if not wanted.numel():
        return 0.0
    if not allowed:
        return 0.0 if torch.equal(found, wanted) else float("inf")
    odd = ~(torch.isfinite(wanted) & torch.isfinite(found))
    if odd.any():
        if not torch.equal(found[odd].nan_to_num(), wanted[odd].nan_to_num()):
            return float("inf")
        found, wanted = found.masked_fill(odd, 0), wanted.masked_fill(odd, 0)
    largest = float(wanted.abs().max())
    apart = float((found - wanted).abs_().max())  # of values that are near, the difference is exact
    return apart / (allowed * largest) if apart else 0.0
