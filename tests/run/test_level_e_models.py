"""Models whose sizes depend on values, at level E: below what eager holds, with eager's bits."""

import copy
import gc
import re
import traceback
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import Bytes
from tightrope.native import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed"),
    pytest.mark.filterwarnings("ignore:tightrope. level E"),
]
Inputs = Callable[[int], tuple[torch.Tensor, ...]]


class Experts(nn.Module):
    """A mixture as it is written by hand: a loop over experts, each with the rows that chose it."""

    def __init__(self, width: int = 64, num: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(num)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weight[rows, slot, None])
        return x + out


class Packed(nn.Module):
    """A GRU over packed sequences, whose C++ reads the lengths by address while ops run."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(24, 48, 2, bidirectional=True, dropout=0.1), nn.Linear(96, 8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0])


def tokens(step: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1024, 64, generator=torch.Generator().manual_seed(step)),)


def sequences(step: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(60, 12, 24, generator=generator), torch.randint(20, 61, (12,), generator=generator)


def experts() -> nn.Module:
    return nn.Sequential(Experts(), Experts(), nn.Linear(64, 32))


def train(model: nn.Module, inputs: Inputs, number: int = 4) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(5)
    losses = []
    for step in range(number):
        loss = model(*inputs(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def eager_takes(model: nn.Module, inputs: Inputs) -> Bytes:
    """Bytes at the peak of plain training steps, without what was there before."""
    native = allocator()
    gc.collect()
    before = native.stats().live
    native.reset_peaks()
    train(model, inputs)
    return native.stats().live_peak - before


@pytest.mark.few(1)
@pytest.mark.parametrize("percent", [100, 75, 60])
def test_experts_in_loops_train_below_what_eager_holds(percent: int) -> None:
    torch.manual_seed(0)
    model = experts()
    taken = eager_takes(copy.deepcopy(model), tokens)
    wanted = train(copy.deepcopy(model), tokens)
    gc.collect()
    budget = accounts().charged() + taken * percent // 100
    tightrope.compile(model, budget=budget, fallback="evict", progress=False)
    assert train(model, tokens) == wanted
    found = tightrope.report(model)
    assert found.level == "E"
    assert found.observed_total <= found.budget


@pytest.mark.parametrize("percent", [110, 85])
def test_code_of_torch_reads_lengths_that_neither_move_nor_go(percent: int) -> None:
    torch.manual_seed(0)
    model = Packed()
    taken = eager_takes(copy.deepcopy(model), sequences)
    wanted = train(copy.deepcopy(model), sequences)
    gc.collect()
    budget = accounts().charged() + taken * percent // 100
    tightrope.compile(model, budget=budget, fallback="evict", progress=False)
    assert train(model, sequences) == wanted


def test_a_percentage_is_of_what_the_first_step_takes() -> None:
    torch.manual_seed(0)
    model = experts()
    taken = eager_takes(copy.deepcopy(model), tokens)
    wanted = train(copy.deepcopy(model), tokens)
    gc.collect()
    held = accounts().charged()
    tightrope.compile(model, budget="75%", progress=False)
    assert train(model, tokens) == wanted
    found = tightrope.report(model)
    assert found.level == "E"
    assert found.share == "75%"
    assert abs(found.unplanned - held - taken) < taken // 10
    assert found.observed_total <= found.budget < found.unplanned
    assert "75% of" in str(found)


def test_a_refusal_in_a_backward_pass_leaves_no_bytes_to_the_next_model() -> None:
    def fails(gradient: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("no more")

    gc.collect()
    held = accounts().charged()
    x = torch.randn(256, 64, requires_grad=True)
    y = x.sin()
    for _ in range(8):
        y = y.cos()
    y.register_hook(fails)  # type: ignore[no-untyped-call]
    with pytest.raises(torch.OutOfMemoryError):
        (y * y).sum().backward()
    del x, y
    small = tightrope.compile(nn.Linear(4, 4), budget="64MiB", progress=False)
    gc.collect()
    assert accounts().charged() - held <= sum(one.nbytes for one in small.parameters()) + 64


class Dropping(nn.Module):
    """A model of which step 1 skips layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.most = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: self.most]:
            x = torch.tanh(layer(x)) if x.sum().item() < 1e9 else x
        return x


