"""Compute a captured forward with PyTorch, op by op: the ranges of its values, and a reference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.core import Op, StorageId, TightropeError, View
from tightrope.core.values import EMPTY
from tightrope_micro.forward.capture import FloatNet
from tightrope_micro.translator import whole_numbers

SCORES: Final = "scores"
"""What is seen of an attention beside its result: scores before softmax."""
Seen = Callable[[Op, str, Tensor], None]


def evaluate_net(net: FloatNet, inputs: Sequence[Tensor], seen: Seen | None = None) -> Tensor:
    """Compute the forward of one sample.

    Args:
        net: captured.
        inputs: in the order of the call.
        seen: called with every op, ``""`` or `SCORES`, and the value.

    Returns:
        What the net returns.
    """
    values: dict[StorageId, Tensor] = {}
    for one in net.graph.parts[0].inputs:
        assert one.view is not None
        name = net.graph.storages[one.view.base].module
        values[one.view.base] = inputs[int(name.removeprefix("input_"))].float().reshape(-1)

    def read(value: Any) -> Any:
        if not isinstance(value, View):
            return value
        if value.base == EMPTY:
            return torch.from_numpy(net.constants.read(value).copy())
        return values[value.base].reshape(value.shape)

    for op in net.graph.ops:
        given = [read(value) for value in op.arguments]
        found = _OPS[op.target.removeprefix("micro.")](op, given)
        if op.target == "micro.attention" and seen is not None:
            seen(op, SCORES, _scores(given))
        several = found if isinstance(found, tuple) else (found,)
        for storage, one in zip(op.creates, several, strict=False):
            values[storage] = one.reshape(-1)
        found = several[0]
        if seen is not None:
            seen(op, "", found)
    (out,) = net.graph.parts[0].outputs
    result: Tensor = read(out)
    return result


def ranges_of(net: FloatNet, samples: Sequence[Sequence[Tensor]]) -> Mapping[str, float]:
    """Find the largest absolute value that every storage takes: name of its op, or of the input -> value.

    Args:
        net: captured.
        samples: inputs of several calls.

    Raises:
        TightropeError: there are none.
    """
    most: dict[str, float] = {}

    def note(name: str, value: Tensor) -> None:
        most[name] = float(np.maximum(most.get(name, 1e-6), float(value.abs().max())))  # NaN stays NaN

    if not samples:
        raise TightropeError(
            "ranges come from samples: give some inputs like those that the device will get."
        )
    for inputs in samples:
        for number, value in enumerate(inputs):
            note(f"input_{number}", value)
        evaluate_net(net, inputs, lambda op, what, value: note(f"{op.name} {what}".strip(), value))
    return most


def _scores(given: list[Any]) -> Tensor:
    q, k, _, scale, causal = given
    scores: Tensor = q.transpose(1, 2) @ k.transpose(1, 2).mT * scale
    if causal:
        rows, keys = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(rows, keys).triu(1).bool(), float("-inf"))
    return scores


def _attention(_: Op, given: list[Any]) -> Tensor:
    shares = torch.softmax(_scores(given), -1)
    mixed: Tensor = (shares @ given[2].transpose(1, 2)).transpose(1, 2)
    return mixed


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor, geometry: Sequence[Any], made: tuple[int, ...]
) -> Tensor:
    """Convolve; windows may end as far outside as the result has elements.

    Args:
        x: [n][channels][height][width].
        weight: as for `torch.nn.functional.conv2d`.
        bias: the same.
        geometry: stride, padding above and to the left, groups; and dilation.
        made: sizes of the result.
    """
    stride, before, groups = whole_numbers(geometry[0]), whole_numbers(geometry[1]), geometry[2]
    apart = whole_numbers(geometry[3]) if len(geometry) > 3 else (1, 1)
    ends = [
        (count - 1) * by + (window - 1) * step + 1 - size - first
        for count, by, window, step, size, first in zip(
            made[2:], stride, weight.shape[2:], apart, x.shape[2:], before, strict=True
        )
    ]
    wide = F.pad(x, (before[1], ends[1], before[0], ends[0]))
    return F.conv2d(wide, weight, bias, stride, 0, apart, groups)


def _conv(op: Op, given: list[Any]) -> Tensor:
    x, weight, bias, *geometry = given
    return convolved(x, weight, bias, geometry, op.results[0].view.shape)


def _gather(_: Op, given: list[Any]) -> Tensor:
    x, shape, strides, offset = given
    found: Tensor = x.reshape(-1).as_strided(whole_numbers(shape), whole_numbers(strides), offset)
    return found.clone()


def _layer_norm(_: Op, given: list[Any]) -> Tensor:
    x, stats, weight, bias = given
    mean, scale = stats.reshape(2, *x.shape[:-1], 1)
    y: Tensor = (x - mean) * scale
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _row_stats(_: Op, given: list[Any]) -> Tensor:
    x, eps = given
    mean, var = x.mean(-1).reshape(-1), x.var(-1, unbiased=False).reshape(-1)
    return torch.stack((mean, (var + eps).rsqrt()))


def max_pooled(x: Tensor, windows: Sequence[Any], made: tuple[int, ...]) -> Tensor:
    """Pool by windows of which the last may end outside: as many as the result has elements."""
    window, stride, padding = map(whole_numbers, windows)
    found = F.max_pool2d(x, window, stride, padding)
    return found if found.shape == made else F.max_pool2d(x, window, stride, padding, ceil_mode=True)


def _edges(op: Op, given: list[Any]) -> Tensor:
    x, *windows, padded, divisor = given
    window, stride, padding = map(whole_numbers, windows)
    made = op.results[0].view.shape
    for ceil in (False, True):
        found = F.avg_pool2d(x, window, stride, padding, ceil, bool(padded), divisor or None)
        if found.shape == made:
            return found
    raise AssertionError(op)


def _dilated(op: Op, given: list[Any]) -> Tensor:
    x, w, b, stride, padding, dilation, groups = given
    return convolved(x, w, b, (stride, padding, groups, dilation), op.results[0].view.shape)


def curved(x: Tensor, name: str, a: Any, b: Any) -> Tensor:
    """Compute one of `names.CURVES`."""
    simple: dict[str, Callable[[], Tensor]] = {
        "line": lambda: a * x + b, "clamp": lambda: x.clamp(a, b), "silu": lambda: F.silu(x),
        "hardswish": lambda: F.hardswish(x), "hardsigmoid": lambda: F.hardsigmoid(x),
        "leaky_relu": lambda: F.leaky_relu(x, a), "elu": lambda: F.elu(x, a),
        "softplus": lambda: F.softplus(x), "mish": lambda: F.mish(x),
        "gelu_tanh": lambda: F.gelu(x, approximate="tanh"),
    }  # fmt: skip
    found: Tensor = simple[name]() if name in simple else getattr(torch, name)(x)
    return found


def _blend(_: Op, given: list[Any]) -> Tensor:
    x, y, name = given
    found: Tensor = torch.where(x > 0, x, x * y) if name == "prelu" else getattr(torch, name)(x, y)
    return found


def _grouped(given: list[Any], at: int) -> Tensor:
    """Numbers of which a function takes `size` that lie `inner` apart: [outer, size, inner]."""
    size, inner = given[at : at + 2]
    found: Tensor = given[0].reshape(-1, size, inner)
    return found


def _reduced(_: Op, given: list[Any]) -> Tensor:
    found: Tensor = getattr(torch, given[1])(_grouped(given, 2), 1)
    return found


def _padded(op: Op, given: list[Any]) -> Tensor:
    x, before, value = given
    found = torch.full(op.results[0].view.shape, value)
    cut = tuple(slice(max(0, -one), None) for one in whole_numbers(before))
    x = x[cut]
    ends = [(max(0, one), size) for one, size in zip(whole_numbers(before), x.shape, strict=True)]
    part = found[tuple(slice(first, first + size) for first, size in ends)]
    part.copy_(x[tuple(slice(0, size) for size in part.shape)])
    return found


def _upsampled(op: Op, given: list[Any]) -> Tensor:
    x, kind, corners, *ratios = given
    (h, w), (oh, ow) = x.shape[2:], op.results[0].view.shape[2:]
    if kind == "nearest":
        rows, columns = (
            (torch.arange(o, dtype=torch.float32) * r).floor().long().clamp(max=i - 1)
            for o, r, i in ((oh, ratios[0], h), (ow, ratios[1], w))
        )
        nearest: Tensor = x[:, :, rows][:, :, :, columns]
        return nearest
    found: Tensor = torch.ops.aten.upsample_bilinear2d(
        x, [oh, ow], bool(corners), None if corners else 1 / ratios[0], None if corners else 1 / ratios[1]
    )
    return found


def _adaptive(op: Op, given: list[Any]) -> Tensor:
    size: Any = op.results[0].view.shape[2:]
    pool = F.adaptive_max_pool2d if given[1] == "amax" else F.adaptive_avg_pool2d
    found: Tensor = pool(given[0], size)
    return found


def _recurrent(_: Op, given: list[Any]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.ops.tightrope_micro.recurrent(*given[:8], *map(bool, given[8:10]))
    return found


_OPS: Final[Mapping[str, Callable[[Op, list[Any]], Any]]] = {
    "adaptive_pool2d": _adaptive,
    "add": lambda _, a: a[0] + a[1],
    "add_rows": lambda _, a: a[0] + a[1],
    "argmax": lambda _, a: _grouped(a, 1).argmax(1).int(),
    "attention": _attention,
    "avg_pool2d": lambda _, a: F.avg_pool2d(a[0], whole_numbers(a[1]), whole_numbers(a[2])),
    "avg_pool2d_edge": _edges,
    "blend": _blend,
    "bmm": lambda _, a: torch.bmm(a[0], a[1]),
    "cat": lambda _, a: torch.cat((a[0].reshape(a[2], -1), a[1].reshape(a[2], -1)), 1),
    "conv2d": _conv,
    "conv2d_add": lambda op, a: a[0] + _conv(op, a[1:]),
    "conv2d_dilated": _dilated,
    "curve": lambda _, a: curved(*a),
    "gather": _gather,
    "gelu": lambda _, a: F.gelu(a[0]),
    "group_norm": lambda _, a: F.group_norm(a[0], a[3], a[1], a[2], a[4]),
    "layer_norm": _layer_norm,
    "linear": lambda _, a: F.linear(*a[:3]),
    "linear_add": lambda _, a: a[0].reshape(-1) + F.linear(*a[1:4]).reshape(-1),
    "max_pool2d_only": lambda op, a: max_pooled(a[0], a[1:4], op.results[0].view.shape),
    "mean_rows": lambda _, a: a[0].mean(1),
    "pad": _padded,
    "recurrent": _recurrent,
    "reduce": _reduced,
    "relu": lambda _, a: F.relu(a[0]),
    "row_stats": _row_stats,
    "softmax": lambda _, a: (torch.log_softmax if a[3] else torch.softmax)(_grouped(a, 1), 1),
    "upsample2d": _upsampled,
}  # fmt: skip
