"""The limit to the byte, and steps that allocate otherwise than planned."""

import gc
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, Seen, batches, budget_for, built, digest, play

import tightrope
from benchmarks.zoo import build
from tightrope.core import InfeasibleError, TightropeError
from tightrope.native.hook.allocator import Divergence, allocator
from tightrope.plan import smallest
from tightrope.price.measure import Measured
from tightrope.price.store import PriceStore
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.captured import Captured

DATA = batches(2)


def compiled(build: Any = Blocks, *, share: float = 0.2, extra: int = 0) -> Any:
    model = built(build)
    return tightrope.compile(
        model, budget=budget_for(model, DATA[0][:1], share=share) + extra, progress=False
    )


def step(model: nn.Module) -> list[str]:
    """One training step from a fixed random state, without an optimizer."""
    model.zero_grad()
    torch.manual_seed(5)
    x, y = DATA[0]
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    return [digest(loss), *(digest(p.grad) for p in model.parameters()), digest(torch.get_rng_state())]


def charged_by_a_step(model: nn.Module) -> int:
    native = allocator()
    model.zero_grad()
    gc.collect()
    step(model)
    model.zero_grad()
    calls = compiled_of(model).calls
    calls.observed_charged = 0
    step(model)
    assert native.stats().charged <= calls.observed_charged
    return calls.observed_charged


def smallest_limit(model: nn.Module) -> int:
    """The smallest limit, in multiples of 64 bytes, under which a step runs."""
    native = allocator()
    high = charged_by_a_step(model) - accounts().older
    low = 0
    while high - low > 64:
        native.limit = middle = (low + high) // 128 * 64
        model.zero_grad()
        try:
            step(model)
        except torch.OutOfMemoryError:
            low = middle
        else:
            high = middle
    return high


def only(model: nn.Module) -> Captured:
    (found,) = compiled_of(model).calls.captured
    return found


def divergences(model: nn.Module) -> list[Divergence]:
    (running,) = compiled_of(model).calls.recent
    return running.divergences


def test_the_need_passes_and_64_bytes_less_raise_and_leak_nothing() -> None:
    native = allocator()
    model = compiled()
    wanted = step(model)
    budget = native.limit
    need = smallest_limit(model)
    model.zero_grad()
    gc.collect()
    for _ in range(20):
        model.zero_grad()
        before = native.stats().live
        native.limit = need - 64
        with pytest.raises(torch.OutOfMemoryError, match="tightrope: asked"):
            step(model)
        model.zero_grad()
        assert native.stats().live == before
        native.limit = need
        assert step(model) == wanted
    native.limit = budget
    assert step(model) == wanted
    assert tightrope.report(model).divergences == 0


def test_a_request_beside_a_model_is_told_whose_budget_it_meets() -> None:
    model = compiled()
    step(model)
    with pytest.raises(torch.OutOfMemoryError, match=r"the budget of \d+.*, for as long as Blocks lives\."):
        torch.empty(allocator().limit or 0)


def test_a_budget_below_the_smallest_is_refused_before_anything_runs() -> None:
    model = built(Blocks)
    tightrope.compile(model, budget=budget_for(model, DATA[0][:1], share=0.0) - (512 << 10), progress=False)
    state = torch.get_rng_state()
    with pytest.raises(
        InfeasibleError, match=r"smallest feasible found .* \(proved >= [^~]* \(training\.py:\d+\)"
    ) as caught:
        model(DATA[0][0])
    assert torch.equal(torch.get_rng_state(), state)
    smallest, bound = caught.value.smallest_found, caught.value.lower_bound
    del caught, state
    assert smallest is not None
    assert bound <= smallest
    gc.collect()
    tightrope.compile(model, budget=smallest, progress=False)
    model(DATA[0][0]).sum().backward()
    assert tightrope.report(model).observed_total <= smallest


def wrong(price: Measured) -> Measured:
    """A price whose last allocation is 64 bytes too large."""
    if not price.allocations:
        return price
    *others, (size, result, start, end) = price.allocations
    return replace(price, allocations=(*others, (size + 64, result, start, end)))


