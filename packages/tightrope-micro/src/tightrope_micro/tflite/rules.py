"""Ops of TensorFlow Lite in int8 as kernels: what each reads, multiplies by and rounds to."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Argument, Items, View
from tightrope_micro.names import DIMENSIONS
from tightrope_micro.tflite.file import TfliteOp
from tightrope_micro.tflite.rounding import (
    TFLITE_CURVES,
    curve_table,
    hard_swish_table,
    mean_multiplier,
    nearest,
    single,
    softmax_powers,
    stays,
)
from tightrope_micro.tflite.writer import TfliteWriter

_SAME, _VALID = 0, 1
_REACH: Final = 255
_EDGES: Final = ("int8", "uint8")


def _window(
    w: TfliteWriter, op: TfliteOp, sizes: Sequence[int], taps: Sequence[int]
) -> list[tuple[int, ...]]:
    """Strides, dilation, padding before, and sizes of the result of a window over rows and columns."""
    o = op.options
    strides = (o["StrideH"], o["StrideW"])
    dilation = (o.get("DilationHFactor", 1), o.get("DilationWFactor", 1))
    if min(*strides, *dilation, *taps) < 1 or max(*strides, *dilation, *taps) > 2**15:
        w.refuse(f"has a window of {list(taps)} with strides {list(strides)} and dilation {list(dilation)}")
    if o["Padding"] not in (_SAME, _VALID):
        w.refuse(f"has padding of number {o['Padding']}")
    before, made = [], []
    for size, tap, stride, spread in zip(sizes, taps, strides, dilation, strict=True):
        reach = (tap - 1) * spread + 1
        count = -(-size // stride) if o["Padding"] == _SAME else (size - reach) // stride + 1
        if count < 1:
            w.refuse(f"has a window of {list(taps)} on a map of {list(sizes)}")
        made.append(count)
        same = max(0, (count - 1) * stride + reach - size) // 2
        before.append(same if o["Padding"] == _SAME else 0)
    return [strides, dilation, tuple(before), tuple(made)]


def _weights(
    w: TfliteWriter, op: TfliteOp, axis: int, *, dense: bool = False
) -> tuple[NDArray[np.int8], list[View], int]:
    """Weights by channel, biases and what sums are scaled by in flash, and whether that is per channel.

    Args:
        w: the graph.
        op: with weights and, where they are not left out, biases.
        axis: of the weights' channels.
        dense: whether products are rounded once, as those of dense layers are.

    Raises:
        UnsupportedOpError: a sum may leave 32 bits, or the file is not as the kernels need.
    """
    if len(op.reads) not in (2, 3):
        w.refuse(f"reads {len(op.reads)} tensors")
    values, one = w.constant(op.reads[1], ("int8",)), w.tensor(op.reads[1])
    values = np.moveaxis(values, axis, 0)
    count = len(values)
    if one.zeros.any() or one.scales.size not in (1, count) or (one.scales.size > 1 and one.axis != axis):
        w.refuse(
            f"has weights of {count} channels with {one.scales.size} units, or with a zero that is not 0"
        )
    biased = len(op.reads) == 3 and op.reads[2] >= 0
    bias = (
        w.constant(op.reads[2], ("int32",)).astype(np.int64).reshape(-1) if biased else np.zeros(count, int)
    )
    if bias.size != count:
        w.refuse(f"has {bias.size} biases for {count} channels")
    flat = values.reshape(count, -1)
    unit, made = w.unit(op.reads[0]), w.unit(w.result(op))
    ratios = [float(unit.scale) * float(scale) / float(made.scale) for scale in one.scales]
    scaled = [w.scale(ratio) for ratio in ratios]
    folded = bias - unit.zero * flat.sum(1, dtype=np.int64)
    sizes = np.abs(flat, dtype=np.int16).sum(1, dtype=np.int64)
    partly = np.abs(folded) + 128 * sizes
    wholly = np.abs(bias) + sizes * max(127 - unit.zero, unit.zero + 128)
    for k in range(count):
        if partly[k] >= 2**31 or not stays(int(wholly[k]), *scaled[k if len(scaled) > 1 else 0]):
            w.refuse(f"may leave 32 bits in channel {k}, whose sums reach {wholly[k]}")
    starts = []
    if dense:
        low, high = (end - made.zero for end in w.limits(op))
        most = wholly if len(ratios) > 1 else [wholly.max()]
        found = [nearest(ratio, int(size), low, high) for ratio, size in zip(ratios, most, strict=True)]
        if None in found:
            w.refuse("has units for which no whole multiplier rounds as float64 does")
        scaled = [(one.multiplier, one.shift) for one in found if one is not None]
        starts = [np.array([one.start for one in found if one is not None], "<i8").view("<i4")]
    multipliers, shifts = zip(*scaled, strict=True)
    kept = [folded.astype(np.int32), np.array(multipliers, np.int32), np.array(shifts, np.int8), *starts]
    return values, [w.flash.put(array) for array in kept], int(len(scaled) > 1)


def _conv(w: TfliteWriter, op: TfliteOp) -> None:
    """Convolutions: plain ones, those in groups, and those of each channel alone."""
    deep = op.kind == "DEPTHWISE_CONV_2D"
    unit = w.unit(op.reads[0])
    pad = w.pads.get(op.reads[0])
    x = w.view(op.reads[0] if pad is None else pad.source)
    values, kept, each = _weights(w, op, 3 if deep else 0)
    if len(x.shape) != 4 or values.ndim != 4:
        w.refuse("is not one of rows and columns")
    n, *sizes, channels = x.shape
    if deep:  # of one map of weights: channels, 1, rows, columns
        values = values[:, 0, :, :, None]
    groups = channels // values.shape[3]
    fits = len(values) % channels == 0 if deep else groups * values.shape[3] == channels
    fits = fits and (deep or len(values) % groups == 0)
    if not fits or (deep and w.tensor(op.reads[1]).shape[0] != 1):
        w.refuse(f"has weights for {values.shape[3]} channels, and {channels} are given")
    if pad is not None:
        sizes = [pad.height, pad.width]
    strides, dilation, before, made = _window(w, op, sizes, values.shape[1:3])
    if pad is not None:
        before = (pad.top, pad.left)
    windows = [Items(one) for one in (strides, dilation, before)]
    weight = w.flash.put(values if not deep else values[..., 0])
    zero = w.unit(w.result(op)).zero
    arguments: list[Argument] = [x, weight, *kept, *windows, each, unit.zero, zero, *w.limits(op)]
    w.make(op, "t_depthwise_conv2d" if deep else "t_conv2d", arguments, (n, *made, len(values)))


def _dense(w: TfliteWriter, op: TfliteOp) -> None:
    if op.options["WeightsFormat"]:
        w.refuse("has weights in an order of their own")
    values, kept, each = _weights(w, op, 0, dense=True)
    x = w.view(op.reads[0])
    if values.ndim != 2 or prod(x.shape) % values.shape[1]:
        w.refuse(f"has weights of {list(values.shape)} for an input of {list(x.shape)}")
    made = w.tensor(w.result(op)).shape
    if made[-1:] != (len(values),) or prod(made) != prod(x.shape) // values.shape[1] * len(values):
        w.refuse(f"makes {list(made)} of {list(x.shape)}")
    zero = w.unit(w.result(op)).zero
    arguments: list[Argument] = [x, w.flash.put(values), *kept, each, zero, *w.limits(op)]
    w.make(op, "t_linear", arguments, made)


def _pool(w: TfliteWriter, op: TfliteOp) -> None:
    if w.unit(op.reads[0]) != w.unit(w.result(op)):
        w.refuse("has an input and a result of different units")
    x = w.view(op.reads[0])
    if len(x.shape) != 4:
        w.refuse("is not one of rows and columns")
    n, *sizes, channels = x.shape
    taps = (op.options["FilterHeight"], op.options["FilterWidth"])
    strides, _, before, made = _window(w, op, sizes, taps)
    windows = [Items(taps), Items(strides), Items(before)]
    arguments: list[Argument] = [x, *windows, int(op.kind == "MAX_POOL_2D"), *w.limits(op)]
    w.make(op, "t_pool2d", arguments, (n, *made, channels))


def _pair(w: TfliteWriter, op: TfliteOp) -> tuple[tuple[View, View], tuple[int, ...], list[Argument]]:
    """Two tensors, the shape of their sum or product, and its sizes and steps in four dimensions."""
    if len(op.reads) != 2:
        w.refuse(f"reads {len(op.reads)} tensors")
    x, z = (w.view(k) for k in op.reads)
    try:
        shape = np.broadcast_shapes(x.shape, z.shape)
    except ValueError:
        w.refuse(f"joins {list(x.shape)} and {list(z.shape)}")
    if x.shape == z.shape:
        return (x, z), shape, [Items((1, 1, 1, prod(shape))), *[Items((0, 0, 0, 1))] * 2]
    if len(shape) > DIMENSIONS:
        w.refuse(f"repeats numbers in {len(shape)} dimensions; the kernel has {DIMENSIONS}")
    steps = []
    for one in (x, z):
        sizes = (*[1] * (DIMENSIONS - len(one.shape)), *one.shape)
        steps.append(Items(tuple(0 if size == 1 else prod(sizes[k + 1 :]) for k, size in enumerate(sizes))))
    return (x, z), shape, [Items((*[1] * (DIMENSIONS - len(shape)), *shape)), *steps]


def _add(w: TfliteWriter, op: TfliteOp) -> None:
    values, shape, sizes = _pair(w, op)
    first, second, made = (w.unit(k) for k in (*op.reads, w.result(op)))
    largest = single(2 * float(max(first.scale, second.scale)))
    numbers: list[int] = []
    for unit in (first, second):
        numbers += [unit.zero, *w.scale(float(unit.scale) / largest)]
    multiplier, shift = w.scale(largest / single(2**20 * float(made.scale)))
    if shift > 0:
        w.refuse("has a result whose unit is far smaller than those of its inputs")
    w.make(op, "t_add", [*values, *sizes, *numbers, made.zero, multiplier, shift, *w.limits(op)], shape)


def _mul(w: TfliteWriter, op: TfliteOp) -> None:
    values, shape, sizes = _pair(w, op)
    first, second, made = (w.unit(k) for k in (*op.reads, w.result(op)))
    scaled = w.scale(single(single(float(first.scale) * float(second.scale)) / float(made.scale)))
    if not stays(_REACH**2, *scaled):
        w.refuse("has a result whose unit is far smaller than those of its inputs")
    numbers = [first.zero, second.zero, made.zero, *scaled, *w.limits(op)]
    w.make(op, "t_mul", [*values, *sizes, *numbers], shape)


def _softmax(w: TfliteWriter, op: TfliteOp) -> None:
    x, unit, made = w.view(op.reads[0]), w.unit(op.reads[0]), w.unit(w.result(op))
    if made.zero != -128 or abs(float(made.scale) * 256 - 1) > 0.001 or not 1 <= x.shape[-1] < 4096:
        w.refuse(f"has rows of {x.shape[-1]}, or a result that is not in units of 1/256 from -128 on")
    beta = float(op.options["Beta"])
    if not 2**-26 < beta * float(unit.scale) < np.inf:
        w.refuse(f"multiplies scores by {beta:.3g}, in a unit of {unit.scale:.3g}")
    powers = softmax_powers(float(unit.scale), beta)
    w.make(op, "t_softmax", [x, w.flash.put(powers), x.shape[-1], len(powers) - 1], x.shape)


def _curve(w: TfliteWriter, op: TfliteOp) -> None:
    """A function of one number, looked up."""
    x, unit, made = w.view(op.reads[0]), w.unit(op.reads[0]), w.unit(w.result(op))
    if op.kind == "LOGISTIC" and float(made.scale) * 256 != 1:
        w.refuse("has a result that is not in units of 1/256")
    ends = (float(unit.scale), unit.zero), (float(made.scale), made.zero)
    table = hard_swish_table(*ends) if op.kind == "HARD_SWISH" else curve_table(op.kind, *ends)
    if table is None:
        w.refuse("has a result whose unit is far smaller than that of its input")
    w.make(op, "q_table", [x, w.flash.put(table)], x.shape)


def _mean(w: TfliteWriter, op: TfliteOp) -> None:
    """Over dimensions next to each other."""
    if len(op.reads) != 2:
        w.refuse(f"reads {len(op.reads)} tensors")
    x, unit, made = w.view(op.reads[0]), w.unit(op.reads[0]), w.unit(w.result(op))
    rank = len(x.shape)
    axes = sorted(
        {int(k) % rank for k in w.constant(op.reads[1], ("int32",)).reshape(-1) if -rank <= k < rank}
    )
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        w.refuse(f"goes over the dimensions {axes}, which are not next to each other")
    outer, size, inner = (
        prod(x.shape[a:b]) for a, b in ((0, axes[0]), (axes[0], axes[-1] + 1), (axes[-1] + 1, rank))
    )
    multiplier, shift = mean_multiplier(float(unit.scale) / float(made.scale), size)
    if not stays(_REACH * size, multiplier, shift):
        w.refuse(f"may leave 32 bits in a mean of {size} numbers")
    given = w.tensor(w.result(op)).shape
    kept = tuple(1 if k in axes else n for k, n in enumerate(x.shape))
    short = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    shape = kept if given == kept else short
    w.make(op, "t_mean", [x, outer, size, inner, unit.zero, multiplier, shift, made.zero], shape)


def _pad(w: TfliteWriter, op: TfliteOp) -> None:
    """Padding in up to four dimensions, of the number that stands for 0."""
    if len(op.reads) != 2:
        w.refuse(f"reads {len(op.reads)} tensors")
    x, ends = w.view(op.reads[0]), w.constant(op.reads[1], ("int32",))
    if len(x.shape) > DIMENSIONS or ends.shape != (len(x.shape), 2) or ends.min() < 0:
        w.refuse(f"pads {list(x.shape)} by {ends.tolist()}")
    zero = w.unit(w.result(op)).zero
    before = Items(tuple(ends[:, 0].tolist()))
    w.make(op, "t_pad", [x, before, zero], tuple(int(n) for n in np.add(x.shape, ends.sum(1))))


def _cat(w: TfliteWriter, op: TfliteOp) -> None:
    """Two at a time."""
    given, made = [w.view(k) for k in op.reads], w.tensor(w.result(op))
    rank = len(made.shape)
    axis = op.options["Axis"] + rank * (op.options["Axis"] < 0)
    alike = (
        all(w.unit(k) == w.unit(op.makes[0]) for k in op.reads) and not op.options["FusedActivationFunction"]
    )
    if len(given) < 2:
        w.refuse(f"joins {len(given)} tensors")
    if not alike or not 0 <= axis < rank:
        w.refuse("joins tensors of different units, or has a fused activation")
    others = {(len(v.shape), *v.shape[:axis], *v.shape[axis + 1 :]) for v in given}
    if len(others) > 1 or len(given[0].shape) != rank:
        w.refuse("joins tensors of different sizes")
    joined, outer = given[0], prod(made.shape[:axis])
    for k, one in enumerate(given[1:], 2):
        wide = joined.shape[axis] + one.shape[axis]
        shape = (*joined.shape[:axis], wide, *joined.shape[axis + 1 :])
        if k == len(given):
            return w.make(op, "cat", [joined, one, outer], shape)
        (joined,) = w.t.emit("cat", (joined, one, outer), [("int8", shape)])


def _rescale(w: TfliteWriter, op: TfliteOp) -> None:
    """8-bit numbers in other units, or real numbers as 8-bit ones."""
    x = w.view(op.reads[0], (*_EDGES, "float32"))
    made = w.tensor(w.result(op), _EDGES if x.dtype != "float32" else ("int8",))
    target = w.unit(op.makes[0], _EDGES)
    if x.dtype == "float32":
        return w.make(op, "t_quantize", [x, float(target.scale), target.zero], x.shape)
    unit = w.unit(op.reads[0], _EDGES)
    ratio = float(unit.scale) / float(target.scale)
    if op.kind != "QUANTIZE":  # which the reference computes in float32
        ratio = single(ratio)
    scaled = w.scale(ratio)
    if not stays(_REACH, *scaled):
        w.refuse(f"multiplies by {ratio:.3g}, which is too large")
    low, high = int(np.iinfo(made.dtype).min), int(np.iinfo(made.dtype).max)
    if op.kind != "QUANTIZE":
        low = max(low, target.zero)
        high = min(high, w.whole(6.0 if op.kind == "RELU6" else None, target, high))
    w.make(op, "t_rescale", [x, unit.zero, *scaled, target.zero, low, high], x.shape)


def _dequantize(w: TfliteWriter, op: TfliteOp) -> None:
    x, unit = w.view(op.reads[0]), w.unit(op.reads[0])
    w.tensor(w.result(op), ("float32",))
    w.make(op, "t_dequantize", [x, float(unit.scale), unit.zero], x.shape)


TFLITE_RULES: Final[Mapping[str, Callable[[TfliteWriter, TfliteOp], None]]] = {
    "ADD": _add,
    "AVERAGE_POOL_2D": _pool,
    "CONCATENATION": _cat,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "DEQUANTIZE": _dequantize,
    "EXPAND_DIMS": TfliteWriter.rename,
    "FULLY_CONNECTED": _dense,
    "HARD_SWISH": _curve,
    "MAX_POOL_2D": _pool,
    "MEAN": _mean,
    "MUL": _mul,
    "PAD": _pad,
    "QUANTIZE": _rescale,
    "RELU": _rescale,
    "RELU6": _rescale,
    "RESHAPE": TfliteWriter.rename,
    "SOFTMAX": _softmax,
    "SQUEEZE": TfliteWriter.rename,
    **dict.fromkeys(TFLITE_CURVES, _curve),
}
"""Op -> what writes it."""
