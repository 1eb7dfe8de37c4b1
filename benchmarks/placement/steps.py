"""Buffers of real training steps: recorded from eager torch, and forecast from plans.

A recorded step holds every allocation that torch made, temporaries of kernels and of the optimizer
included. Rematerialised steps run some or all blocks under ``torch.utils.checkpoint``.
"""

import random
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tightrope
from benchmarks._measure import Loop
from benchmarks.spine.nets import clean
from benchmarks.zoo import Case, build, optimizer
from benchmarks.zoo.case import Scale
from tightrope.core import round_up
from tightrope.place import Interval

_BUDGET = 2**44
Remat = Literal["none", "all", "half"]


class _Block(nn.Module):
    """One block of a deep stack."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.MultiheadAttention(width, 4, batch_first=True)
        self.wide = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        mixed: Tensor = self.mix(y, y, y, need_weights=False)[0]
        x = x + mixed
        wide: Tensor = self.wide(x)
        return x + wide


class _Stack(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def stack(depth: int, *, width: int = 64) -> Case:
    """Make a transformer of any depth with small layers: what counts here is the number of buffers."""
    torch.manual_seed(0)
    return Case(f"stack{depth}", _Stack(depth, width).train(), (torch.randn(2, 32, width),), frozenset())


def net(name: str, scale: Scale) -> Case:
    """Build a net of the zoo, or ``stack<depth>``."""
    return stack(int(name.removeprefix("stack"))) if name.startswith("stack") else build(name, scale=scale)


def _checkpointed(model: nn.Module, remat: Remat, seed: int) -> int:
    """Run blocks of the model's lists under checkpointing; return how many."""
    draw = random.Random(seed)
    blocks = [
        child
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for child in module
        if any(True for _ in child.parameters()) and any(True for _ in child.children())
    ]
    outer = [b for b in blocks if not any(b is not o and b in set(o.modules()) for o in blocks)]
    chosen = [block for block in outer if remat == "all" or draw.random() < 0.5]
    for block in chosen:
        _wrap(block)
    return len(chosen)


def _wrap(block: nn.Module) -> None:
    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = again


def recorded(name: str, *, scale: Scale, remat: Remat, adam: bool) -> list[Interval] | None:
    """Record one eager training step.

    Returns:
        (bytes rounded up to 64, start, end) of every allocation made in the step; None = the net has
        no blocks to checkpoint.
    """
    case = net(name, scale)
    if remat != "none" and _checkpointed(case.model, remat, 1) == 0:
        return None
    step = optimizer(case, "adamw") if adam else None
    loop = Loop(case.model, case.inputs, case.model, step)
    guard = tightrope.replay(_BUDGET, seconds=0.001)
    for _ in range(4):
        loop.clear()
        with guard:
            loop.step()
        if guard.trace is not None:
            break
    trace = guard.trace
    assert trace is not None, "the third step of a loop that repeats is recorded"
    guard.close()
    loop.clear()
    del loop, case, step
    clean()
    return [(round_up(b.bytes), b.start, max(b.end, b.start + 1)) for b in trace.buffers if b.bytes]


def steps(names: list[str], scale: Scale) -> Iterator[tuple[str, list[Interval]]]:
    """Record every variant of every net."""
    for name in names:
        for remat in ("none", "all", "half"):
            for adam in (False, True):
                buffers = recorded(name, scale=scale, remat=remat, adam=adam)
                if buffers is not None:
                    label = {"none": "", "all": " ck100", "half": " ck50"}[remat]
                    yield f"{name}{label}{' + Adam' if adam else ''}", buffers
