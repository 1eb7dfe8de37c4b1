"""Compute a captured forward with PyTorch, op by op: the ranges of its values, and a reference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.core import Op, StorageId, TightropeError, View
from tightrope.core.values import EMPTY
from tightrope_micro.infer.capture import FloatNet
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
        values[op.creates[0]] = found.reshape(-1)
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


def _conv(given: list[Any]) -> Tensor:
    x, w, b, stride, padding, groups = given
    return F.conv2d(x, w, b, whole_numbers(stride), whole_numbers(padding), 1, groups)


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


def _max_pool(_: Op, given: list[Any]) -> Tensor:
    window, stride, padding = map(whole_numbers, given[1:4])
    return F.max_pool2d(given[0], window, stride, padding)


_OPS: Final[Mapping[str, Callable[[Op, list[Any]], Tensor]]] = {
    "add": lambda _, a: a[0] + a[1],
    "add_rows": lambda _, a: a[0] + a[1],
    "attention": _attention,
    "avg_pool2d": lambda _, a: F.avg_pool2d(a[0], whole_numbers(a[1]), whole_numbers(a[2])),
    "cat": lambda _, a: torch.cat((a[0].reshape(-1), a[1].reshape(-1))),
    "conv2d": lambda _, a: _conv(a),
    "conv2d_add": lambda _, a: a[0] + _conv(a[1:]),
    "gather": _gather,
    "gelu": lambda _, a: F.gelu(a[0]),
    "layer_norm": _layer_norm,
    "linear": lambda _, a: F.linear(*a[:3]),
    "linear_add": lambda _, a: a[0].reshape(-1) + F.linear(*a[1:4]).reshape(-1),
    "max_pool2d_only": _max_pool,
    "mean_rows": lambda _, a: a[0].mean(1),
    "relu": lambda _, a: F.relu(a[0]),
    "row_stats": _row_stats,
}  # fmt: skip
