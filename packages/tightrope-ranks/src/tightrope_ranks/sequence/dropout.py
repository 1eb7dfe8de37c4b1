"""Dropout in two ops: the mask is drawn, then used; either may run again on its own.

Idea        One op that gives both result and mask can be planned only as a whole: the result again from
            the kept mask. Drawn apart, the mask too may go and be drawn again, from the generator's state
            as it was; so a plan may keep neither, as the paper's selective recomputation does.
Source      Korthikanti et al. (2022), section 5
Guarantee   One byte per value is saved, or none where the mask is drawn again. torch's dropout on a
            CPU saves two or more: the noise in the values' dtype.
Complexity  One draw, one product
"""

from typing import Any, Final

import torch

DRAW: Final = "tightrope_draw"


@torch.library.custom_op(f"{DRAW}::mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def mask(shape: list[int], keep: float, device: str) -> torch.Tensor:
    """Draw which values stay, each with probability ``keep``: one byte a value."""
    return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(keep)


@mask.register_fake
def _(shape: list[int], keep: float, device: str) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device=device)


class _Dropped(torch.autograd.Function):
    """Saves the mask and nothing else."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, p: float) -> torch.Tensor:
        kept = mask(list(value.shape), 1.0 - p, str(value.device))
        ctx.save_for_backward(kept)
        ctx.scale = 1.0 / (1.0 - p)
        return torch.ops.aten.native_dropout_backward(value, kept, ctx.scale)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grads[0], kept, ctx.scale), None


def drop(value: torch.Tensor, p: float) -> torch.Tensor:
    """Set values to zero with probability ``p`` and scale what stays by ``1 / (1 - p)``.

    Example:
        >>> sorted(set(drop(torch.ones(64), 0.5).tolist()))
        [0.0, 2.0]
    """
    return _Dropped.apply(value, p)  # type: ignore[no-any-return, no-untyped-call]
