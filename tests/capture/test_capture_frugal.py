"""The backward of convolutions and pools that holds less: the bits of torch's own ops."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import Graph, Op
from tightrope.native.build import compiler
from tightrope.price import price_graph
from tightrope.price.gradients import convolution_input, max_pool_input, unread

CASES = {
    "3x3": ((2, 16, 24, 24), (8, 16, 3, 3), 1, 1, 1, 1),
    "odd": ((3, 5, 17, 13), (7, 5, 3, 3), 1, 0, 1, 1),
    "stride": ((2, 8, 32, 32), (16, 8, 3, 3), 2, 1, 1, 1),
    "1x1": ((2, 64, 14, 14), (32, 64, 1, 1), 1, 0, 1, 1),
    "dilated": ((2, 8, 20, 20), (8, 8, 3, 3), 1, 2, 2, 1),
    "grouped": ((2, 16, 16, 16), (32, 4, 3, 3), 1, 1, 1, 4),
    "depthwise": ((2, 16, 16, 16), (16, 1, 3, 3), 1, 1, 1, 16),
    "7x7": ((2, 3, 56, 56), (16, 3, 7, 7), 2, 3, 1, 1),
    "one dimension": ((4, 8, 50), (12, 8, 5), 1, 2, 1, 1),
    "three dimensions": ((1, 4, 8, 8, 8), (6, 4, 3, 3, 3), 1, 1, 1, 1),
    "one element": ((1, 1, 1, 1), (1, 1, 1, 1), 1, 0, 1, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_gradients_of_a_convolution_are_the_same_one_by_one(case: str, dtype: torch.dtype) -> None:
    shape, kernel, stride, padding, dilation, groups = CASES[case]
    rank = len(shape) - 2
    formats = [torch.contiguous_format] + [torch.channels_last] * (rank == 2)
    for layout, far in itertools.product(formats, formats):
        given = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
        weight = torch.randn(kernel).to(dtype).contiguous(memory_format=far)
        geometry = ([stride] * rank, [padding] * rank, [dilation] * rank, False, [0] * rank, groups)
        made = torch.ops.aten.convolution(given, weight, None, *geometry)
        gradient = torch.randn_like(made)
        whole = torch.ops.aten.convolution_backward(
            gradient, given, weight, [kernel[0]], *geometry, [True, True, True]
        )
        (alone,) = convolution_input(gradient, weight, list(shape), list(given.stride()), *geometry)
        _, *rest = torch.ops.aten.convolution_backward(
            gradient, given, weight, [kernel[0]], *geometry, [False, True, True]
        )
        for mine, theirs in zip((alone, *rest), whole, strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_backward_of_a_pool_reads_no_value_of_its_input(dtype: torch.dtype, layout: Any) -> None:
    for shape, window in (((2, 8, 20, 20), 2), ((1, 3, 17, 23), 3), ((2, 1, 5, 5), 5)):
        given = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
        rest = ([window] * 2, [2, 2], [window // 2] * 2, [1, 1], False)
        made, places = torch.ops.aten.max_pool2d_with_indices(given, *rest)
        gradient = torch.randn_like(made)
        whole = torch.ops.aten.max_pool2d_with_indices_backward(gradient, given, *rest, places)
        alone = max_pool_input(gradient, list(shape), list(given.stride()), *rest, places)
        assert torch.equal(alone, whole)
        assert alone.stride() == whole.stride()


def test_a_tensor_that_is_only_a_shape_takes_no_memory() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one = unread((1 << 14, 1 << 14), (1 << 14, 1), torch.float32)
    assert one.is_contiguous()
    assert unread((3, 0), (1, 1), torch.float32).numel() == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB; it looks like 1 GiB


class Skip(nn.Module):
    """A piece of a concatenation that is read much later than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(16, 16, 2, stride=2),
        )  # fmt: skip
        self.merge = nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = torch.relu(self.stem(x))
        return self.merge(torch.cat((self.down(high), high), 1))


def reads(graph: Graph, target: str) -> list[Op]:
    return [op for op in graph.ops if op.target == target]


def test_a_captured_backward_holds_no_input_for_the_gradient_of_the_input() -> None:
    torch.manual_seed(0)
    model, x = Skip(), torch.randn(2, 3, 32, 32)
    graph = tightrope.capture(model, x)
    assert len(reads(graph, "tightrope.convolution_input")) == 3
    assert len(reads(graph, "tightrope.max_pool_input")) == 1
    inputs = {op.reads for op in reads(graph, "tightrope.convolution_input")}
    assert all(len(read) == 2 for read in inputs)
    whole = [op for op in reads(graph, "aten.convolution_backward.default") if len(op.creates) > 2]
    assert [op.module for op in whole] == ["down.6"]  # transposed
    (copied,) = reads(graph, "aten.clone.default")
    assert graph.storages[copied.creates[0]].bytes * 2 == graph.storages[copied.reads[0]].bytes


def train(model: nn.Module, x: Tensor) -> None:
    for _ in range(3):
        model(x).square().mean().backward()


@pytest.mark.few(2)
@pytest.mark.skipif(compiler() is None, reason="nothing is enforced without a compiler")
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_bits_are_those_of_eager(layout: Any, share: float) -> None:
    torch.manual_seed(0)
    eager, x = Skip().to(memory_format=layout), torch.randn(2, 3, 32, 32).contiguous(memory_format=layout)
    start = copy.deepcopy(eager)
    train(eager, x)
    planned = copy.deepcopy(start)
    tightrope.compile(planned, budget=1 << 16, progress=False)
    with pytest.raises(tightrope.InfeasibleError) as refused:
        planned(x)
    least = refused.value.smallest_found
    assert least is not None
    budget = int(least + share * (1 << 20))
    tightrope.compile(start, budget=budget, progress=False)
    train(start, x)
    for mine, theirs in zip(start.parameters(), eager.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
    assert tightrope.report(start).observed_total <= budget


def test_arithmetic_of_a_convolution_is_counted_once_per_gradient() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = Skip(), torch.randn(2, 3, 32, 32)
    here = tightrope.Machine.here()
    slow = tightrope.Machine(name="slow", tiers=here.tiers, flops={"conv": 1.0, "matmul": 1.0})
    priced = price_graph(tightrope.capture(model, x), slow)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    counted = sum(op.ns for op in priced.ops if "conv" in op.target) / 1e9
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.01)


class _LaidOut(nn.Module):
    """A backward of dropout that is laid out otherwise than torch says, and then one of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.Linear(8, 16), nn.Conv1d(16, 8, 3, padding=1, groups=4)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.drop(self.norm(self.conv(self.up(x).tanh().transpose(1, 2)))).transpose(1, 2)
        values, places = rows.topk(2, -1)
        loss: Tensor = rows.scatter_add(-1, places, values).square().mean()
        return loss


@pytest.mark.skipif(compiler() is None, reason="layouts are found where allocations are counted")
def test_a_convolution_behind_another_layout_is_captured_with_the_same_bits() -> None:
    torch.manual_seed(0)
    plain = _LaidOut()
    model, batch = (
        tightrope.compile(copy.deepcopy(plain), budget="64MiB", progress=False),
        torch.randn(4, 10, 8),
    )
    losses = []
    for one in (model, plain):
        torch.manual_seed(1)
        losses.append(one(batch))
        losses[-1].backward()
    assert tightrope.report(model).level == "L1"
    assert torch.equal(*losses)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
