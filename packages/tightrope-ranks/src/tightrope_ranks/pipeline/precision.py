"""In which types a training step computes, and what it holds per parameter.

Idea        A policy says the type that parameters and activations have while layers compute, and the bytes
            per element of gradients, of a copy that the optimizer updates, and of what the optimizer keeps.
Source      Micikevicius et al. 2018 (master copies), Dettmers et al. 2022 (8-bit optimizers).
Guarantee   Bytes are those of the policy, each tensor rounded up as torch's allocator does.
Complexity  Constant per parameter.
Gaps        Scales of 8-bit blocks (1.6 % of the state) are counted; what an optimizer keeps in full for small
            tensors is not.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import torch

from tightrope.core import TightropeError
from tightrope.core.units import Bytes, round_up, shown

EIGHT_BIT: Final = 1 + 4 / 256
"""Bytes per element that 8-bit optimizers keep: a byte, and a scale in float32 per block of 256."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of a training step.

    Attributes:
        name: for people.
        compute: of parameters and floating inputs while layers compute; None = as they are given.
        autocast: that ops run in under autocast, while parameters stay as they are; None = no autocast.
        gradient: bytes per element of gradients; None = as of parameters.
        master: bytes per element of the copy that the optimizer updates; 0 = it updates the parameters.
        moment: bytes per element of one state of the optimizer; None = as of parameters.
        summed: bytes per element of gradients while replicas that divide them add them up; None = as of
            gradients. FSDP2 calls it ``reduce_dtype``, and adds micro-batches up in it.
    """

    name: str
    compute: torch.dtype | None = None
    autocast: torch.dtype | None = None
    gradient: int | None = None
    master: int = 0
    moment: float | None = None
    summed: int | None = None

    def computed(self, tensor: torch.Tensor) -> torch.dtype:
        """Tell the type that a parameter or an input is computed with."""
        return self.compute if self.compute is not None and tensor.is_floating_point() else tensor.dtype

    def parameter_bytes(self, parameter: torch.Tensor) -> Bytes:
        """Tell the bytes of a parameter that layers compute with.

        >>> PRECISIONS["bf16"].parameter_bytes(torch.empty(1024))
        2048
        """
        return round_up(parameter.numel() * self.computed(parameter).itemsize)

    def gradient_bytes(self, parameter: torch.Tensor) -> Bytes:
        """Tell the bytes of its gradient; 0 where it is frozen."""
        if not parameter.requires_grad:
            return 0
        size = self.computed(parameter).itemsize if self.gradient is None else self.gradient
        return round_up(parameter.numel() * size)

    def summed_bytes(self, parameter: torch.Tensor) -> Bytes:
        """Tell the bytes of its gradient while replicas that divide it add it up.

        >>> weight = torch.ones(1024, requires_grad=True)
        >>> [one.summed_bytes(weight) // 1024 for one in PRECISIONS.values()]
        [4, 4, 4, 4, 4]
        """
        if self.summed is None or not parameter.requires_grad:
            return self.gradient_bytes(parameter)
        return round_up(parameter.numel() * self.summed)

    def state_bytes(self, parameter: torch.Tensor, states: float) -> Bytes:
        """Tell the bytes of its gradient, its master copy, and ``states`` states of an optimizer.

        >>> weight = torch.ones(1024, requires_grad=True)
        >>> [one.state_bytes(weight, 2.0) // 1024 for one in PRECISIONS.values()]
        [12, 12, 14, 16, 12]
        """
        if not parameter.requires_grad:
            return 0
        size = self.computed(parameter).itemsize if self.moment is None else self.moment
        moments = states * round_up(math.ceil(parameter.numel() * size))
        return self.gradient_bytes(parameter) + round_up(parameter.numel() * self.master) + math.ceil(moments)

    def eight_bit(self) -> "Precision":
        """Return the policy with an optimizer that keeps a byte per element of each state."""
        return replace(self, name=f"{self.name}, 8-bit optimizer", moment=EIGHT_BIT)


PRECISIONS: Final = {
    one.name: one
    for one in (
        Precision("model"),
        Precision("fp32", torch.float32),
        Precision("bf16", torch.bfloat16, master=4, moment=4, summed=4),
        Precision("bf16-fp32-gradients", torch.bfloat16, gradient=4, master=4, moment=4),
        Precision("autocast", torch.float32, torch.bfloat16),
    )
}
"""By name. With Adam: 16 bytes per parameter in fp32, bf16 and autocast, 18 with gradients in fp32."""
AS_GIVEN: Final = PRECISIONS["model"]


def precision_of(asked: object) -> Precision:
    """Find a policy by its name.

    Raises:
        TightropeError: there is none of that name.

    >>> precision_of("bf16").compute
    torch.bfloat16
    """
    if isinstance(asked, Precision):
        return asked
    found = PRECISIONS.get(asked) if isinstance(asked, str) else None
    if found is None:
        raise TightropeError(
            f"precision={shown(asked)}: give one of {', '.join(PRECISIONS)}, or a tightrope_ranks.Precision."
        )
    return found