def corrupt(monkeypatch: pytest.MonkeyPatch, *, always: bool) -> list[str]:
    """Make the price of one op wrong: on disk only, or whenever it is asked for."""
    honest, keys = PriceStore.get, []

    def get(self: PriceStore, key: str) -> Measured | None:
        price = honest(self, key)
        if price is None or "aten.gelu.default" not in key or (type(self) is not PriceStore and not always):
            return price
        keys.append(key)
        return wrong(price)

    monkeypatch.setattr(PriceStore, "get", get)
    return keys


@pytest.mark.slow
def test_a_wrong_price_is_measured_again_after_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = step(compiled(share=1.0))
    gc.collect()
    corrupt(monkeypatch, always=False)
    model = compiled(share=1.0, extra=4 << 20)
    assert step(model) == wanted
    found = divergences(model)
    assert {d.reason for d in found} == {"size"}
    assert (found[0].expected - 64, only(model).num_measured) == (found[0].got, 1)
    seen = len(found)
    for _ in range(3):
        assert step(model) == wanted
        assert divergences(model) == []
    assert only(model).num_measured == 2
    assert compiled_of(model).calls.note == ""
    report = tightrope.report(model)
    assert report.divergences == seen
    assert report.forecast_peak == report.observed_peak
    assert f"{seen} divergences" in str(report)


@pytest.mark.slow
def test_a_price_that_stays_wrong_ends_planned_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = step(compiled(share=1.0))
    gc.collect()
    corrupt(monkeypatch, always=True)
    monkeypatch.setattr("tightrope.run.session.captured.FreshPrices.get", PriceStore.get)
    model = compiled(share=1.0, extra=4 << 20)
    for _ in range(5):
        assert step(model) == wanted
    report = tightrope.report(model)
    assert "from the heap under the same limit" in report.why
    assert only(model).num_measured == 2
    assert report.observed_total <= report.budget
    assert allocator().limit is not None
    seen = report.divergences
    assert step(model) == wanted
    assert tightrope.report(model).divergences == seen


KEPT: list[Tensor] = []


@torch.library.custom_op("tightrope_tests::remember", mutates_args=())
def remember(x: Tensor) -> Tensor:
    """A copy of ``x``; the op keeps ``x`` itself, behind everybody's back."""
    KEPT.append(x)
    return x.clone()


@remember.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


remember.register_autograd(lambda ctx, grad: grad)


class Remembering(Blocks):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + remember(layer(x))
        out: Tensor = self.head(x)
        return out


def test_a_tensor_kept_behind_the_back_of_the_plan_is_never_overwritten() -> None:
    wanted = step(built(Remembering))
    KEPT.clear()
    model = compiled(Remembering, share=0.5, extra=4 << 20)
    for number in range(4):
        KEPT.clear()
        assert step(model) == wanted
        kept = [(digest(tensor), tensor) for tensor in KEPT]
        if number:
            assert step(model) == wanted
        assert [digest(tensor) for _, tensor in kept] == [bits for bits, _ in kept]
    assert {d.reason for d in divergences(model)} == {"overlap"}
    assert only(model).num_measured == 1
    assert compiled_of(model).calls.note == ""
    KEPT.clear()


@pytest.mark.slow
def test_threads_that_change_after_planning_cost_one_new_plan_at_most() -> None:
    wanted = step(compiled())
    model = compiled(share=1.0, extra=16 << 20)  # on two threads, products of some processors take 8 MiB
    assert step(model) == wanted
    torch.set_num_threads(2)
    try:
        for _ in range(4):
            assert len(step(model)) == len(wanted)
        calls = compiled_of(model).calls
        assert all(one.num_measured <= 2 for one in calls.captured)
        assert calls.note == ""
    finally:
        torch.set_num_threads(1)


def test_losses_from_logits_find_room_between_forward_and_backward() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        for _ in range(3):
            model.zero_grad()
            out = model(DATA[0][0])
            loss = functional.cross_entropy(out.repeat(1, 4).sigmoid().exp().log_softmax(-1), DATA[0][1])
            loss.backward()
            see(loss)
            see.gradients(model)

    wanted = play(built(Blocks), loop)
    model = compiled(share=0.6, extra=512 << 10)
    assert play(model, loop) == wanted
    assert tightrope.report(model).observed_total <= tightrope.report(model).budget


