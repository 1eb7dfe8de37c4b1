"""Maximum pools that keep a byte per result for their backward, and nothing else.

Idea        Torch keeps the place of each maximum in its plane, as 8 bytes. A place in the window is a byte.
Source      max_pool2d of PyTorch, whose values, gradients and choice among equals these are
Guarantee   Results and gradients have the bits of torch's. No number of threads changes one.
Complexity  One comparison per result and place of the window.
Gaps        Without the native part, or on a GPU, torch computes, and places of 8 bytes are there for a while.
"""

from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tightrope.native.interface import INTEGER, POINTER, load, missing
from tightrope_forms.defined import define, differentiate

SOURCE: Final = Path(__file__).with_name("pooling.cpp")
MOST_PLACES: Final = 256
aten: Final = torch.ops.aten


@cache
def _calls() -> Any:
    """Load the library; None where there is none."""
    if missing(SOURCE):
        return None
    call = load(SOURCE).tightrope_pooling
    call.argtypes, call.restype = [POINTER, INTEGER, *[POINTER] * 3], None
    return call


def sizes_of(x: Any, kernel: list[int], stride: list[int], padding: list[int]) -> list[int]:
    """Return rows and columns of the result."""
    pairs = zip(x.shape[-2:], kernel, stride, padding, strict=True)
    return [(size + 2 * pad - window) // step + 1 for size, window, step, pad in pairs]


def _native(x: Tensor) -> bool:
    return x.is_cpu and x.dtype in (torch.float32, torch.float64) and _calls() is not None


def _call(back: bool, x: Tensor, y: Tensor, who: Tensor, *window: list[int]) -> None:
    planes = x.numel() // (x.shape[-2] * x.shape[-1])
    every = (
        x.element_size(),
        planes,
        *x.shape[-2:],
        *y.shape[-2:],
        *chain(*window),
        torch.get_num_threads(),
    )
    _calls()((INTEGER * 13)(*every), back, x.data_ptr(), y.data_ptr(), who.data_ptr())


def _empty(x: Tensor, *window: list[int]) -> tuple[Tensor, Tensor]:
    shape = [*x.shape[:-2], *sizes_of(x, *window)]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


def _pool(x: Tensor, *window: list[int]) -> tuple[Tensor, Tensor]:
    if _native(x):
        x, (made, who) = x.contiguous(), _empty(x, *window)
        _call(False, x, made, who, *window)
        return made, who
    made, where = aten.max_pool2d_with_indices.default(x, *window)
    down, right = _begins(made, *window)
    row, column = where // x.shape[-1], where % x.shape[-1]
    return made, ((row - down) * window[0][1] + column - right).to(torch.uint8)


def _begins(made: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    """Say in which row and column windows begin."""
    rows, columns = (
        torch.arange(size, device=made.device) * step - pad
        for size, step, pad in zip(made.shape[-2:], stride, padding, strict=True)
    )
    return rows[:, None], columns


def _pool_back(grad: Tensor, who: Tensor, shape: list[int], *window: list[int]) -> Tensor:
    made = grad.new_empty(shape)
    if _native(grad):
        _call(True, made, grad.contiguous(), who, *window)
        return made
    down, right = _begins(grad, *window)
    place = who.long()
    where = (place // window[0][1] + down) * shape[-1] + place % window[0][1] + right
    where = where.clamp_(0, shape[-2] * shape[-1] - 1)  # bytes may be those of a result that was never made
    given: Tensor = aten.max_pool2d_with_indices_backward.default(grad, made, *window, [1, 1], False, where)
    return given


_WINDOW: Final = "int[2] kernel, int[2] stride, int[2] padding"
POOL: Final = define(f"max_pool(Tensor x, {_WINDOW}) -> (Tensor, Tensor)", _pool, _empty)
"""Results, and the places of the maxima in their windows, row by row."""
POOL_BACK: Final = define(
    f"max_pool_back(Tensor grad, Tensor who, int[] shape, {_WINDOW}) -> Tensor",
    _pool_back,
    lambda grad, who, shape, *_: grad.new_empty(shape),
)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.window = inputs
    ctx.shape = list(x.shape)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _back(ctx: Any, grad: Tensor, _: Any) -> Any:
    return POOL_BACK(grad, *ctx.saved_tensors, ctx.shape, *ctx.window), None, None, None


differentiate(POOL, _keep, _back)
