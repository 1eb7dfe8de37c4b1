"""The net of a pipeline in integers: features, weights and hidden values of 8 bits, scores of 16.

Idea        Every feature is centred and divided by its own largest distance from there on the windows that
            the net was trained on, so that one unit does for all; the first layer takes that back. What
            follows is a net of dense layers, quantized and proved as any (`micro.integer.quantize`).
Source      Jacob et al. (CVPR 2018)
Guarantee   No intermediate of a layer leaves 32 bits, whatever the features are; a feature outside of what
            was seen saturates. `scores_of` has the numbers of the C from the same features.
Complexity  Linear in weights and windows.
Gaps        Features themselves, and probabilities from scores, are computed in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import View
from tightrope_micro.integer.epilogue import LIMITS, requantized
from tightrope_micro.sensor.dataset import Floats
from tightrope_micro.sensor.pipeline import Layer, Weights

if TYPE_CHECKING:
    import torch

_LEAST: Final = 1e-6
_MOST_SAMPLES: Final = 256


@dataclass(frozen=True)
class IntegerLayer:
    """A dense layer: sums of products of 8 bits, shifted, multiplied and shifted again.

    Attributes:
        weight: (out, in), int8.
        bias: (out,), int32, in units of the sums.
        multipliers: (out,), int32.
        pre: shift before the multiplication.
        shift: after it.
        low: least result.
        high: largest result.
        wide: whether results take 16 bits.
    """

    weight: NDArray[np.int8]
    bias: NDArray[np.int32]
    multipliers: NDArray[np.int32]
    pre: int
    shift: int
    low: int
    high: int
    wide: bool


@dataclass(frozen=True)
class IntegerClassifier:
    """A net in integers.

    Attributes:
        center: per feature, float32.
        ratio: units per feature; ``(feature - center) * ratio`` is rounded and clamped to 8 bits.
        layers: of the net.
        unit: of a score.
    """

    center: Weights
    ratio: Weights
    layers: tuple[IntegerLayer, ...]
    unit: float


def integers_of(layers: Sequence[Layer], found: Floats) -> IntegerClassifier:
    """Write a net in integers.

    Args:
        layers: in float32, which take features as they are.
        found: (windows, features) that the net was trained on.

    Raises:
        TightropeError: no shifts keep a layer in 32 bits.
        JudgeError: an intermediate may leave 32 bits.
    """
    import torch

    from tightrope_micro.infer import capture_net, ranges_of
    from tightrope_micro.integer.quantize import quantize

    center = found.mean(axis=0)
    largest = np.maximum(np.abs(found - center).max(axis=0), _LEAST)
    first, *rest = layers
    weight, bias = first.weight.astype(np.float64), first.bias.astype(np.float64)
    scaled = Layer((weight * largest).astype(np.float32), (bias + weight @ center).astype(np.float32))
    model = _module((scaled, *rest))
    x = torch.tensor((found - center) / largest, dtype=torch.float32)
    samples = [(row[None],) for row in x[:: -(-len(x) // _MOST_SAMPLES)]]
    net = capture_net(model, samples[0])
    whole = quantize(net, {**ranges_of(net, samples), "input_0": 1.0})  # 1: the largest distance
    made = []
    for op in whole.graph.ops:
        _, *constants, pre, shift, low, high = op.arguments
        w, b, m = (whole.constants.read(value) for value in constants if isinstance(value, View))
        assert isinstance(pre, int)
        assert isinstance(shift, int)
        assert isinstance(low, int)
        assert isinstance(high, int)
        wide = op.results[0].view.dtype == "int16"
        made.append(IntegerLayer(w, b, m, pre, shift, low, high, wide))
    ratio = LIMITS["int8"][1] / largest
    return IntegerClassifier(
        center.astype(np.float32), ratio.astype(np.float32), tuple(made), whole.output.scale
    )


def _module(layers: Sequence[Layer]) -> "torch.nn.Module":
    import torch

    parts: list[torch.nn.Module] = []
    for layer in layers:
        dense = torch.nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
        with torch.no_grad():
            dense.weight.copy_(torch.from_numpy(layer.weight))
            dense.bias.copy_(torch.from_numpy(layer.bias))
        parts += [dense, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def scores_of(net: IntegerClassifier, found: Floats) -> NDArray[np.int64]:
    """Whole scores per row of features, as the C computes them.

    Args:
        net: in integers.
        found: (windows, features).
    """
    moved = (found.astype(np.float32) - net.center) * net.ratio
    half = np.where(moved < 0, np.float32(-0.5), np.float32(0.5))
    x: NDArray[np.int64] = np.trunc(np.clip(moved + half, *LIMITS["int8"])).astype(np.int64)
    for layer in net.layers:
        sums = x @ layer.weight.T.astype(np.int64) + layer.bias
        value = requantized(sums, layer.multipliers.astype(np.int64), layer.pre, layer.shift)
        x = np.clip(value, layer.low, layer.high)
    return x
