"""What eviction takes an op for, and how long it lets ops run again."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightrope
from tightrope.capture._torch import is_composite
from tightrope.run.evict.context import evict
from tightrope.run.evict.kinds import classify


@pytest.mark.parametrize("op", ["silu_backward", "native_batch_norm", "relu6", "linear"])
def test_only_what_has_no_kernel_of_the_cpu_is_decomposed(op: str) -> None:
    overload = getattr(torch.ops.aten, op).default
    own = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU")
    assert is_composite(overload) == (not own)
    assert classify(overload).composite == (not own)


def test_a_composite_op_with_a_kernel_of_the_cpu_has_its_bits() -> None:
    torch.manual_seed(0)
    x, upstream = torch.randn(2, 65, 688, requires_grad=True), torch.randn(2, 65, 688)
    (expected,) = torch.autograd.grad(functional.silu(x), x, upstream)
    with evict("64MiB"):
        (found,) = torch.autograd.grad(functional.silu(x), x, upstream)
    assert torch.equal(found, expected)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [
        layer for _ in range(8) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
    ]
    return nn.Sequential(*layers), torch.randn(4, 8, 33, 33)


def _changed(model: nn.Module) -> list[torch.Tensor]:
    return [*model.buffers(), *(one.grad for one in model.parameters() if one.grad is not None)]


def test_batch_norm_that_runs_again_moves_its_statistics_once() -> None:
    model, x = _convolutions()
    model(x).square().mean().backward()
    expected = _changed(model)
    model, x = _convolutions()
    with evict("2MiB") as eviction:
        model(x).square().mean().backward()
    assert eviction.num_recomputed
    assert all(torch.equal(a, b) for a, b in zip(_changed(model), expected, strict=True))


def test_recomputation_that_takes_too_long_is_refused() -> None:
    model, x = _convolutions()
    with (
        pytest.raises(tightrope.OutOfBudgetError, match="more than most_again"),
        evict("2MiB", most_again=0.001),
    ):
        model(x).square().mean().backward()
    model.zero_grad()
    with evict("2MiB", most_again=50) as eviction:
        model(x).square().mean().backward()
    assert 0 < eviction.recomputed_ns < 50 * eviction.operator_ns


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_a_limit_on_recomputation_must_be_above_zero(wrong: float) -> None:
    with pytest.raises(tightrope.TightropeError, match="most_again"):
        evict("1MiB", most_again=wrong)
