"""Write an integer net as calls of CMSIS-NN: its layers with their weights, biases, multipliers and clamps.

Maps have channels last, as that library wants them. It has no 16-bit results, averages keep the unit of
their input, and a sum is a pass of its own. So some tensors have another unit there: ``units`` says how many
of the net's own units one of theirs is. Biases and multipliers of what reads them are changed by that.
"""

import math
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tightrope.core import Op, StorageId, View
from tightrope_micro.forward.reference import convolved
from tightrope_micro.integer.epilogue import LIMITS, Whole
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.translator import whole_numbers

_HEAD: Final = """#include "tightrope_micro.h"
#include <arm_nnfunctions.h>
#ifdef TR_TELL
#define TELL tr_storage_write
#else
#define TELL(offset, from, bytes) (void)0
#endif
unsigned char tr_arena[TR_ARENA_BYTES];
tr_counters tr_pages;
static int8_t scratch[1 << 16] __attribute__((aligned(16)));
static const cmsis_nn_context ctx = {scratch, sizeof scratch};
"""
_WIDE: Final = 256
"""Units of 16-bit results in one of the 8 bits that stand for them there."""
_LEFT: Final = 20
"""Bits that sums of two tensors are shifted by before they are rescaled."""


def transposed(array: NDArray[Any]) -> NDArray[Any]:
    """Put channels last: of a map, or of the windows of a layer."""
    return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


class Caller:
    """Writes the calls.

    Attributes:
        units: storage -> own units in one of the library's.
        places: storage -> where the values of its op are told: offset and shape, channels last.
    """

    def __init__(self, net: IntegerNet, values: Mapping[StorageId, Whole]) -> None:
        (given,) = net.graph.parts[0].inputs
        assert given.view is not None
        self.net, self.values = net, values
        self.units: dict[StorageId, float] = {given.view.base: 1.0}
        self.places: dict[StorageId, tuple[int, tuple[int, ...]]] = {}
        self.given = given.view
        self.arrays: list[str] = []
        self.lines: list[str] = []
        self.told = prod(given.view.shape)

    def text(self) -> str:
        """The C of the net."""
        size = self.told
        self._array("int8_t", f"x{self.given.base}", size)
        last = self.given.base
        for op in self.net.graph.ops:
            last = op.creates[0]
            if op.target == "micro.q_avg_pool2d":
                _average(self, op)
            else:
                self._layer(op)
            view = op.results[0].view
            shape = transposed(np.empty(view.shape)).shape
            self.places[last] = (self.told, shape)
            self._array("int8_t", f"x{last}", 2 * prod(shape))  # of 16 bits is what the bench prints
            self.lines.append(f"TELL({self.told}u, x{last}, {prod(shape)}u);")
            self.told += prod(shape)
        body = "\n    ".join([f"tr_storage_read(0u, x{self.given.base}, {size}u);", *self.lines])
        return (
            f"{_HEAD}const tr_place tr_inputs[] = {{{{0u, {size}u}}}};\n" + "\n".join(self.arrays)
            + f"\nconst void *tightrope_infer(void)\n{{\n    int failed = 0;\n    {body}\n"
            f"    if (failed)\n        __builtin_trap();\n    return x{last};\n}}\n"
        )  # fmt: skip

    def _array(self, kind: str, name: str, given: int | NDArray[np.int64]) -> None:
        if isinstance(given, int):
            self.arrays.append(f"static {kind} {name}[{given}] __attribute__((aligned(16)));")
            return
        numbers = ",".join(map(str, given.ravel().tolist()))
        self.arrays.append(f"static const {kind} {name}[] __attribute__((aligned(16))) = {{{numbers}}};")

    def constants(self, op: Op, at: int, ratios: NDArray[np.float64]) -> str:
        """Write weights, biases and multipliers of a layer whose input is argument ``at``."""
        name = op.creates[0]
        x, *views = op.arguments[at : at + 3]
        assert isinstance(x, View)
        w, b = (self.net.constants.read(v).astype(np.int64) for v in views if isinstance(v, View))
        depth = w.ndim == 4 and op.arguments[at + 6] != 1
        laid = w.transpose(1, 2, 3, 0) if depth else transposed(w)
        pairs = [multiplier(ratio * self.units[x.base]) for ratio in ratios.tolist()]
        self._array("int8_t", f"w{name}", laid)
        self._array("int32_t", f"b{name}", np.rint(b / self.units[x.base]).astype(np.int64))
        self._array("int32_t", f"m{name}", np.array([m for m, _ in pairs]))
        self._array("int32_t", f"s{name}", np.array([s for _, s in pairs]))
        return f"&(const cmsis_nn_per_channel_quant_params){{(int32_t *)m{name}, (int32_t *)s{name}}}"

    def _layer(self, op: Op) -> None:
        """A layer, or one that adds to a stream: then the sum is a call of its own."""
        call = _LAYERS.get(op.target)
        if call is None:
            raise ValueError(f"{op.target} is not written as a call of CMSIS-NN")
        made, adds = op.creates[0], op.target.endswith("_add")
        times = op.arguments[3 + adds]
        assert isinstance(times, View)
        m = self.net.constants.read(times).astype(np.float64)
        pre, shift, low, high = (int(value) for value in op.arguments[-4:] if isinstance(value, int))
        if not adds:
            wide = op.results[0].view.dtype == "int16"
            self.units[made] = _WIDE if wide else 1.0
            low, high = (-128, 127) if wide else (low, high)
            self.lines.append(
                call(self, op, 0, m * 2.0 ** -(pre + shift) / self.units[made], f"{{{low}, {high}}}")
            )
            return
        stream = op.arguments[0]
        assert isinstance(stream, View)
        assert stream.dtype == "int8"
        assert op.results[0].view.dtype == "int8"
        unit = self._apart(op, m[1]) / LIMITS["int8"][1]
        self.lines.append(call(self, op, 1, 1 / (m[1] * unit), "{-128, 127}"))
        self.units[made] = 1.0
        ratio = float(np.mean(m[0] * m[1])) * 2.0 ** -(pre + shift)
        other = self.units[stream.base]
        twice = 2 * max(unit, other)
        numbers = [multiplier(one) for one in (unit / twice, other / twice, twice * ratio * 2.0**-_LEFT)]
        one, two, three = (f"{a}, {b}" for a, b in numbers)
        self.lines.append(
            f"failed |= arm_elementwise_add_s8(x{made}, x{stream.base}, 0, {one}, 0, {two}, {_LEFT}, "
            f"x{made}, 0, {three}, {low}, {high}, {prod(op.results[0].view.shape)});"
        )

    def _apart(self, op: Op, factors: NDArray[np.float64]) -> float:
        """Largest sum of products of a layer that adds to a stream, in units of the stream."""
        x, w, b, _, *geometry = op.arguments[1:-4]
        views = [v for v in (w, b) if isinstance(v, View)]
        assert isinstance(x, View)
        given = self.values[x.base].reshape(x.shape)
        one, weight, bias = (
            torch.from_numpy(a.astype(np.float64)) for a in (given, *map(self.net.constants.read, views))
        )
        sums = convolved(one, weight, bias, tuple(geometry), op.results[0].view.shape).numpy()
        return float(np.abs(sums / factors[:, None, None]).max())


