"""A6: a plan beside full recomputation at the same bytes; timed, one process on a CPU.

Full recomputation is `torch.utils.checkpoint` around every layer. What it takes at most, all bytes of the
process that torch allocates, is the budget of the plan. Both compute attention op by op; times are thread-CPU
times of one step, in pairs whose order alternates.
"""

import gc
from typing import Final

import torch

import tightrope
from benchmarks._measure import HighWater, Loop, paired_ratio
from benchmarks.micro.rows import Row
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.sequence import Division, Stack

SHAPES: Final = ((1024, 1, 256, 8, 6), (2048, 1, 256, 4, 4))
"""s, b, h, a, layers."""
LEAST: Final = 0.30
SEED: Final = 0


class _Loss(torch.nn.Module):
    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.stack(rows).square().mean()  # type: ignore[no-any-return]


def _loop(shape: tuple[int, ...], dropout: float, *, again: bool, like: Loop | None = None) -> Loop:
    s, b, h, a, layers = shape
    torch.manual_seed(SEED)
    model = _Loss(Stack(layers, h, a, s, Division(), dropout=dropout, again=again))
    if like is not None:
        for mine, other in zip(model.stack.layers, like.model.stack.layers, strict=True):  # type: ignore[union-attr, arg-type]
            for name, module in other.named_children():
                setattr(mine, name, module)
            mine.mask = other.mask
    inputs = (torch.randn(s, b, h, requires_grad=True),) if like is None else like.inputs
    return Loop(model, inputs, model, torch.optim.SGD(model.parameters(), lr=0.0))


def _gradients(loop: Loop) -> list[torch.Tensor]:
    loop.clear()
    torch.manual_seed(SEED)
    loop.step()
    return [p.grad.clone() for p in loop.model.parameters() if p.grad is not None]


def one(shape: tuple[int, ...], dropout: float, num_pairs: int) -> Row:
    """Compare for one shape."""
    native = allocator()
    full = _loop(shape, dropout, again=True)
    full.step()
    full.clear()
    with HighWater(native) as high:
        full.step()
    budget = high.bytes
    wanted = _gradients(full)
    full.clear()
    planned = _loop(shape, dropout, again=False, like=full)
    planned.model = tightrope.compile(planned.model, budget=budget, progress=False)
    planned.call = planned.model
    planned.step()
    error = max(
        float((p - q).abs().max() / q.abs().max()) for p, q in zip(_gradients(planned), wanted, strict=True)
    )
    del wanted
    gc.collect()
    planned.clear()
    with HighWater(native) as high:
        planned.step()
    taken = high.bytes
    planned.clear()
    native.limit = None
    ratio = paired_ratio(planned, full, num_pairs=num_pairs)
    plain = _loop(shape, dropout, again=False, like=full)
    once = paired_ratio(plain, full, num_pairs=max(3, num_pairs // 2))
    s, b, h, a, layers = shape
    return Row(
        "A6",
        "step time 30 % lower than full recomputation's at the same budget, s >= 1024",
        f"s={s} b={b} h={h} a={a}, {layers} layers, dropout {dropout}, timed: {ratio} of its time, peak "
        f"{taken / 2**20:.1f} of {budget / 2**20:.1f} MiB, gradients within {error:.0e}",
        ratio.median <= 1 - LEAST and taken <= budget,
        f"no recomputation, eager, without a limit: {once}",
    )


def a6(quick: bool) -> list[Row]:
    """Compare for every shape."""
    shapes = SHAPES[:1] if quick else SHAPES
    return [one(shape, 0.0, 5 if quick else 7) for shape in shapes]
