"""Eager eviction: the bits of eager, never a byte above the budget, and everything is given back."""

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from benchmarks.zoo.tree_lstm import TreeLstm, random_merges
from tightrope.core import TightropeError
from tightrope.native.hook.allocator import allocator
from tightrope.native.hook.evicting import EvictionWindow
from tightrope.run.evict.context import Eviction, evict
from tightrope.run.evict.watch import OpWatch

Loop = Callable[[], list[Tensor]]


def _conv() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 8, 16, 16):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(True),
            nn.Dropout(0.1),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def _attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(32, 10))


class _Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(16, 32, 2, dropout=0.2), nn.Linear(32, 10)

    def forward(self, batch: Tensor) -> Tensor:
        return self.head(self.layers(batch)[0][-1])


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv": (_conv, (8, 3, 32, 32)),
    "attention": (_attention, (64, 24, 32)),
    "lstm": (_Last, (20, 16, 16)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda found: torch.optim.SGD(found, 0.05, momentum=0.9),
    "adam": lambda found: torch.optim.Adam(found, 1e-3),
    "foreach": lambda found: torch.optim.AdamW(found, 1e-3, foreach=True),
}


def train(net: str, optimizer: str, steps: int = 3) -> Loop:
    """Make a training loop; what it returns is all that a step may change."""
    torch.manual_seed(1)
    build, shape = NETS[net]
    model, batch = build(), torch.randn(shape)
    chosen = OPTIMIZERS[optimizer](model.parameters())
    torch.manual_seed(7)

    def loop() -> list[Tensor]:
        losses = []
        for _ in range(steps):
            chosen.zero_grad()
            result = model(batch)
            loss = functional.cross_entropy(
                result.flatten(0, -2), torch.zeros(result.numel() // 10, dtype=torch.long)
            )
            loss.backward()
            losses.append(loss.detach())
            chosen.step()
            del loss, result
        state = [v for one in chosen.state.values() for v in one.values() if isinstance(v, Tensor)]
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        return [*losses, *model.state_dict().values(), *state, *gradients, torch.get_rng_state()]

    return loop


def within(loop: Loop, budget: int, policy: str = "coop") -> tuple[list[Tensor], Eviction]:
    """Run a loop under a budget, with freed bytes overwritten."""
    with evict(budget, policy=policy, poison=True) as eviction:
        found = loop()
    return found, eviction


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def peak_of(loop: Loop) -> int:
    return within(loop, 2**30)[1].statistics().high_water


@pytest.mark.parametrize(
    ("net", "optimizer", "ratio"),
    [("conv", "sgd", 0.8), ("conv", "foreach", 0.85), ("attention", "adam", 0.5), ("lstm", "sgd", 0.8)],
)
def test_a_training_loop_has_the_bits_of_eager(net: str, optimizer: str, ratio: float) -> None:
    expected = train(net, optimizer)()
    budget = int(peak_of(train(net, optimizer)) * ratio)
    found, eviction = within(train(net, optimizer), budget)
    assert same(found, expected)
    assert eviction.num_recomputed > 0
    assert eviction.statistics().high_water <= budget


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte", "lru", "size"])
def test_every_feasible_ratio_has_the_bits_of_eager(net: str, optimizer: str, policy: str) -> None:
    expected, peak = train(net, optimizer, 20)(), peak_of(train(net, optimizer))
    for ratio in (0.9, 0.7, 0.5, 0.4, 0.3):
        try:
            found, eviction = within(train(net, optimizer, 20), int(peak * ratio), policy)
        except tightrope.OutOfBudgetError:
            return
        assert same(found, expected)
        assert eviction.statistics().high_water <= peak * ratio


def tree_loop(steps: int, width: int = 32, batch: int = 8) -> Loop:
    torch.manual_seed(3)
    model = TreeLstm(width=width, num_classes=5)
    chosen = torch.optim.SGD(model.parameters(), 0.05)

    def loop() -> list[Tensor]:
        losses = []
        for step in range(steps):
            torch.manual_seed(step)
            leaves = torch.randn(12, batch, width)
            chosen.zero_grad()
            loss = model(leaves, random_merges(12), torch.randint(5, (batch,)))
            loss.backward()
            losses.append(loss.item())
            chosen.step()
            del loss, leaves
        return [torch.tensor(losses), *(one.detach() for one in model.parameters())]

    return loop


def test_a_tree_lstm_with_another_tree_in_every_step_runs_at_two_thirds_of_its_peak() -> None:
    expected, peak = tree_loop(5)(), peak_of(tree_loop(5))
    found, eviction = within(tree_loop(5), peak * 2 // 3)
    assert same(found, expected)
    assert eviction.num_recomputed > 0


@pytest.mark.slow
def test_a_thousand_steps_of_a_tree_lstm_neither_drift_nor_leak() -> None:
    peak = peak_of(tree_loop(5, 16, 64))
    expected, loop = tree_loop(1000, 16, 64)(), tree_loop(1000, 16, 64)
    with evict(peak // 2) as eviction:
        found = loop()
        assert eviction.statistics().records < 200
    assert same(found, expected)
    assert eviction.num_held_calls < 200


def test_a_budget_that_is_too_small_is_refused_and_everything_is_given_back() -> None:
    loop = train("conv", "sgd")
    before = allocator().stats().charged
    with pytest.raises(tightrope.OutOfBudgetError, match="What must stay") as refused, evict("100KiB"):
        loop()
    assert refused.value.asked > 0
    del refused, loop
    assert allocator().stats().charged <= before
    expected, peak = train("conv", "sgd")(), peak_of(train("conv", "sgd"))
    assert same(within(train("conv", "sgd"), int(peak * 0.8))[0], expected)


def test_results_of_several_passes_lie_in_the_budget_until_the_end() -> None:
    weight = torch.randn(64, 64)

    def loop() -> list[Tensor]:
        torch.manual_seed(0)
        kept = []
        for _ in range(4):
            now = torch.rand(64, 64)
            for _ in range(6):
                now = (now @ weight).tanh()
            kept.append(now)
        return kept

    expected = loop()
    found, eviction = within(loop, 8 * 64 * 64 * 4)
    assert same(found, expected)
    assert eviction.lost == 0
    with pytest.raises(tightrope.OutOfBudgetError, match="live on"), evict(6 * 64 * 64 * 4):
        found = [torch.rand(64, 64).sin() for _ in range(8)]
    assert all(bool(one.isfinite().all()) for one in found)


SIZE = 16 * 1024


def block() -> Tensor:
    return torch.arange(SIZE // 4, dtype=torch.float32)


def pressure(blocks: int) -> None:
    """Take so many blocks at once and let them go."""
    taken = [torch.ones(SIZE // 4) for _ in range(blocks)]
    del taken


def test_a_tensor_that_the_heap_cannot_hold_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = allocator().stats().charged
    monkeypatch.setattr(EvictionWindow, "move_out", lambda *_: False)
    with evict(8 * SIZE, poison=True) as eviction:
        made = block().mul(2)
        watch = eviction._watch
        assert watch is not None
        watch.window.call("lose", watch.find(made))  # has its bytes: nothing is to be lost
    assert eviction.lost == 0
    assert torch.equal(made, block() * 2)
    del made
    assert allocator().stats().charged <= before


def test_old_versions_that_are_lost_at_once_may_have_the_highest_numbers() -> None:
    with evict("1MiB"):
        kept = []
        for _ in range(300):
            made = torch.ones(16)
            made.numpy()
            kept.append(made.add_(1))
    assert all(bool((one == 2).all()) for one in kept)


def test_tensors_that_evict_each_other_without_end_are_refused() -> None:
    kept = []

    def loop() -> None:
        assert eviction._watch is not None
        eviction._watch.window.watched("most_runs", 0, -1)
        kept.append(block())
        for _ in range(12):
            kept.append(kept[-1].sin())
        kept[6].sum().item()

    with (
        pytest.raises(tightrope.OutOfBudgetError, match="evict each other"),
        evict(5 * SIZE, policy="lru") as eviction,
    ):
        loop()


def test_views_share_what_is_made_again() -> None:
    with evict(4 * SIZE, poison=True):
        base = block().mul(2)
        view, strided = base[100:200], base.view(64, 64).t()
        pressure(3)
        assert view[0].item() == 200.0
        assert strided[1, 0].item() == 2.0
        pressure(3)
        assert base.sum().item() == block().sum().item() * 2


def test_an_old_version_is_made_again_for_what_was_computed_from_it() -> None:
    with evict(5 * SIZE, poison=True):
        base = block() + 1
        double = base * 2
        base.add_(100)
        triple = base * 3
        pressure(4)
        assert double[5].item() == 12.0
        pressure(4)
        assert triple[5].item() == 318.0
        pressure(4)
        assert base[5].item() == 106.0


def test_what_comes_of_a_parameter_is_kept_before_the_parameter_changes() -> None:
    weight = torch.ones(SIZE // 4)
    with evict(4 * SIZE, poison=True):
        made = weight * 3
        pressure(3)
        weight.add_(1)
        pressure(2)
        assert made[7].item() == 3.0
        assert (weight * 3)[7].item() == 6.0


def test_random_ops_draw_once() -> None:
    def loop() -> list[Tensor]:
        torch.manual_seed(5)
        first = functional.dropout(block(), 0.5)
        noise = torch.randn(SIZE // 4).abs()
        pressure(3)
        return [first + noise, torch.rand(3), first, noise]

    expected = loop()
    found, _ = within(loop, 5 * SIZE)
    assert same(found, expected)


@pytest.mark.parametrize("read", ["numpy", "tolist", "repr", "data_ptr", "copy"])
def test_reads_that_are_no_ops_bring_the_bytes_back(read: str) -> None:
    from copy import deepcopy

    with evict(4 * SIZE, poison=True):
        made = block() + 1
        pressure(4)
        if read == "numpy":
            shared = made.numpy()
            pressure(3)
            assert shared[3] == 4.0
            shared[3] = 9.0
            assert (made * 1)[3].item() == 9.0
        elif read == "tolist":
            assert made.tolist()[3] == 4.0
        elif read == "repr":
            assert "1.0000e+00" in repr(made)
        elif read == "data_ptr":
            address = made.data_ptr()
            pressure(3)
            assert made.data_ptr() == address
        else:
            assert deepcopy(made)[3].item() == 4.0


def test_what_numpy_was_given_outlives_the_block() -> None:
    with evict(4 * SIZE, poison=True):
        shared = (block() + 1).numpy()
    pressure(4)
    assert shared[3] == 4.0


def test_an_error_in_the_block_leaves_tensors_that_read_or_refuse() -> None:
    kept: list[Tensor] = []

    def fail() -> None:
        kept.extend(block() + k for k in range(6))
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"), evict(3 * SIZE, poison=True):
        fail()
    readable = 0
    for k, one in enumerate(kept):
        try:
            readable += one[1].item() == 1.0 + k
        except RuntimeError as refused:
            assert "an error left" in str(refused)  # noqa: PT017
    assert readable >= 3


def test_bytes_of_empty_stay_until_an_op_writes_them() -> None:
    with evict(4 * SIZE, poison=True) as eviction:
        blank = torch.empty(SIZE // 4)
        pressure(6)
        assert eviction.statistics().used_bytes >= SIZE
        before = eviction.statistics().evictions
        blank.fill_(3)
        pressure(4)
        assert eviction.statistics().evictions > before
        assert blank[9].item() == 3.0


def test_a_function_of_the_user_with_its_own_backward() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Tensor) -> Tensor:
            context.save_for_backward(value)
            return value * 2

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            (value,) = context.saved_tensors
            return gradient * value

    def loop() -> list[Tensor]:
        weight = torch.linspace(0, 1, SIZE // 4, requires_grad=True)
        now: Tensor = weight
        for _ in range(6):
            now = Double.apply(now).tanh()
        now.sum().backward()
        assert weight.grad is not None
        return [weight.grad, now.detach()]

    expected = loop()
    found, eviction = within(loop, 9 * SIZE)
    assert same(found, expected)
    assert eviction.num_recomputed > 0


def test_a_net_that_is_built_in_the_block_has_the_bits_of_eager() -> None:
    def loop() -> list[Tensor]:
        return train("conv", "sgd")()

    expected, peak = loop(), peak_of(loop)
    found, eviction = within(loop, int(peak * 0.7))
    assert same(found, expected)
    assert eviction.num_recomputed > 0


def test_other_threads_are_left_alone() -> None:
    found: list[Tensor] = []
    with evict(3 * SIZE) as eviction:
        thread = threading.Thread(target=lambda: found.extend(block() for _ in range(8)))
        thread.start()
        thread.join()
        assert eviction.statistics().used_bytes == 0
    assert all(one[1].item() == 1.0 for one in found)


def test_an_eviction_is_used_once_and_alone() -> None:
    first = evict("1MiB")
    with first, pytest.raises(tightrope.NativeError, match="already"), evict("1MiB"):
        pass
    with pytest.raises(TightropeError, match="again"), first:
        pass
    with pytest.raises(TightropeError, match="policy"):
        evict("1MiB", policy="none")


def test_an_op_draws_again_from_its_own_generator() -> None:
    def loop() -> list[torch.Tensor]:
        own = torch.Generator().manual_seed(3)
        drawn = torch.poisson(torch.full((SIZE // 4,), 4.0), generator=own)
        pressure(20)
        return [drawn + 1, drawn, torch.rand(3, generator=own)]

    expected = loop()
    with evict(5 * SIZE, policy="lru", poison=True) as eviction:
        found = loop()
    assert eviction.num_recomputed
    assert all(map(torch.equal, found, expected))


def test_statistics_move_once_in_inference_mode() -> None:
    def loop() -> list[torch.Tensor]:
        norm, given = torch.nn.BatchNorm1d(64), block().view(-1, 64)
        with torch.inference_mode():
            made = norm(given)
            pressure(20)
            return [(made + 1).clone(), norm.running_mean.clone()]  # type: ignore[union-attr]

    expected = loop()
    with evict(6 * SIZE, policy="lru", poison=True) as eviction:
        found = loop()
    assert eviction.num_recomputed
    assert all(map(torch.equal, found, expected))


def test_conjugates_and_another_default_type_keep_their_bits() -> None:
    def loop() -> list[torch.Tensor]:
        torch.manual_seed(0)
        left, right = (torch.randn(32, 32, dtype=torch.complex64) for _ in range(2))
        product, drawn = left.conj() @ right, torch.rand(SIZE // 4)
        pressure(20)
        torch.set_default_dtype(torch.float64)
        try:
            more = drawn + 1
        finally:
            torch.set_default_dtype(torch.float32)
        return [product, more]

    expected = loop()
    with evict(8 * SIZE, policy="lru", poison=True) as eviction:
        found = loop()
    assert eviction.num_recomputed
    assert all(map(torch.equal, found, expected))


def test_a_running_total_keeps_nothing_of_what_went_into_it() -> None:
    with torch.no_grad(), evict(16 * SIZE) as eviction:
        total, weight = torch.zeros(()), torch.ones(4, 4)
        for _ in range(200):
            total = total.add_((torch.ones(256, 4) @ weight).mean()) + torch.ones(2, 4).mean()
        assert eviction.num_held_calls < 60


def test_an_error_in_an_op_that_runs_again_does_not_keep_the_window_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loop() -> None:
        made.append(block().sin())
        pressure(6)
        monkeypatch.setattr(OpWatch, "restore", Mock(side_effect=ValueError("no")))

    made: list[Tensor] = []
    with pytest.raises(ValueError, match="no"), evict(4 * SIZE, policy="lru"):
        loop()
    monkeypatch.undo()
    with evict("1MiB"):
        assert float((block() + 1).sum()) > 0


def test_the_budget_that_a_refusal_names_has_room_for_the_request() -> None:
    def steps(budget: int) -> None:
        weight = torch.eye(64, requires_grad=True)
        with evict(budget) as eviction:
            try:
                hidden = weight
                for _ in range(4):
                    hidden = (hidden @ weight).tanh()
                hidden.sum().backward()
                del hidden
            except tightrope.OutOfBudgetError as error:
                error.__traceback__ = None
                tried.append((eviction.num_ops, error.budget_to_try))

    tried: list[tuple[int, int | None]] = []
    budget: int | None = 1000
    while budget is not None:
        known = len(tried)
        steps(budget)
        budget = tried[-1][1] if len(tried) > known else None
    assert 1 <= len(tried) <= 6
    assert [ops for ops, _ in tried] == sorted({ops for ops, _ in tried}), "each budget came further"
    assert "nothing of the budget is in use" in _refused(1000)
    assert "Try budget=66536 next" in _refused(1000)


def _refused(budget: int) -> str:
    with pytest.raises(tightrope.OutOfBudgetError) as found, evict(budget):
        torch.ones(4096).tanh()
    return str(found.value)
