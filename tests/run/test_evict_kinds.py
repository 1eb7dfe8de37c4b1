"""What eviction takes an op for, what it knows of one, and how long it lets ops run again."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightrope
from tightrope.run.evict.context import Eviction, evict
from tightrope.run.evict.watch import MadeBy


def test_a_composite_op_with_a_kernel_of_the_cpu_has_its_bits() -> None:
    torch.manual_seed(0)
    x, upstream = torch.randn(2, 65, 688, requires_grad=True), torch.randn(2, 65, 688)
    (expected,) = torch.autograd.grad(functional.silu(x), x, upstream)
    with evict("64MiB"):
        (found,) = torch.autograd.grad(functional.silu(x), x, upstream)
    assert torch.equal(found, expected)


def _jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(5, 8), torch.ones(3, 8)], layout=torch.jagged)


def test_jagged_tensors_train_as_without_eviction() -> None:
    layer = nn.Linear(8, 16)
    layer(_jagged()).values().square().mean().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    with evict("1MiB"):
        layer(_jagged()).values().square().mean().backward()
    assert layer.weight.grad is not None
    assert expected is not None
    assert torch.equal(layer.weight.grad, expected)


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


def _maker_of(eviction: Eviction, made: torch.Tensor) -> MadeBy:
    watch = eviction._watch
    assert watch is not None
    maker = watch.maker(watch.find(made))
    assert maker is not None
    return maker


def test_an_op_is_known_to_take_what_it_holds_at_once() -> None:
    x = torch.randn(64, 64)
    with evict("1MiB") as eviction:
        found = _maker_of(
            eviction, torch.logsumexp(x, 1)
        )  # frees some of its temporaries before it takes others
        assert found.size == 16 * 1024 + 2 * 256
        assert _maker_of(eviction, torch.add(x, x)).size == 16 * 1024


def test_an_op_is_charged_the_least_time_that_it_took_on_such_sizes() -> None:
    x = torch.ones(64)
    with evict("1MiB") as eviction:
        times = [_maker_of(eviction, x + 1).ns for _ in range(20)]
        wider = _maker_of(eviction, torch.ones(1 << 16) + 1).ns
        assert _maker_of(eviction, torch.zeros(128)).name == "aten.zeros.default"
    assert times == sorted(times, reverse=True)
    assert 0 < times[-1] < wider


def _cycles(steps: int) -> Callable[[], list[torch.Tensor]]:
    def loop() -> list[torch.Tensor]:
        torch.manual_seed(0)
        now, total = torch.rand(32, 32), torch.zeros(32, 32)
        for _ in range(steps):
            before, now = now, (now @ now).tanh()
            held: list[object] = [before * 2]
            held.append(held)  # only a collection frees this
            total.add_(before).add_(held[0] if isinstance(held[0], torch.Tensor) else 0)
        return [now, total]

    return loop


def test_python_may_collect_tensors_in_cycles_at_any_time() -> None:
    expected, before = _cycles(60)(), gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        with evict(9 * 32 * 32 * 4, poison=True) as eviction:
            found = _cycles(60)()
    finally:
        gc.set_threshold(*before)
    assert eviction.statistics().high_water <= eviction.budget
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_cycles_that_nobody_can_reach_do_not_count_at_the_end() -> None:
    expected = _cycles(60)()
    gc.disable()
    try:
        with evict(9 * 32 * 32 * 4, poison=True) as eviction:
            found = _cycles(60)()
    finally:
        gc.enable()
    assert eviction.statistics().evictions
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_to_dlpack_gives_stays_where_it_is() -> None:
    size, kept = 4096, list[torch.Tensor]()
    with evict(4 * 4 * size, policy="lru", poison=True) as eviction:
        made = torch.arange(size, dtype=torch.float32) + 1
        for _ in range(6):
            kept[:] = [torch.ones(size), torch.ones(size)]
        kept.clear()
        assert eviction.statistics().evictions
        shared = torch.from_dlpack(torch.utils.dlpack.to_dlpack(made))
        del made
        for _ in range(6):
            kept[:] = [torch.ones(size), torch.ones(size)]
        assert shared[3].item() == 4.0
    assert "_within" not in repr(torch.to_dlpack)
