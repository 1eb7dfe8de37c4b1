"""TensorFlow Lite's reference arithmetic in NumPy, for nets that `benchmarks.micro.tflite_writer` writes.

Written from the kernels' definitions, in 64 bits: every rounding, division and shift is spelled out as it is
there. It shares no code with the plug-in, whose C folds zeros into biases and looks powers up.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro.tflite_writer import WrittenNet, WrittenTensor

Whole = NDArray[np.int64]


def doubled_high(a: Any, b: Any) -> Whole:
    """SaturatingRoundingDoublingHighMul: a nudge of the product's sign, then a division that truncates."""
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    found: Whole = np.sign(nudged) * (np.abs(nudged) >> 31)
    return found


def divided(x: Any, exponent: Any) -> Whole:
    """RoundingDivideByPOT: the remainder against a threshold."""
    x, exponent = np.asarray(x, np.int64), np.asarray(exponent, np.int64)
    mask = (np.int64(1) << exponent) - 1
    found: Whole = (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))
    return found


def multiplied(x: Any, multiplier: Any, shift: Any) -> Whole:
    """MultiplyByQuantizedMultiplier, rounded twice."""
    left = np.maximum(shift, 0)
    return divided(doubled_high(np.asarray(x, np.int64) * (np.int64(1) << left), multiplier), left - shift)


def rounded(x: Any) -> NDArray[np.float64]:
    """std::round: halves away from zero."""
    found: NDArray[np.float64] = np.sign(x) * np.floor(np.abs(x) + 0.5 * (np.abs(x) < 2**52))
    half = (
        np.abs(x) - np.floor(np.abs(x)) < 0.5
    )  # a number just below a half may not be rounded up by the sum
    return np.where(half, np.trunc(x), found)


def quantized(ratio: float) -> tuple[int, int]:
    """QuantizeMultiplier."""
    part, shift = math.frexp(ratio)
    fixed = int(rounded(part * 2**31))
    if fixed == 2**31:
        fixed, shift = fixed // 2, shift + 1
    return (0, 0) if shift < -31 else (fixed, shift)


def run_net(net: WrittenNet, given: NDArray[Any]) -> NDArray[Any]:
    """Compute one call of a net with one input."""
    values: dict[int, Any] = {k: one.data for k, one in enumerate(net.tensors) if one.data is not None}
    values[net.inputs[0]] = given
    for kind, reads, makes, options in net.ops:
        made = net.tensors[makes]
        read = [net.tensors[k] for k in reads if k >= 0]
        found = _KINDS[kind]([values[k] for k in reads if k >= 0], read, made, options)
        values[makes] = np.asarray(found).astype(made.dtype).reshape(made.shape)
    result: NDArray[Any] = values[net.outputs[0]]
    return result


