"""Training steps on a GPU: run, measured in bytes by torch's statistics and in time by events."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.case import Case
from tightrope.core import Bytes

Call = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Run:
    """What some steps gave.

    Attributes:
        losses: per step.
        gradients: of the last step, on the CPU.
        reserved: most bytes that torch held of the GPU, in any step but the first.
        first: likewise in the first step, in which a plan is made.
        allocated: most bytes in blocks, in any step but the first.
    """

    losses: tuple[float, ...]
    gradients: tuple[Tensor | None, ...]
    reserved: Bytes
    first: Bytes
    allocated: Bytes

    def same_bits(self, other: "Run") -> bool:
        """Tell whether losses and gradients are equal bit for bit."""
        pairs = zip(self.gradients, other.gradients, strict=True)
        return self.losses == other.losses and all(_equal(one, two) for one, two in pairs)


def _equal(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return one is two
    return torch.equal(one, two)


def step(case: Case, call: Call, optimizer: torch.optim.Optimizer) -> Tensor:
    """Run one training step; the gradients are still there when it returns."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = call(*case.inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def optimizer_of(case: Case) -> torch.optim.Optimizer:
    """Make a fused AdamW for what is trained."""
    trained = [parameter for parameter in case.model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-5, fused=True)


def run(case: Case, call: Call, start: dict[str, Any], *, steps: int) -> Run:
    """Train some steps from a state, and leave neither gradients nor an optimizer behind."""
    case.model.load_state_dict(start)
    clean()
    optimizer = optimizer_of(case)
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    losses = [step(case, call, optimizer)]
    torch.cuda.synchronize()
    first = torch.cuda.max_memory_reserved()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses += [step(case, call, optimizer) for _ in range(steps - 1)]
    torch.cuda.synchronize()
    reserved, allocated = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    gradients = tuple(None if p.grad is None else p.grad.cpu() for p in case.model.parameters())
    optimizer.zero_grad(set_to_none=True)
    return Run(tuple(float(loss) for loss in losses), gradients, reserved, first, allocated)


def state_of(case: Case) -> dict[str, Any]:
    """Copy a model's state to the CPU."""
    return {name: value.detach().cpu() for name, value in case.model.state_dict().items()}


def clean() -> None:
    """Let go of what earlier runs left."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def milliseconds(act: Callable[[], Any]) -> float:
    """Time by the events of the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    act()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
