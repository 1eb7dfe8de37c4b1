"""Models that no plan serves, below what their steps take: level E, with eager's bits."""

import copy
import gc
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tightrope
from tightrope.capture._eager import innermost_mode
from tightrope.core import parse_bytes
from tightrope.native import compiler
from tightrope.run.compile import compiled_of
from tightrope.run.evict.context import evict
from tightrope.run.evict.level_e import EvictedSteps
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.headroom import ByLoop

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed")
WIDTH, DEEPEST = 128, 24


class Deep(nn.Module):
    """As many layers as the data say, with dropout: no one graph holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.depth = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        depth = 8 + int(x[0, 0].abs() * 1e6) % (DEEPEST - 8)
        self.depth = depth
        for _ in range(depth):
            x = nn.functional.dropout(torch.tanh(self.norm(self.layer(x))), 0.1)
        return x


def batches(number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(512, WIDTH, generator=generator) for _ in range(number)]


def train(model: nn.Module, number: int, accumulate: int = 1) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(3)
    losses, step = [], batches(number * accumulate)
    for k in range(number):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for x in step[k * accumulate : (k + 1) * accumulate]:
            loss = loss + model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made() -> Deep:
    torch.manual_seed(0)
    return Deep()


def compiled(budget: str, model: nn.Module | None = None) -> nn.Module:
    """Compile for so much beside what other tests have left."""
    gc.collect()
    whole = accounts().charged() + parse_bytes(budget)
    return tightrope.compile(model or made(), budget=whole, fallback="evict", progress=False)


def states(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(autouse=True)
def no_block_stays() -> Iterator[None]:
    yield
    gc.collect()
    assert innermost_mode() is None


SAID = pytest.mark.filterwarnings("ignore:tightrope. level E")


@pytest.mark.parametrize(("budget", "accumulate"), [("8MiB", 1), ("5MiB", 1), ("16MiB", 3)])
def test_it_trains_below_what_the_step_takes_with_eager_s_bits(budget: str, accumulate: int) -> None:
    plain = made()
    wanted = train(plain, 4, accumulate)
    model = compiled(budget)
    with pytest.warns(UserWarning, match=r"level E \(a hard limit, kept by eviction"):
        assert train(model, 4, accumulate) == wanted
    torch.testing.assert_close(states(model), states(plain), rtol=0, atol=0)
    found = tightrope.report(model)
    assert found.level == "E"
    assert found.num_recomputed > 0
    assert found.observed_total <= found.budget
    assert "captured" in found.why


class Wide(nn.Module):
    """Some of its layers, as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: 3 + int(x[0, 0].abs() * 1e6) % 3]:
            x = torch.tanh(layer(x))
        return x


