"""Compute an integer net with NumPy: the reference for its C, exact or cut to 32 bits.

Guarantee   Uncut, exact: sums of products are formed in float64, where whole numbers below 2^53 are exact.
            Float kernels are computed in float64 and rounded; those in C may differ from that by one unit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional as F

from tightrope.core import Graph, Op, StorageId, View
from tightrope.core.values import EMPTY
from tightrope_micro.constants import Constants
from tightrope_micro.forward.reference import convolved, max_pooled
from tightrope_micro.integer.epilogue import Whole, requantized, wrap32
from tightrope_micro.integer.evaluate import evaluate
from tightrope_micro.integer.floats import FloatRows, nearest
from tightrope_micro.integer.program import RowProgram
from tightrope_micro.translator import whole_numbers


class NetEvaluator:
    """Compute a net of ops ``micro.q_...``.

    Args:
        graph: quantized.
        constants: its weights, multipliers and tables.
        programs: its kernels of rows.
        wrapped: cut every intermediate to 32 bits, as a kernel would compute that nobody has proved.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Constants,
        programs: Sequence[RowProgram | FloatRows],
        *,
        wrapped: bool = False,
    ) -> None:
        self.graph, self.constants, self.wrapped = graph, constants, wrapped
        self.programs = {program.name: program for program in programs}

    def __call__(self, inputs: Sequence[Whole]) -> Whole:
        """Compute one call; inputs and result are whole numbers."""
        (out,) = self.graph.parts[0].outputs
        result: Whole = self._read(out, self.values(inputs))
        return result

    def values(self, inputs: Sequence[Whole]) -> dict[StorageId, Whole]:
        """Compute one call; returns inputs and what every op makes, flat."""
        values: dict[StorageId, Whole] = {}
        for one in self.graph.parts[0].inputs:
            assert one.view is not None
            values[one.view.base] = inputs[int(one.name.removeprefix("input_"))].astype(np.int64).ravel()
        for op in self.graph.ops:
            found = _OPS[op.target.removeprefix("micro.")](
                self, op, [self._read(v, values) for v in op.arguments]
            )
            values[op.creates[0]] = found.ravel()
        return values

    def _read(self, value: Any, values: Mapping[StorageId, Whole]) -> Any:
        if not isinstance(value, View):
            return value
        if value.base == EMPTY:
            return self.constants.read(value).astype(np.int64)
        return values[value.base].reshape(value.shape)

    def cut(self, value: Whole) -> Whole:
        """Cut to 32 bits where that is asked for."""
        return wrap32(value) if self.wrapped else value

    def to(self, sums: Whole, times: Whole, numbers: Sequence[int]) -> Whole:
        """Change the format of sums."""
        pre, shift, low, high = numbers
        return np.clip(requantized(sums, times, pre, shift, wrapped=self.wrapped), low, high)

    def rows(self, name: str, x: Whole) -> Whole:
        """Run the kernel of a name over the rows of x."""
        program = self.programs[name]
        if isinstance(program, FloatRows):
            return nearest(program, x.reshape(-1, program.length)).reshape(x.shape)
        found = evaluate(program, x.reshape(-1, program.length), wrapped=self.wrapped)
        return found.reshape(x.shape)


def _double(value: Whole) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(value, dtype=np.float64))


def _whole(value: torch.Tensor) -> Whole:
    found: Whole = np.rint(value.numpy()).astype(np.int64)
    return found


def _conv(net: NetEvaluator, op: Op, given: list[Any]) -> Whole:
    x, w, b, m, stride, padding, groups, *numbers = given
    geometry = (stride, padding, groups)
    sums = _whole(convolved(_double(x), _double(w), _double(b), geometry, op.results[0].view.shape))
    return _rounded(net, sums, m[..., None, None], numbers)


def _linear(net: NetEvaluator, _: Op, given: list[Any]) -> Whole:
    x, w, b, m, *numbers = given
    return _rounded(net, _whole(F.linear(_double(x), _double(w), _double(b))), m, numbers)


def _rounded(net: NetEvaluator, sums: Whole, times: Whole, numbers: Sequence[Any]) -> Whole:
    """Change the format of sums per channel; with a thin stream, add it times its factors before."""
    if isinstance(numbers[0], int):
        return net.to(net.cut(sums), times, numbers)
    stream, *rest = numbers
    return net.to(net.cut(sums + stream.reshape(sums.shape) * times[1]), times[0], rest)