def test_a_percentage_rises_with_the_largest_step(capsys: pytest.CaptureFixture[str]) -> None:
    model = Dropping()
    tightrope.compile(model, budget="100%")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for most in (3, 3, 5, 5, 8, 8):
        model.most = most
        model(torch.randn(2048, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(tightrope.report(model).unplanned)
    assert found[1] < found[3] < found[5]
    assert "budget 100% rose from" in capsys.readouterr().err


def test_a_model_whose_every_call_is_another_graph_is_evicted_in_the_end() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    plain = copy.deepcopy(model)
    tightrope.compile(model, budget="256MiB", fallback="evict", progress=False)
    for rows in range(1, 13):
        x = torch.randn(rows, 16)
        for one in (model, plain):
            one(x).square().mean().backward()
    assert tightrope.report(model).level == "E"
    assert "9 calls were each another graph" in tightrope.report(model).why
    assert all(
        torch.equal(one.grad, two.grad)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True)
    )


@pytest.mark.filterwarnings("ignore:tightrope. level L0")
def test_level_0_is_left_where_steps_differ() -> None:
    """Else the heap takes what is not as recorded, while the arena stays charged."""
    torch.manual_seed(0)
    model = Dropping()
    plain = copy.deepcopy(model)
    gc.collect()
    tightrope.compile(model, budget=accounts().charged() + (64 << 20), progress=False)
    levels = []
    for most in (8, 8, 3, 5, 3, 8, 5, 3, 8, 5):
        model.most = plain.most = most
        x = torch.randn(512, 64)
        for one in (model, plain):
            one.zero_grad()
            one(x).square().mean().backward()
        levels.append(tightrope.report(model).level)
        for one, two in zip(model.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None and two.grad is None) or torch.equal(one.grad, two.grad)
    assert levels[0] == "L0"
    assert levels[-1] == "E"
    assert "level 0 was left" in tightrope.report(model).why


def dropping(budget: str | int, rows: int = 2048) -> Dropping:
    """Train without dropping any layer; return the model."""
    torch.manual_seed(0)
    model = Dropping()
    model.most = 8
    tightrope.compile(model, budget=budget, progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(rows, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_refusal_names_no_more_than_what_the_first_steps_took() -> None:
    with pytest.raises(tightrope.TightropeError) as refused:
        dropping("20%")
    named = re.findall(r'budget="(\d+)%"', str(refused.value))
    assert named, str(refused.value)
    assert 20 < int(named[-1]) <= 100


def test_below_100_percent_no_more_than_that_is_named_for_a_small_request() -> None:
    """What stays may split an arena, but the whole step was rehearsed in that many bytes."""
    model = dropping("80%")
    serving, told = compiled_of(model).evicted, []
    assert serving is not None

    def probe(*_: object) -> None:
        assert serving is not None
        assert serving.last is not None
        told.extend(serving.last.advise(size)[1] for size in (0, 64, 10 * serving.given[1]))

    serving.unplanned += 64  # as after a step that took a little more than the first
    model.layers[4].register_forward_pre_hook(probe)
    model(torch.randn(2048, 64)).square().mean().backward()
    none, small, large = told
    assert (none, small) == (serving.given[1], serving.given[1])
    assert large is not None
    assert large > 10 * serving.given[1]


@pytest.mark.parametrize("rows", [32, 2048])
def test_a_refusal_before_a_step_names_a_part_of_what_steps_took(rows: int) -> None:
    """A guess of its own would be a multiple of a small step, and too little for a large one."""
    gc.collect()
    with pytest.raises(tightrope.InfeasibleError, match=r"earlier steps|guess") as refused:
        dropping("1%", rows)
    named = re.findall(r'budget="(\d+)%"', str(refused.value))[0]
    assert 50 < int(named) <= 104
    traceback.clear_frames(refused.tb)  # they hold the model, and with it its limit
    dropping(f"{named}%", rows)


def test_a_step_that_runs_again_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    budget = accounts().charged() + (4 << 20)  # in bytes: a percentage is also of what other tests left
    dropping(budget)
    monkeypatch.setattr("tightrope.run.evict.level_e._MOST_AGAIN", 1e-6)
    with pytest.raises(tightrope.OutOfBudgetError, match="what ran again took"):
        dropping(budget)


def test_budgets_of_other_models_do_not_limit_the_steps_that_a_percentage_is_of() -> None:
    gc.collect()
    other = tightrope.compile(nn.Linear(4, 4), budget=accounts().charged() + (1 << 20), progress=False)
    other(torch.randn(2, 4)).sum().backward()
    torch.manual_seed(0)
    model = Dropping()
    model.most = 8
    tightrope.compile(model, budget="80%", progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2048, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = tightrope.report(model)
    assert found.level == "E"
    assert found.observed_total <= found.budget
    assert tightrope.report(other).level == "L1"


@pytest.mark.filterwarnings("ignore:tightrope. level L0")
def test_level_0_is_left_where_planned_addresses_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients die before the loss is large; beside an arena, which has room for it, they do not fit."""
    monkeypatch.setattr("tightrope.run.session.compiled.wants_eviction", lambda *_, **__: False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 64), Dropping())
    gc.collect()
    weights = sum(one.nbytes for one in model.parameters())
    budget = accounts().charged() + 5 * weights + weights // 2
    tightrope.compile(model, budget=budget, progress=False)
    for _ in range(6):
        out = model(torch.randn(16, 1024))
        model.zero_grad()
        out.mean().expand(weights // 4).clone().square().mean().backward()
        assert accounts().charged() <= budget
    assert tightrope.report(model).level == "E"
    assert "do not fit, so level 0 was left" in tightrope.report(model).why


@pytest.mark.filterwarnings("ignore:tightrope. level L0")
@pytest.mark.parametrize(("times", "level"), [(1.5, "E"), (2.5, "L0")])
def test_level_0_wants_room_for_two_steps_where_values_decide(times: float, level: str) -> None:
    """It drops layers in the call that is measured, and none in later ones."""

    def trained(budget: int) -> tuple[str, Bytes]:
        model = Dropping()
        tightrope.compile(model, budget=budget, progress=False)
        for most in (5, 8, 8, 5, 8):
            model(torch.randn(512, 64)).square().mean().backward()
            model.zero_grad()
            model.most = most
        return tightrope.report(model).level, accounts().enough.keeping

    gc.collect()
    _, enough = trained(accounts().charged() + (64 << 20))
    gc.collect()
    assert trained(int(times * enough))[0] == level


def test_a_large_request_when_much_is_gone_already_is_not_added_to_the_most() -> None:
    """The gradient of a table comes last; what its step held at most is of the moment before."""
    gc.collect()
    others, whole = accounts().charged(), 7 << 20  # a percentage is also of what other tests left
    torch.manual_seed(0)
    table, layers = nn.Embedding(40_000, 16), Dropping()
    model = nn.Sequential(table, nn.Linear(16, 64), layers)
    layers.most = 8
    share = (100 * others + 40 * whole) // (others + whole)
    tightrope.compile(model, budget=f"{share}%", progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def trained() -> None:
        for _ in range(4):
            model(torch.randint(0, 40_000, (2048,))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(tightrope.OutOfBudgetError) as refused:
        trained()
    named = re.findall(r'budget="(\d+)%"', str(refused.value))
    assert [int(one) for one in named] == [100]