@SAID
def test_the_report_tells_the_most_that_was_charged_and_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    model, native = compiled("20MiB", Wide()), accounts().allocator
    assert native is not None
    seen: list[int] = []
    plain = native.reset_peaks

    def reset_peaks() -> None:
        seen.append(native.stats().charged_peak + accounts().older)
        plain()

    monkeypatch.setattr(native, "reset_peaks", reset_peaks)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        reset_peaks()
        if step == 0:
            seen.clear()
        torch.manual_seed(step)
        model(torch.randn(2048, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    reset_peaks()
    evicted, found = compiled_of(model).evicted, tightrope.report(model)
    assert evicted is not None
    assert evicted.persistent + evicted.arena < max(seen) <= found.observed_total <= found.budget
    assert found.forecast_peak == found.bound == 0
    assert f"observed {found.observed_peak} B\n" in str(found)
    assert "no plan needs" not in str(found)


@SAID
def test_one_block_serves_a_step_and_evaluation_leaves_none_open() -> None:
    model = compiled("8MiB")
    train(model, 3)
    evicted = compiled_of(model).evicted
    assert evicted is not None
    assert evicted.num_blocks == 3
    assert evicted.last is not None
    assert not evicted.last.is_innermost  # the update has ended it
    with torch.no_grad():
        for x in batches(2):
            model(x)
    assert evicted.num_blocks == 5
    assert evicted.last is not None
    assert not evicted.last.is_innermost


@SAID
def test_two_models_share_the_block_that_is_open() -> None:
    def losses(maker: nn.Module, critic: nn.Module) -> list[float]:
        torch.manual_seed(7)
        found = []
        both = torch.optim.SGD([*maker.parameters(), *critic.parameters()], lr=1e-2)
        for x in batches(3):
            both.zero_grad()
            made_up = maker(x)
            loss = critic(made_up).square().mean() + critic(x).mean() + critic(made_up.detach()).mean()
            loss.backward()
            both.step()
            found.append(loss.item())
        return found

    wanted = losses(made(), made())
    assert losses(compiled("30MiB"), compiled("30MiB")) == wanted


@SAID
def test_after_an_error_in_the_loss_the_next_step_is_right() -> None:
    def losses(model: nn.Module) -> list[float]:
        torch.manual_seed(5)
        found = []
        for k, x in enumerate(batches(4)):
            model.zero_grad()
            try:
                loss = model(x).square().mean()
                if k == 1:
                    raise RuntimeError("the loss is odd")
                loss.backward()
                found.append(loss.item())
            except RuntimeError:
                loss = None
        return found

    assert losses(compiled("8MiB")) == losses(made())


@SAID
def test_a_budget_too_small_is_a_typed_error_and_a_larger_one_is_right() -> None:
    wanted = train(made(), 2)
    model = made()
    before = states(model)
    with pytest.raises((tightrope.InfeasibleError, tightrope.OutOfBudgetError), match="budget"):
        train(compiled("1MiB", model), 2)
    model.zero_grad()
    model.load_state_dict(before)
    assert train(compiled("8MiB", model), 2) == wanted


def test_a_budget_to_try_leaves_an_arena_for_the_request_beside_what_splits_it() -> None:
    budget = 8 << 20
    weight = nn.Parameter(torch.zeros(1 << 18))
    told: Any = SimpleNamespace(to_try=lambda _: ("", ByLoop()), hidden=1000, older=0)
    steps = EvictedSteps(budget, [weight], told, None)  # type: ignore[arg-type]
    steps.persistent = 1 << 20
    steps.arena = steps._arena_at(budget)

    def hold() -> list[object]:
        return [torch.zeros(1 << 14).numpy() for _ in range(5)]  # whose addresses are known

    with evict(steps.arena) as steps.last:
        steps.last.advise = steps._advise
        stay = hold()
        with pytest.raises(tightrope.OutOfBudgetError, match="it allows this request") as refusal:
            torch.empty(steps.arena, dtype=torch.uint8)
        said, less = steps._advise(0)
    named = refusal.value.budget_to_try
    assert named is not None
    assert f"Try budget={named} next" in str(refusal.value)
    assert steps._arena_at(named) >= (len(stay) + 1) * steps.arena + (len(stay) << 16)
    with evict(steps._arena_at(named)):
        stay = hold()
        torch.empty(steps.arena, dtype=torch.uint8)
        del stay
    assert "less runs again" in said
    assert less is not None
    assert less > budget


@SAID
def test_bytes_come_back_when_the_model_goes() -> None:
    gc.collect()
    before, budget = accounts().charged(), accounts().budget
    model = compiled("8MiB")
    train(model, 2)
    del model
    gc.collect()
    assert accounts().charged() <= before + 65536
    assert accounts().budget == budget


@SAID
def test_a_step_inside_of_a_dispatch_mode_is_limited_and_said() -> None:
    x = batches(1)[0]
    wide = compiled("40MiB")
    wide(x).mean().backward()  # capture does not run inside of a mode
    found = compiled_of(wide).evicted
    assert found is not None
    found.close()
    with FlopCounterMode(display=False) as counter, pytest.warns(UserWarning, match="FlopCounterMode"):
        wide(x).mean().backward()
    assert counter.get_total_flops() > 0
    assert found.num_blocks == 1
    wide(x).mean().backward()
    assert found.num_blocks == 2
    with FlopCounterMode(display=False):  # the block that is still open goes on below
        wide(x).mean().backward()
    assert found.num_blocks == 2


@SAID
def test_a_call_from_another_thread_is_refused_while_a_step_is_open() -> None:
    model = compiled("30MiB")
    batch, ready = batches(1)[0], threading.Event()
    raised: list[Exception] = []

    def call() -> None:
        ready.wait()
        try:
            model(torch.zeros_like(batch))
        except tightrope.TightropeError as error:
            raised.append(error)

    other = threading.Thread(target=call)
    other.start()
    loss = model(batch).mean()
    ready.set()
    other.join()
    loss.backward()
    assert "another thread" in str(raised[0])


@pytest.mark.slow
def test_replay_is_taken_where_it_is_asked_for_or_enough() -> None:
    model = tightrope.compile(made(), budget="60MiB", fallback="replay", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, 2)
    assert tightrope.report(model).level != "E"


class Words(nn.Module):
    """Sparse gradients, and a size by value."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4000, 64, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.table(x)[: len(x) - int(x.sum()) % 7]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def words(model: nn.Module, parts: Words) -> list[torch.Tensor]:
    """Train the table by `SparseAdam`, the rest by SGD."""
    optimizers = [
        torch.optim.SparseAdam([parts.table.weight], lr=0.1),
        torch.optim.SGD(parts.layers.parameters(), lr=0.1),
    ]
    torch.manual_seed(1)
    for _ in range(3):
        model(torch.randint(0, 4000, (3000,))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [one.detach() for one in parts.parameters()]


@SAID
def test_sparse_gradients_are_evicted_with_the_values_of_eager() -> None:
    torch.manual_seed(0)
    wanted = words(plain := Words(), plain)
    torch.manual_seed(0)
    model = compiled("8MiB", parts := Words())
    assert all(map(torch.equal, wanted, words(model, parts)))
    assert tightrope.report(model).level == "E"
    assert (evicted := compiled_of(model).evicted) is not None
    assert evicted.last is not None
    assert evicted.last.num_recomputed > 0


def test_a_fallback_that_does_not_exist_is_quoted() -> None:
    with pytest.raises(tightrope.TightropeError, match=r"fallback='later': use \"auto\""):
        tightrope.compile(made(), budget="8MiB", fallback="later")


def test_an_input_from_before_the_block_may_die_inside_of_it() -> None:
    x = [torch.randn(512, 512) for _ in range(80)]
    with tightrope.evict("8MiB"):
        total = torch.zeros(())
        while x:
            total = total + x.pop().square().mean()
        for _ in range(200):
            total = total + 1
        found = total.item()
    assert found > 200


@SAID
def test_the_user_s_own_block_ends_one_that_a_finished_step_left_open() -> None:
    model = compiled("20MiB")
    model(batches(1)[0]).mean().backward()  # no optimizer ends it
    evicted = compiled_of(model).evicted
    assert evicted is not None
    assert evicted.last is not None
    assert evicted.last.is_innermost
    with tightrope.evict("8MiB") as own:
        assert own.is_innermost
    assert not evicted.last.is_innermost


class Dropped(nn.Module):
    """Layers that the data drop, behind a part that is planned before the rest is found to be none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.token = nn.Parameter(torch.zeros(64))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor, keep: list[int]) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        x = x.clone()
        x[x[:, 0] > 0.5] = self.token
        for number in keep:
            x = x + self.layers[number](x)
        return x.square().mean()


def test_a_layer_may_get_its_state_in_a_later_step() -> None:
    def losses(model: nn.Module) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters())
        found = []
        for keep in ([0], list(range(8)), [3]):
            loss = model(torch.randn(64, 64, generator=torch.Generator().manual_seed(len(keep))), keep)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    torch.manual_seed(0)
    model = Dropped()
    wanted = losses(copy.deepcopy(model))
    budget = accounts().charged() + (64 << 20)
    tightrope.compile(model, budget=budget, fallback="evict", progress=False)
    with pytest.warns(UserWarning, match="level E"):
        assert losses(model) == wanted


