"""The caller of CMSIS-NN that benchmarks write: weights in its order, one call per layer."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.micro.cmsis_calls import Caller, multiplier
from tightrope_micro.infer import capture_net, ranges_of
from tightrope_micro.integer.net import IntegerNet
from tightrope_micro.integer.net_reference import NetEvaluator
from tightrope_micro.integer.streams import quantize_within


class _Sum(nn.Module):
    """A convolution, one of each channel, one that adds to a stream, a mean and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depth = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.last, self.dense = nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Compute it."""
        x = torch.relu(self.first(x))
        x = x + self.last(torch.relu(self.depth(x)))
        return self.dense(nn.functional.avg_pool2d(x, 6).flatten(1))


def _net(model: nn.Module) -> tuple[IntegerNet, dict[int, np.ndarray]]:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 2, 6, 6),) for _ in range(4)]
    net = capture_net(model.eval(), samples[0])
    whole = quantize_within(net, ranges_of(net, samples), samples, 1.0)
    given = np.clip(np.rint(samples[0][0].numpy() / whole.inputs[0].scale), -128, 127).astype(np.int64)
    return whole, NetEvaluator(whole.graph, whole.constants, whole.programs).values([given])


def _numbers(text: str, name: str) -> list[int]:
    found = re.search(rf"\b{name}\[\] [^=]*= \{{([^}}]*)\}}", text)
    assert found is not None
    return [int(one) for one in found[1].split(",")]


def test_every_layer_is_a_call_with_its_weights_in_the_order_of_the_library() -> None:
    whole, values = _net(_Sum())
    caller = Caller(whole, values)
    text = caller.text()
    calls = [line.split("(")[0].split()[-1] for line in caller.lines if line.startswith("failed")]
    assert calls == [
        "arm_convolve_wrapper_s8", "arm_depthwise_conv_wrapper_s8", "arm_convolve_wrapper_s8",
        "arm_elementwise_add_s8", "arm_avgpool_s8", "arm_fully_connected_per_channel_s8",
    ]  # fmt: skip
    first, depth, *_ = whole.graph.ops
    w = whole.constants.read(first.arguments[1])
    assert _numbers(text, f"w{first.creates[0]}") == [
        int(w[o, i, y, x]) for o in range(4) for y in range(3) for x in range(3) for i in range(2)
    ]
    w = whole.constants.read(depth.arguments[1])
    assert _numbers(text, f"w{depth.creates[0]}") == [
        int(w[o, 0, y, x]) for y in range(3) for x in range(3) for o in range(4)
    ]
    m = whole.constants.read(first.arguments[3]).astype(float) * 2.0 ** -sum(first.arguments[-4:-2])
    pairs = zip(_numbers(text, f"m{first.creates[0]}"), _numbers(text, f"s{first.creates[0]}"), strict=True)
    assert [a * 2.0 ** (b - 31) for a, b in pairs] == m.tolist()


def test_an_average_keeps_the_unit_of_its_input() -> None:
    whole, values = _net(_Sum())
    caller = Caller(whole, values)
    caller.text()
    mean = next(op for op in whole.graph.ops if op.target == "micro.q_avg_pool2d")
    given = values[mean.arguments[0].base].reshape(4, 36).sum(axis=1) / 36
    ours = values[mean.creates[0]] / caller.units[mean.creates[0]]
    assert np.abs(given - ours).max() <= 0.51 / caller.units[mean.creates[0]]


@pytest.mark.parametrize("ratio", [1e-9, 0.3, 0.5, 1.0, 1 - 2.0**-40, 77.1])
def test_ratios_are_whole_numbers_of_31_bits(ratio: float) -> None:
    whole, shift = multiplier(ratio)
    assert 2**30 <= whole < 2**31
    assert abs(whole * 2.0 ** (shift - 31) / ratio - 1) <= 2.0**-31


def test_an_op_without_a_call_is_named() -> None:
    whole, values = _net(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten()))
    with pytest.raises(ValueError, match=r"micro\.q_table is not written as a call"):
        Caller(whole, values).text()