def _added(layer: "_Rule") -> "_Rule":
    def rule(net: NetEvaluator, op: Op, given: list[Any]) -> Whole:
        stream, *_ = op.arguments
        assert isinstance(stream, View)
        if stream.dtype == "int8":
            return layer(net, op, [*given[1:-4], given[0], *given[-4:]])
        *inner, low, high = given[1:]
        found = layer(net, op, [*inner, -(2**15), 2**15 - 1])
        total: Whole = np.clip(given[0].ravel() + found.ravel(), low, high)
        return total

    return rule


def _add(net: NetEvaluator, _: Op, given: list[Any]) -> Whole:
    if len(given) == 4:
        total: Whole = np.clip(given[0] + given[1], *given[2:])
        return total
    one, other, *factors, times, pre, shift, low, high = given
    sums = net.cut(one * factors[0] + other * factors[1])
    return net.to(sums, np.array(times), (pre, shift, low, high))


def _attention(net: NetEvaluator, _: Op, given: list[Any]) -> Whole:
    q, k, v, *first, m, pre, shift, name = given
    heads = [_double(one).transpose(1, 2) for one in (q, k, v)]
    times, before, after = first
    scores = net.to(net.cut(_whole(heads[0] @ heads[1].mT)), np.array(times), (before, after, -128, 127))
    sums = _whole((_double(net.rows(name, scores)) @ heads[2]).transpose(1, 2))
    return net.to(net.cut(sums), np.array(m), (pre, shift, -128, 127))


def _softmax(net: NetEvaluator, op: Op, given: list[Any]) -> Whole:
    x, size, name = given
    shares = net.rows(name, x.reshape(-1, size)).reshape(x.shape)
    wide = op.results[0].view.dtype == "int16"
    found: Whole = shares * 128 if wide else np.minimum((shares + 1) // 2, 127)
    return found


def _average(net: NetEvaluator, _: Op, given: list[Any]) -> Whole:
    x, window, stride, m, *numbers = given
    size = whole_numbers(window)
    mean = F.avg_pool2d(_double(x), size, whole_numbers(stride), divisor_override=1)
    return net.to(net.cut(_whole(mean)), np.array(m), numbers)


def _gather(_: NetEvaluator, __: Op, given: list[Any]) -> Whole:
    x, shape, strides, offset = given
    tensor = torch.from_numpy(x.ravel().copy())
    found: Whole = tensor.as_strided(whole_numbers(shape), whole_numbers(strides), offset).numpy().copy()
    return found


def _max_pool(_: NetEvaluator, op: Op, given: list[Any]) -> Whole:
    return _whole(max_pooled(_double(given[0]), given[1:4], op.results[0].view.shape))


_Rule = Callable[[NetEvaluator, Op, list[Any]], Whole]
_OPS: Final[Mapping[str, _Rule]] = {
    "cat": lambda _, __, a: np.concatenate((a[0].reshape(a[2], -1), a[1].reshape(a[2], -1)), axis=1),
    "gather": _gather,
    "q_add": _add,
    "q_add_rows": lambda _, __, a: np.clip(a[0] + a[1], a[2], a[3]),
    "q_attention": _attention,
    "q_avg_pool2d": _average,
    "q_conv2d": _conv,
    "q_conv2d_add": _added(_conv),
    "q_gelu": lambda net, _, a: net.rows(a[1], a[0]),
    "q_layer_norm": lambda net, _, a: net.rows(a[1], a[0]),
    "q_linear": _linear,
    "q_linear_add": _added(_linear),
    "q_max_pool2d": _max_pool,
    "q_mean_rows": lambda net, _, a: net.to(net.cut(a[0].sum(axis=1)), np.array(a[1]), a[2:]),
    "q_narrow": lambda net, _, a: net.to(a[0], np.array(a[1]), a[2:]),
    "q_relu_int16": lambda _, __, a: np.maximum(a[0], 0),
    "q_relu_int8": lambda _, __, a: np.maximum(a[0], 0),
    "q_softmax": _softmax,
    "q_table": lambda _, __, a: a[1][a[0] + 128],
    "q_widen": lambda net, _, a: net.to(a[0], np.array(a[1]), a[2:]),
}  # fmt: skip