@SAID
def test_a_step_that_begins_inside_of_torch_func_is_limited_and_said() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    parameters, rows = dict(net.named_parameters()), torch.randn(6, 8)

    def per_sample(model: nn.Module) -> dict[str, torch.Tensor]:
        def loss(given: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = torch.func.functional_call(model, given, (row,))
            return out.square().sum()

        return torch.func.vmap(torch.func.jacrev(loss), (None, 0))(parameters, rows)

    right = per_sample(net)
    with pytest.warns(UserWarning, match=r"inside of a transform of torch\.func: the limit alone holds"):
        found = per_sample(tightrope.compile(net, budget="64MiB", fallback="evict", progress=False))
    assert all(torch.equal(found[name], right[name]) for name in right)
    loss = net(rows).square().mean()  # a step outside of it is evicted again
    loss.backward()
    assert net[0].weight.grad is not None


@SAID
def test_gradients_that_go_after_the_forward_leave_their_bytes_to_the_step() -> None:
    """A loop that drops its gradients behind the forward needs them once, as in eager, and not twice."""

    def steps(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(4):
            loss = model(x[:16].repeat(1, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def net() -> nn.Module:
        torch.manual_seed(0)
        broken = nn.Sequential(*(nn.Linear(4 * WIDTH, 4 * WIDTH) for _ in range(5)))
        broken[2].register_forward_hook(lambda *_: torch._dynamo.graph_break())
        return broken

    plain, model = net(), net()
    gc.collect()
    with accounts().observed() as found:
        steps(plain)
    plain.zero_grad()
    gradients = sum(one.nbytes for one in plain.parameters())
    tightrope.compile(model, budget=found.charged + gradients // 8, fallback="evict", progress=False)
    steps(model)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=0, atol=0)
    report = tightrope.report(model)
    assert report.level == "E"
    assert report.observed_total <= report.budget