class Outputs(nn.Module):
    """Its outputs are as large as anything inside, and their loss takes four times as much."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def squares(model: nn.Module, x: Tensor) -> list[str]:
    model.zero_grad()
    torch.manual_seed(5)
    loss = model(x).pow(2).mean()
    loss.backward()
    return [digest(loss), *(digest(p.grad) for p in model.parameters())]


@pytest.fixture(scope="module")
def wide() -> Tensor:
    return torch.randn(2048, 64)


def smallest_for_squares(x: Tensor) -> int:
    model = tightrope.compile(built(Outputs), budget=2 << 20, progress=False)
    with pytest.raises(InfeasibleError, match=r"loss outside the model +2\.50 MiB  guess") as refused:
        squares(model, x)
    assert refused.value.smallest_found is not None
    return refused.value.smallest_found


def test_the_budget_that_a_refusal_names_has_room_for_a_mean_of_squares(wide: Tensor) -> None:
    wanted = squares(built(Outputs), wide)
    gc.collect()
    model = tightrope.compile(built(Outputs), budget=smallest_for_squares(wide), progress=False)
    assert squares(model, wide) == wanted
    report = tightrope.report(model)
    assert report.observed_total <= report.budget
    assert report.num_recomputed > 0


@pytest.mark.slow
def test_a_loss_that_lacks_room_fails_alike_every_time_and_the_named_budget_does(wide: Tensor) -> None:
    gc.collect()
    wanted = squares(built(Outputs), wide)
    budget = smallest_for_squares(wide) - (6 << 19)
    seen = set()
    for _ in range(3):
        model = tightrope.compile(built(Outputs), budget=budget, progress=False)
        for _ in range(3):
            with pytest.raises(TightropeError, match="Try budget=") as refused:
                squares(model, wide)
            assert isinstance(refused.value, torch.OutOfMemoryError | InfeasibleError)
            seen.add(refused.type)
            named = refused.value.smallest_found  # type: ignore[attr-defined]
            assert named > budget
            del refused
            gc.collect()
        del model
        gc.collect()
    assert len(seen) == 1
    for _ in range(3):
        model = tightrope.compile(built(Outputs), budget=named, progress=False)
        try:
            assert squares(model, wide) == wanted
            break
        except (torch.OutOfMemoryError, InfeasibleError) as error:
            named = error.smallest_found  # type: ignore[union-attr]
    else:
        pytest.fail("no named budget did")


def test_room_that_a_loss_does_not_need_goes_to_the_plan(wide: Tensor) -> None:
    def mean(model: nn.Module) -> Any:
        model.zero_grad()
        torch.manual_seed(5)
        loss = model(wide).mean()
        loss.backward()
        return [digest(loss), *(digest(p.grad) for p in model.parameters())]

    wanted = mean(built(Outputs))
    gc.collect()
    model = tightrope.compile(built(Outputs), budget=smallest_for_squares(wide), progress=False)
    assert mean(model) == wanted
    first = tightrope.report(model)
    assert mean(model) == wanted
    second = tightrope.report(model)
    assert first.num_recomputed > second.num_recomputed
    assert second.observed_total <= second.budget


@pytest.mark.slow
def test_the_smallest_plan_has_its_budget_though_a_capture_leaves_constants_behind() -> None:
    """The graph of GPT-2 holds numbers as tensors: 64 bytes each, made by the capture."""
    case = build("gpt2", scale="test")
    tightrope.compile(case.model, budget="8GiB", progress=False)
    case.model(*case.inputs).backward()
    least = smallest(only(case.model).graph).forecast
    del case
    gc.collect()
    case = build("gpt2", scale="test")
    budget = accounts().charged() + 64 + RESERVE + least.arena + least.outside
    tightrope.compile(case.model, budget=budget, progress=False)
    for _ in range(2):
        case.model.zero_grad()
        case.model(*case.inputs).backward()
    report = tightrope.report(case.model)
    assert 0 <= report.arena + report.outside - least.arena - least.outside <= RESERVE
    assert report.observed_total <= budget


def test_what_an_update_holds_is_in_the_observed_total() -> None:
    model = nn.Sequential(nn.Embedding(4000, 64), nn.Flatten(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    held: list[int] = []
    tightrope.compile(model, budget=accounts().charged() + (64 << 20), progress=False)
    optimizer.register_step_post_hook(lambda *_: held.append(allocator().stats().charged_peak))
    for _ in range(2):
        model(torch.zeros(16, 4, dtype=torch.long)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert tightrope.report(model).observed_total >= max(held)