def _ends(made: WrittenTensor, options: dict[str, Any]) -> tuple[float, float]:
    low, high = {1: (0.0, math.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}.get(
        options.get("activation", 0), (-math.inf,) * 2
    )
    limits = np.iinfo(made.dtype)
    unit = np.float32(made.scales[0])
    ends = [
        math.inf if math.isinf(v) else made.zero + float(rounded(np.float32(v) / unit)) for v in (low, high)
    ]
    return (
        limits.min if math.isinf(ends[0]) else max(limits.min, ends[0]),
        limits.max if math.isinf(ends[1]) else min(limits.max, ends[1]),
    )


def _clamped(x: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    return np.clip(x + made.zero, *_ends(made, options))


def _ratios(read: list[WrittenTensor], made: WrittenTensor, count: int) -> list[float]:
    x, w = (np.float32(read[0].scales[0]), np.array(read[1].scales, np.float32))
    found = [float(x) * float(one) / float(np.float32(made.scales[0])) for one in w]
    return found * (1 if len(found) > 1 else count)


def _windows(x: Any, taps: Any, made: WrittenTensor, options: dict[str, Any], outside: int) -> Any:
    """Windows by batch, row, column, tap row, tap column and channel; where they lie inside."""
    stride = (options["stride_h"], options["stride_w"])
    spread = (options.get("dilation_h", 1), options.get("dilation_w", 1))
    places = []
    for at in range(2):
        size, count = x.shape[1 + at], made.shape[1 + at]
        total = max(0, (count - 1) * stride[at] + (taps[at] - 1) * spread[at] + 1 - size)
        before = total // 2 if options["padding"] == 0 else 0
        places.append(np.arange(count)[:, None] * stride[at] - before + np.arange(taps[at]) * spread[at])
    rows, columns = places[0][:, None, :, None], places[1][None, :, None, :]
    inside = (rows >= 0) & (rows < x.shape[1]) & (columns >= 0) & (columns < x.shape[2])
    found = x[:, np.clip(rows, 0, x.shape[1] - 1), np.clip(columns, 0, x.shape[2] - 1)]
    return np.where(inside[None, ..., None], found, outside), inside


def _convolution(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    x, w, bias = (value.astype(np.int64) for value in values)
    deep = read[1].axis == 3
    taps = w.shape[1:3]
    windows, _ = _windows(x - read[0].zero, taps, made, options, 0)
    groups = 1 if deep else x.shape[3] // w.shape[3]
    if groups > 1:
        parts = zip(np.split(windows, groups, -1), np.split(w, groups), strict=True)
        sums = np.concatenate([np.einsum("nrcijk,oijk->nrco", a, b) for a, b in parts], -1)
    elif deep:
        windows = np.repeat(windows, w.shape[3] // x.shape[3], axis=-1)
        sums = np.einsum("nrcijk,ijk->nrck", windows, w[0])
    else:
        sums = np.einsum("nrcijk,oijk->nrco", windows, w)
    scaled = [quantized(ratio) for ratio in _ratios(read, made, made.shape[3])]
    multipliers, shifts = (np.array(one) for one in zip(*scaled, strict=True))
    return _clamped(multiplied(sums + bias, multipliers, shifts), made, options)


def _dense(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    x, w, *bias = (value.astype(np.int64) for value in values)
    sums = (x.reshape(-1, w.shape[1]) - read[0].zero) @ w.T + (bias[0] if bias else 0)
    return _clamped(rounded(sums.astype(np.float64) * np.array(_ratios(read, made, len(w)))), made, options)


def _pooled(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any], *, largest: bool) -> Any:
    taps = (options["filter_h"], options["filter_w"])
    windows, inside = _windows(values[0].astype(np.int64), taps, made, options, -128 if largest else 0)
    if largest:
        return np.clip(windows.max((3, 4)), *_ends(made, options))
    sums, count = windows.sum((3, 4)), inside.sum((2, 3))[None, ..., None]
    sums = np.where(sums > 0, sums + count // 2, sums - count // 2)
    return np.clip(np.sign(sums) * (np.abs(sums) // count), *_ends(made, options))


def _added(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    scales = [np.float32(one.scales[0]) for one in read]
    twice = float(2 * max(scales))
    parts = [
        multiplied((value.astype(np.int64) - one.zero) * 2**20, *quantized(float(scale) / twice))
        for value, one, scale in zip(values, read, scales, strict=True)
    ]
    ratio = twice / float(np.float32(2**20) * np.float32(made.scales[0]))
    return _clamped(multiplied(parts[0] + parts[1], *quantized(ratio)), made, options)


def _product(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    x, z = (value.astype(np.int64) - one.zero for value, one in zip(values, read, strict=True))
    ratio = np.float32(read[0].scales[0]) * np.float32(read[1].scales[0]) / np.float32(made.scales[0])
    return _clamped(multiplied(x * z, *quantized(float(ratio))), made, options)


def _mean(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    axes = tuple(int(k) for k in values[1])
    count = math.prod(values[0].shape[k] for k in axes)
    sums = values[0].astype(np.int64).sum(axes) - read[0].zero * count
    ratio = float(np.float32(read[0].scales[0])) / float(np.float32(made.scales[0]))
    multiplier, shift = quantized(ratio)
    more = min(int(math.log2(count)), 32, 31 + shift)
    return _clamped(multiplied(sums, (multiplier << more) // count, shift - more), made, {})


def _rescaled(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any], *, kind: str) -> Any:
    target = np.float32(made.scales[0])
    if read[0].dtype == "float32":
        return np.clip(rounded(values[0] / target) + made.zero, -128, 127)
    source = np.float32(read[0].scales[0])
    ratio = float(source) / float(target) if kind == "QUANTIZE" else float(source / target)
    found = multiplied(values[0].astype(np.int64) - read[0].zero, *quantized(ratio))
    return _clamped(found, made, {"activation": {"RELU": 1, "RELU6": 3}.get(kind, 0)})


def _curved(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any], *, kind: str) -> Any:
    """A sigmoid or a tanh in float32, number by number."""
    scale, unit = np.float32(read[0].scales[0]), np.float32(1) / np.float32(made.scales[0])

    def of(k: int) -> float:
        x = float(scale * np.float32(k - read[0].zero))
        if kind == "TANH":
            y = np.float32(math.tanh(x))
        else:
            y = np.float32(1) / (np.float32(1) + np.float32(math.exp(-x)))
        return float(rounded(np.float64(np.float32(y * unit))))

    found = {k: of(k) for k in range(-128, 128)}
    return _clamped(np.vectorize(found.__getitem__)(values[0]), made, {})


def _swish(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    """HardSwish in 16 bits."""

    def high(a: Whole, b: int) -> Whole:
        product = a * b
        nudged = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
        return np.asarray(np.sign(nudged) * (np.abs(nudged) >> 15), np.int64)

    def numbers(ratio: float) -> tuple[int, int]:
        fixed, shift = quantized(ratio)
        return min((fixed + 2**15) // 2**16, 2**15 - 1), shift

    fine = np.float32(read[0].scales[0]) / np.float32(128)
    out, down = numbers(float(fine / np.float32(made.scales[0])))
    gate, up = numbers(float(fine / (np.float32(3) / np.float32(32768))))
    x = (values[0].astype(np.int64) - read[0].zero) * 128
    y = np.clip(x * 2 ** max(0, up - 1), -(2**15), 2**15 - 1) if up > 0 else x
    y = high(y, gate)
    y = np.clip(2 * y, -(2**15), 2**15 - 1) if up > 0 else divided(y, -up)
    product = ((y + 2**15) >> 1) * high(x, out)
    return _clamped(divided(np.sign(product) * (np.abs(product) >> 15), -down), made, {})


def _joined(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    return np.concatenate(values, options["axis"])


def _padded(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    return np.pad(values[0], values[1], constant_values=made.zero)


def _plain(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    return values[0]


def _real(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    return np.float64(np.float32(read[0].scales[0])) * (values[0].astype(np.int64) - read[0].zero)


def _raised(x: Whole, by: int) -> Whole:
    """SaturatingRoundingMultiplyByPOT with a positive exponent."""
    most = (1 << (31 - by)) - 1
    found: Whole = np.where(x > most, 2**31 - 1, np.where(x < -most, -(2**31), x << by))
    return found


def _exponential(a: Whole) -> Whole:
    """exp_on_negative_values of gemmlowp, of numbers with 5 bits before the point."""
    quarter = 1 << 24
    rest = (a & (quarter - 1)) - quarter
    x = _raised(rest, 5) + (1 << 28)
    square = doubled_high(x, x)
    cube, fourth = doubled_high(square, x), doubled_high(square, square)
    inner = doubled_high(divided(fourth, 2) + cube, 715827883) + square
    found = 1895147668 + doubled_high(1895147668, x + divided(inner, 1))
    left = rest - a
    for bit, factor in zip(
        range(24, 31), (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242), strict=True
    ):
        found = np.where(left & (1 << bit), doubled_high(found, factor), found)
    result: Whole = np.where(a == 0, 2**31 - 1, found)
    return result


def _inverse(a: Whole) -> Whole:
    """one_over_one_plus_x_for_x_in_0_1 of gemmlowp."""
    half = (a + 2**31 - 1 + 1) // 2
    x = 1515870810 + doubled_high(half, -1010580540)
    for _ in range(3):
        x = x + _raised(doubled_high(x, (1 << 29) - doubled_high(half, x)), 2)
    return _raised(x, 1)


def _shares(values: Any, read: Any, made: WrittenTensor, options: dict[str, Any]) -> Any:
    scale = min(options["beta"] * float(np.float32(read[0].scales[0])) * 2**26, 2**31 - 1.0)
    multiplier, shift = quantized(float(np.float64(scale)))
    furthest = -math.floor(31 * 2**26 / 2**shift)
    x = values[0].astype(np.int64)
    below = x - x.max(-1, keepdims=True)
    powers = _exponential(doubled_high(below * 2**shift, multiplier))
    sums = np.where(below >= furthest, divided(powers, 12), 0).sum(-1, keepdims=True)
    lead = np.array([32 - int(one).bit_length() for one in sums.reshape(-1)]).reshape(sums.shape)
    shares = divided(doubled_high(_inverse((sums << lead) - 2**31), powers), 12 - lead + 31 - 8)
    return np.where(below >= furthest, np.clip(shares - 128, -128, 127), -128)


_Kind = Callable[[Any, Any, WrittenTensor, dict[str, Any]], Any]
_KINDS: Final[dict[str, _Kind]] = {
    "ADD": _added,
    "AVERAGE_POOL_2D": lambda *given: _pooled(*given, largest=False),
    "CONCATENATION": _joined,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    "DEQUANTIZE": _real,
    "FULLY_CONNECTED": _dense,
    "HARD_SWISH": _swish,
    "LOGISTIC": lambda *given: _curved(*given, kind="LOGISTIC"),
    "MAX_POOL_2D": lambda *given: _pooled(*given, largest=True),
    "MEAN": _mean,
    "MUL": _product,
    "PAD": _padded,
    "QUANTIZE": lambda *given: _rescaled(*given, kind="QUANTIZE"),
    "RELU": lambda *given: _rescaled(*given, kind="RELU"),
    "RELU6": lambda *given: _rescaled(*given, kind="RELU6"),
    "RESHAPE": _plain,
    "SOFTMAX": _shares,
    "TANH": lambda *given: _curved(*given, kind="TANH"),
}
"""Op -> what computes it."""
