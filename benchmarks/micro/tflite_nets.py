"""Int8 nets for .tflite files: the nets of MLPerf Tiny with random weights, single ops, and drawn small nets.

Units are such that results spread over 8 bits and stay of the size of the inputs. Weights have a unit per
channel, inputs and results a zero that is not 0.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from benchmarks.micro.tflite_writer import WrittenNet

SAME, VALID = 0, 1
RELU, RELU6 = 1, 3


class Layers:
    """Writes layers one behind the other, with weights that are drawn."""

    def __init__(self, shape: Sequence[int], seed: int) -> None:
        self.net, self.draw = WrittenNet(), np.random.default_rng(seed)
        self.at = self.net.tensor(shape, **self.units())
        self.net.inputs = [self.at]

    def units(self, scale: float = 0.0, activation: int = 0) -> dict[str, Any]:
        """A unit and a zero; near the lowest number where nothing is below 0."""
        drawn = scale or float(np.float32(self.draw.uniform(0.01, 0.05)))
        ends = (-128, -100) if activation in (RELU, RELU6) else (-60, 60)
        return {"scales": (drawn,), "zero": int(self.draw.integers(*ends))}

    def shape(self, at: int | None = None) -> tuple[int, ...]:
        """Of a tensor, or of the last one."""
        return self.net.tensors[self.at if at is None else at].shape

    def scale(self) -> float:
        """Unit of the last tensor."""
        return self.net.tensors[self.at].scales[0]

    def made(self, shape: Sequence[int], **units: Any) -> int:
        """Add a tensor that an op makes."""
        return self.net.tensor(shape, **(units or self.units()))

    def same(self) -> dict[str, Any]:
        """Unit and zero of the last tensor."""
        one = self.net.tensors[self.at]
        return {"scales": one.scales, "zero": one.zero}

    def _weights(
        self, shape: Sequence[int], axis: int, taps: int, *, alone: bool = False
    ) -> tuple[int, int, float]:
        """Weights and biases, and a unit for the sums."""
        count = shape[axis]
        values = self.draw.integers(-127, 128, shape).astype(np.int8)
        scales = (self.draw.uniform(0.3, 1.7, 1 if alone else count) / (100 * taps**0.5)).astype(np.float32)
        w = self.net.constant(values, scales=tuple(float(s) for s in scales), axis=axis)
        bias = self.draw.integers(-2000, 2000, count).astype(np.int32)
        units = tuple(float(s) * self.scale() for s in scales)
        return (
            w,
            self.net.constant(bias, scales=units),
            float(np.mean(scales)) * self.scale() * 100 * taps**0.5,
        )

    def conv(
        self, made: int, size: tuple[int, int], stride: tuple[int, int] = (1, 1), *, depth: int = 0,
        padding: int = SAME, activation: int = RELU, dilation: tuple[int, int] = (1, 1), groups: int = 1,
    ) -> "Layers":  # fmt: skip
        """A convolution, in groups of channels, or one of each channel with ``depth`` results."""
        n, h, wi, ci = self.shape()
        made = ci * depth if depth else made
        ci //= groups
        taps = prod(size) * (1 if depth else ci)
        shape, axis = ((1, *size, made), 3) if depth else ((made, *size, ci), 0)
        w, bias, scale = self._weights(shape, axis, taps)
        sizes = []
        for given, tap, step, spread in zip((h, wi), size, stride, dilation, strict=True):
            sizes.append(
                -(-given // step) if padding == SAME else (given - (tap - 1) * spread - 1) // step + 1
            )
        out = self.made((n, *sizes, made), **self.units(scale, activation))
        options = {"padding": padding, "stride_h": stride[0], "stride_w": stride[1], "activation": activation}
        options |= {"dilation_h": dilation[0], "dilation_w": dilation[1]} | (
            {"multiplier": depth} if depth else {}
        )
        kind = "DEPTHWISE_CONV_2D" if depth else "CONV_2D"
        self.at = self.net.op(kind, (self.at, w, bias), out, **options)
        return self

    def dense(
        self, made: int, activation: int = 0, *, channels: bool = False, biased: bool = True
    ) -> "Layers":
        """A dense layer."""
        rows, wide = prod(self.shape()[:-1]), self.shape()[-1]
        w, bias, scale = self._weights((made, wide), 0, wide, alone=not channels)
        out = self.made((rows, made), **self.units(scale, activation))
        reads = (self.at, w, bias) if biased else (self.at, w, -1)
        self.at = self.net.op("FULLY_CONNECTED", reads, out, activation=activation)
        return self

    def pool(
        self, size: tuple[int, int], stride: tuple[int, int], *, largest: bool = False, padding: int = VALID,
        activation: int = 0,
    ) -> "Layers":  # fmt: skip
        """A pool."""
        n, h, wi, c = self.shape()
        ends = zip((h, wi), size, stride, strict=True)
        sizes = [-(-a // s) if padding == SAME else (a - k) // s + 1 for a, k, s in ends]
        out = self.made((n, *sizes, c), **self.same())
        options = {"padding": padding, "stride_h": stride[0], "stride_w": stride[1], "activation": activation}
        options |= {"filter_h": size[0], "filter_w": size[1]}
        self.at = self.net.op("MAX_POOL_2D" if largest else "AVERAGE_POOL_2D", (self.at,), out, **options)
        return self

    def pair(self, kind: str, other: int, activation: int = 0) -> "Layers":
        """A sum or a product with another tensor."""
        first, second = self.net.tensors[self.at].scales[0], self.net.tensors[other].scales[0]
        scale = max(first, second) * 1.4 if kind == "ADD" else first * second * 90
        shape = np.broadcast_shapes(self.shape(), self.shape(other))
        out = self.made(shape, **self.units(scale, activation))
        self.at = self.net.op(kind, (self.at, other), out, activation=activation)
        return self

    def flat(self) -> "Layers":
        """A row per sample."""
        n, *rest = self.shape()
        sizes = self.net.constant(np.array([n, prod(rest)], np.int32))
        self.at = self.net.op("RESHAPE", (self.at, sizes), self.made((n, prod(rest)), **self.same()))
        return self

    def softmax(self, beta: float = 1.0) -> "Layers":
        """Shares of 1."""
        out = self.made(self.shape(), scales=(1 / 256,), zero=-128)
        self.at = self.net.op("SOFTMAX", (self.at,), out, beta=beta)
        return self

    def pad(self, ends: Sequence[tuple[int, int]]) -> "Layers":
        """Zeros around."""
        sizes = self.net.constant(np.array(ends, np.int32))
        shape = [n + a + b for n, (a, b) in zip(self.shape(), ends, strict=True)]
        self.at = self.net.op("PAD", (self.at, sizes), self.made(shape, **self.same()))
        return self

    def mean(self, axes: Sequence[int], *, keep: bool = False) -> "Layers":
        """Over some dimensions."""
        shape = [1 if k in axes else n for k, n in enumerate(self.shape()) if keep or k not in axes]
        numbers = self.net.constant(np.array(axes, np.int32))
        self.at = self.net.op(
            "MEAN", (self.at, numbers), self.made(shape, **self.units(self.scale() / 3)), keep=keep
        )
        return self

    def cat(self, others: Sequence[int], axis: int) -> "Layers":
        """Tensors of the unit of the last one behind each other."""
        shapes = [self.shape(), *(self.shape(k) for k in others)]
        shape = [
            sum(s[axis] for s in shapes) if k == axis % len(shapes[0]) else n for k, n in enumerate(shapes[0])
        ]
        out = self.made(shape, **self.same())
        self.at = self.net.op("CONCATENATION", (self.at, *others), out, axis=axis, activation=0)
        return self

    def rescale(self, kind: str = "QUANTIZE", dtype: str = "int8") -> "Layers":
        """Other units; real numbers where they are asked for."""
        units = {} if dtype == "float32" else self.units(self.scale() * 1.3)
        if dtype == "uint8":
            units["zero"] += 128
        self.at = self.net.op(kind, (self.at,), self.net.tensor(self.shape(), dtype, **units))
        return self

    def curve(self, kind: str) -> "Layers":
        """A function of one number."""
        units = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
        scale, zero = units.get(kind, (self.scale() * 0.9, -40))
        self.at = self.net.op(kind, (self.at,), self.made(self.shape(), scales=(scale,), zero=zero))
        return self

    def done(self) -> WrittenNet:
        """The net, which returns the last tensor."""
        self.net.outputs = [self.at]
        return self.net


def _separable(net: Layers, made: int, stride: int = 1) -> None:
    net.conv(0, (3, 3), (stride, stride), depth=1).conv(made, (1, 1))


def keywords(seed: int) -> WrittenNet:
    """DS-CNN."""
    net = Layers((1, 49, 10, 1), seed).conv(64, (10, 4), (2, 2))
    for _ in range(4):
        _separable(net, 64)
    return net.pool((25, 5), (25, 5)).flat().dense(12).softmax().done()


def persons(seed: int, *, padded: bool = True) -> WrittenNet:
    """MobileNetV1 0.25, with padding as an op of its own before strides, as Keras writes it, or without."""
    sizes = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
    net = Layers((1, 96, 96, 3), seed).conv(8, (3, 3), (2, 2), activation=RELU6)
    for made, stride in sizes:
        alone = padded and stride == 2
        if alone:
            net.pad([(0, 0), (0, 1), (0, 1), (0, 0)])
        padding = VALID if alone else SAME
        net.conv(0, (3, 3), (stride, stride), depth=1, padding=padding, activation=RELU6)
        net.conv(made, (1, 1), activation=RELU6)
    if padded:
        return net.mean((1, 2)).dense(2).softmax().done()
    return net.pool((3, 3), (3, 3)).flat().dense(2).softmax().done()


def pictures(seed: int) -> WrittenNet:
    """ResNet-8."""
    net = Layers((1, 32, 32, 3), seed).conv(16, (3, 3))
    for made, stride in ((16, 1), (32, 2), (64, 2)):
        start = net.at
        net.conv(made, (3, 3), (stride, stride)).conv(made, (3, 3), activation=0)
        other, net.at = net.at, start
        if stride > 1:
            net.conv(made, (1, 1), (stride, stride), activation=0)
        net.pair("ADD", other, RELU)
    return net.pool((8, 8), (8, 8)).flat().dense(10).softmax().done()


def sounds(seed: int) -> WrittenNet:
    """The autoencoder."""
    net = Layers((1, 640), seed)
    for wide in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        net.dense(wide, RELU)
    return net.dense(640).done()


NETS: Final[dict[str, Callable[[int], WrittenNet]]] = {
    "DS-CNN": keywords,
    "MobileNetV1 0.25": persons,
    "ResNet-8": pictures,
    "autoencoder": sounds,
}


def _joined(seed: int) -> WrittenNet:
    net = Layers((1, 5, 6, 4), seed)
    start = net.at
    net.pool((2, 2), (1, 1), largest=True, padding=SAME)
    return net.cat((start, start), -1).done()


def _spread(kind: str, seed: int) -> WrittenNet:
    net = Layers((2, 4, 5, 3), seed)
    row = net.draw.integers(-128, 128, (5, 1)).astype(np.int8)
    return net.pair(kind, net.net.constant(row, scales=(0.03,), zero=7), RELU6).done()


def _squares(kind: str, seed: int) -> WrittenNet:
    net = Layers((1, 6, 6, 5), seed)
    start = net.at
    return net.rescale().pair(kind, start).done()


def _real(seed: int) -> WrittenNet:
    net = Layers((1, 6, 6, 3), seed)
    net.net.tensors[0].dtype, net.net.tensors[0].scales = "float32", ()
    net.at = net.net.op("QUANTIZE", (0,), net.net.tensor((1, 6, 6, 3), scales=(0.02,), zero=-3))
    return net.conv(4, (3, 3)).rescale("DEQUANTIZE", "float32").done()


def _bytes(seed: int) -> WrittenNet:
    net = Layers((1, 6, 6, 3), seed)
    net.net.tensors[0].dtype, net.net.tensors[0].zero = "uint8", 131
    return net.rescale().conv(4, (3, 3)).rescale("QUANTIZE", "uint8").done()


def _layer(
    shape: tuple[int, ...], name: str, args: tuple[Any, ...], more: dict[str, Any], seed: int
) -> WrittenNet:
    net: Layers = getattr(Layers(shape, seed), name)(*args, **more)
    return net.done()


def _one(shape: tuple[int, ...], name: str, *args: Any, **more: Any) -> Callable[[int], WrittenNet]:
    return partial(_layer, shape, name, args, more)


SINGLE: Final[dict[str, Callable[[int], WrittenNet]]] = {
    "CONV_2D": _one((1, 7, 9, 5), "conv", 7, (3, 2), (2, 1)),
    "CONV_2D 1x1, batch": _one((2, 5, 5, 6), "conv", 9, (1, 1)),
    "CONV_2D 1x1, strides": _one((1, 6, 7, 4), "conv", 3, (1, 1), (2, 2), activation=0),
    "CONV_2D dilated": _one((1, 9, 9, 3), "conv", 5, (3, 3), dilation=(2, 2), activation=2),
    "CONV_2D in groups": _one((1, 7, 6, 12), "conv", 9, (3, 3), groups=3),
    "CONV_2D in groups, 1x1": _one((2, 5, 5, 8), "conv", 12, (1, 1), groups=4, activation=0),
    "CONV_2D in groups, larger than the stack": _one((1, 5, 5, 320), "conv", 6, (5, 5), groups=2),
    "CONV_2D without padding": _one((1, 8, 8, 3), "conv", 6, (5, 5), padding=VALID, activation=RELU6),
    "CONV_2D larger than the stack": _one((1, 6, 6, 160), "conv", 5, (5, 5), activation=0),
    "DEPTHWISE_CONV_2D": _one((1, 8, 7, 6), "conv", 0, (3, 3), depth=1),
    "DEPTHWISE_CONV_2D strides": _one((2, 9, 9, 5), "conv", 0, (3, 3), (2, 2), depth=1, activation=0),
    "DEPTHWISE_CONV_2D two of each": _one((1, 6, 6, 3), "conv", 0, (5, 4), depth=2, padding=VALID),
    "DEPTHWISE_CONV_2D dilated": _one((1, 9, 9, 4), "conv", 0, (3, 3), depth=1, dilation=(2, 3)),
    "FULLY_CONNECTED": _one((3, 37), "dense", 11),
    "FULLY_CONNECTED units per channel": _one((1, 64), "dense", 10, RELU, channels=True),
    "FULLY_CONNECTED without biases": _one((1, 50), "dense", 9, RELU6, biased=False),
    "AVERAGE_POOL_2D": _one((1, 9, 8, 5), "pool", (3, 3), (2, 2), padding=SAME),
    "AVERAGE_POOL_2D ReLU": _one((1, 8, 8, 3), "pool", (4, 2), (4, 2), activation=RELU),
    "MAX_POOL_2D": _one((2, 7, 7, 4), "pool", (3, 3), (2, 2), largest=True, padding=SAME),
    "ADD": partial(_squares, "ADD"),
    "ADD of a row": partial(_spread, "ADD"),
    "MUL": partial(_squares, "MUL"),
    "MUL by a row": partial(_spread, "MUL"),
    "SOFTMAX": _one((4, 10), "softmax"),
    "SOFTMAX of maps": _one((1, 3, 3, 40), "softmax", 2.5),
    "PAD": _one((1, 4, 5, 3), "pad", [(0, 0), (1, 2), (3, 0), (0, 1)]),
    "MEAN": _one((1, 6, 7, 5), "mean", (1, 2), keep=True),
    "MEAN of rows": _one((2, 3, 33), "mean", (2,)),
    "CONCATENATION": _joined,
    "QUANTIZE": _one((1, 4, 4, 3), "rescale"),
    "RELU": _one((1, 4, 4, 3), "rescale", "RELU"),
    "RELU6": _one((1, 4, 4, 3), "rescale", "RELU6"),
    **{kind: _one((3, 400), "curve", kind) for kind in ("HARD_SWISH", "LOGISTIC", "TANH")},
    "float edges": _real,
    "uint8 edges": _bytes,
}  # fmt: skip
"""Name -> a net of that op alone, or with what it needs."""


def drawn(seed: int) -> WrittenNet:
    """A net of some layers on a small map."""
    draw = np.random.default_rng(seed)
    net = Layers(
        (1, int(draw.integers(5, 12)), int(draw.integers(5, 12)), int(draw.integers(1, 9))), seed + 1
    )
    for _ in range(int(draw.integers(2, 6))):
        size = (int(draw.integers(1, 4)), int(draw.integers(1, 4)))
        stride = (int(draw.integers(1, 3)), int(draw.integers(1, 3)))
        start, kind = net.at, int(draw.integers(10))
        activation = int(draw.integers(4))
        if kind == 0:
            net.conv(int(draw.integers(1, 12)), size, stride, activation=activation)
        elif kind == 1:
            net.conv(0, size, stride, depth=int(draw.integers(1, 3)), activation=activation)
        elif kind == 2:
            net.conv(net.shape()[3], size, activation=0).pair("ADD", start, activation)
        elif kind == 3:
            net.pool(size, stride, largest=bool(draw.integers(2)), padding=SAME)
        elif kind == 4:
            ends = [(0, 0), *((int(a), int(b)) for a, b in draw.integers(0, 3, (2, 2))), (0, 0)]
            net.pad(ends).conv(int(draw.integers(1, 9)), (2, 2), padding=VALID)
        elif kind == 5:
            net.conv(net.shape()[3], (1, 1)).pair("MUL", start)
        elif kind == 6:
            net.pool((1, 1), (1, 1)).cat((start,), 3)
        elif kind == 7:
            net.curve(("HARD_SWISH", "LOGISTIC", "TANH")[int(draw.integers(3))])
        elif kind == 8:
            net.rescale(("QUANTIZE", "RELU", "RELU6")[int(draw.integers(3))])
        else:
            gate = net.mean((1, 2), keep=True).conv(net.shape()[3], (1, 1)).at
            net.at = start
            net.pair("MUL", gate)
    if draw.integers(2):
        net.mean((1, 2))
    else:
        net.flat()
    net.dense(int(draw.integers(2, 12)), channels=bool(draw.integers(2)))
    return (net.softmax() if draw.integers(2) else net).done()