def multiplier(ratio: float) -> tuple[int, int]:
    """A ratio as a number of 31 bits and a shift to the left.

    >>> multiplier(0.75), multiplier(3.0)
    ((1610612736, 0), (1610612736, 2))
    """
    part, shift = math.frexp(ratio)
    whole = round(part * 2**31)
    return (whole // 2, shift + 1) if whole == 2**31 else (whole, shift)


def _dims(*sizes: int) -> str:
    return f"&(const cmsis_nn_dims){{{', '.join(map(str, sizes))}}}"


def _map(view: View) -> str:
    """Sizes of a map, channels last."""
    return _dims(*transposed(np.empty(view.shape)).shape)


def _convolution(caller: Caller, op: Op, at: int, ratios: NDArray[np.float64], ends: str) -> str:
    x, w = op.arguments[at : at + 2]
    assert isinstance(x, View)
    assert isinstance(w, View)
    made, constants = op.creates[0], caller.constants(op, at, ratios)
    (sy, sx), (py, px) = whole_numbers(op.arguments[at + 4]), whole_numbers(op.arguments[at + 5])
    depth = op.arguments[at + 6] != 1
    params = f"0, 0, {'1, ' if depth else ''}{{{sx}, {sy}}}, {{{px}, {py}}}, {{1, 1}}, {ends}"
    kind = "cmsis_nn_dw_conv_params" if depth else "cmsis_nn_conv_params"
    filters = (1, *w.shape[2:], w.shape[0]) if depth else (w.shape[0], *w.shape[2:], w.shape[1])
    function = "arm_depthwise_conv_wrapper_s8" if depth else "arm_convolve_wrapper_s8"
    return (
        f"failed |= {function}(&ctx, &(const {kind}){{{params}}}, {constants}, {_map(x)}, x{x.base}, "
        f"{_dims(*filters)}, w{made}, {_dims(1, 1, 1, w.shape[0])}, b{made}, "
        f"{_map(op.results[0].view)}, x{made});"
    )


def _dense(caller: Caller, op: Op, at: int, ratios: NDArray[np.float64], ends: str) -> str:
    x, w = op.arguments[at : at + 2]
    assert isinstance(x, View)
    assert isinstance(w, View)
    made, constants = op.creates[0], caller.constants(op, at, ratios)
    assert prod(x.shape[2:]) == 1  # weights would need another order
    rows, wide = prod(x.shape) // w.shape[1], w.shape[1]
    return (
        f"failed |= arm_fully_connected_per_channel_s8(&ctx, &(const cmsis_nn_fc_params){{0, 0, 0, {ends}}}, "
        f"{constants}, {_dims(rows, 1, 1, wide)}, x{x.base}, {_dims(wide, 1, 1, w.shape[0])}, w{made}, "
        f"{_dims(1, 1, 1, w.shape[0])}, b{made}, {_dims(rows, 1, 1, w.shape[0])}, x{made});"
    )


def _average(caller: Caller, op: Op) -> None:
    x, made = op.arguments[0], op.creates[0]
    assert isinstance(x, View)
    (ky, kx), (sy, sx) = whole_numbers(op.arguments[1]), whole_numbers(op.arguments[2])
    times, pre, shift = (int(value) for value in op.arguments[3:6] if isinstance(value, int))
    caller.units[made] = caller.units[x.base] * ky * kx * times * 2.0 ** -(pre + shift)
    caller.lines.append(
        f"failed |= arm_avgpool_s8(&ctx, &(const cmsis_nn_pool_params){{{{{sx}, {sy}}}, {{0, 0}}, "
        f"{{-128, 127}}}}, {_map(x)}, x{x.base}, {_dims(1, ky, kx, 1)}, {_map(op.results[0].view)}, x{made});"
    )


_LAYERS: Final = {
    "micro.q_conv2d": _convolution,
    "micro.q_conv2d_add": _convolution,
    "micro.q_linear": _dense,
}
