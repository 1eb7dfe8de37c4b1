"""One number is named where nothing is planned, between pieces, and for optimizers that grow: it works."""

import functools
import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from benchmarks.floor import one as floor
from benchmarks.floor.nets import case
from benchmarks.witness.families.kernels import Unique
from benchmarks.witness.families.plain import Complex, Table
from tightrope.core import InfeasibleError, TightropeError
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.optimizer import Foresight
from tightrope.run.session.rehearsal import rehearsed

Make = Callable[[Any], torch.optim.Optimizer]
ADAMW: Make = lambda parameters: torch.optim.AdamW(parameters)  # noqa: E731


class Recurrent(nn.Module):
    """Kept out of graphs: its cells are computed in place on parts of their gates."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 8)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)[0]
        self.seen.append(out.detach().sum())
        loss: Tensor = self.head(out).square().mean()
        return loss


class Growing(nn.Module):
    """In pieces, the later one much larger."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 2048)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x).relu().square().mean()


class Hookless(Table):
    """What its forward saves is not seen."""

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            return super().forward(ids)


INPUTS: dict[type[nn.Module], Callable[[], Tensor]] = {
    Recurrent: lambda: torch.randn(16, 24, 32),
    Complex: lambda: torch.randn(256, 128, dtype=torch.complex64),
    Table: lambda: torch.randint(20_000, (64, 32)),
    Hookless: lambda: torch.randint(20_000, (64, 32)),
    Unique: lambda: torch.randint(5_000, (100_000,)),
    Growing: lambda: torch.randn(512, 32),
}


def train(build: type[nn.Module], budget: int | None, make: Make = ADAMW) -> list[float]:
    """Losses of five steps."""
    gc.collect()
    torch.manual_seed(3)
    model = build()
    x, optimizer, losses = INPUTS[build](), make(list(model.parameters())), []
    if budget is not None:
        tightrope.compile(model, budget=budget, progress=False)

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = model(x)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        return loss

    for _ in range(5):
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        else:
            closure()
            optimizer.step()
    return losses


def named_by(error: TightropeError) -> int | None:
    """The number that an error carries."""
    assert isinstance(error, InfeasibleError | OutOfBudgetError)
    return error.budget_to_try if isinstance(error, OutOfBudgetError) else error.smallest_found


def refused(build: type[nn.Module], make: Make = ADAMW, more: int = 64 << 10) -> tuple[int, str]:
    """The number that a refusal names, and what it says."""
    gc.collect()
    with pytest.raises((InfeasibleError, OutOfBudgetError)) as error:
        train(build, accounts().charged() + more, make)
    named = named_by(error.value)
    assert named is not None
    assert re.search(rf"budget={named}\b", str(error.value))
    return named, str(error.value)


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize("build", [Recurrent, Complex, Growing])
@pytest.mark.parametrize("more", [64 << 10, 1 << 20])
def test_what_is_not_planned_as_one_graph_names_a_number_that_works(
    build: type[nn.Module], more: int
) -> None:
    named, said = refused(build, more=more)
    assert any(words in said for words in ("by the shapes", "exist already", "less runs again"))
    assert train(build, named) == train(build, None)


class Halves(nn.Module):
    """In pieces, most of its bytes those of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.GELU())
        self.second = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        loss: Tensor = self.second(x).square().mean()
        return loss


def fills_with_zeros(budget: int) -> int:
    """Train without dropping a gradient; return the most bytes charged."""
    gc.collect()
    native = accounts().allocator
    assert native is not None
    torch.manual_seed(3)
    model, x = Halves(), torch.randn(64, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if budget:
        tightrope.compile(model, budget=budget, progress=False)
    native.reset_peaks()
    for _ in range(4):
        loss = model(x)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
    return native.stats().charged_peak + accounts().older


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_the_number_of_what_is_evicted_holds_for_gradients_that_stay() -> None:
    unplanned = fills_with_zeros(0)
    gc.collect()
    with pytest.raises(OutOfBudgetError) as error:
        fills_with_zeros(accounts().charged() + (1 << 20))
    named = error.value.budget_to_try or 0
    del error
    assert 0 < named < unplanned
    fills_with_zeros(named)


@pytest.mark.skipif(sys.platform != "linux", reason="hidden bytes are counted on Linux")
@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_a_kernel_between_pieces_is_in_the_first_number() -> None:
    named, _ = refused(Unique)
    assert train(Unique, named) == train(Unique, None)


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_where_a_call_cannot_be_rehearsed_the_number_is_said_to_be_the_next_try() -> None:
    assert rehearsed(Hookless(), (INPUTS[Table](),), {}) is None
    _, said = refused(Hookless, lambda p: torch.optim.SGD(p, lr=0.1), 2700 << 10)
    assert "next: it allows this request" in said


def test_a_rehearsal_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), Recurrent())
    model[2].net = nn.GRU(8, 64)  # type: ignore[assignment]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, outputs = torch.randn(4, 8), []
    model[2].register_forward_hook(lambda module, given, output: outputs.append(output))
    native = accounts().allocator
    assert native is not None
    random = torch.get_rng_state()
    live = native.stats().live
    native.reset_peaks()
    taken = rehearsed(model, (x,), {})
    assert taken is not None
    assert 0 < taken.seen <= taken.enough
    assert native.stats().live_peak - live < 16384
    assert model[2].seen == []
    assert outputs == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.few(1)
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_foreseen_with_its_history(search: str | None) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4, history_size=4, line_search_fn=search)

    named, _ = refused(Wide, make)
    assert train(Wide, named, make) == train(Wide, None, make)


class Wide(nn.Module):
    """A net for LBFGS."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.net(x).square().mean()
        return loss


INPUTS[Wide] = lambda: torch.randn(256, 64)


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.Muon(p), lambda p: torch.optim.Adafactor(p)], ids=["muon", "adafactor"]
)
def test_updates_of_matrices_are_known_before_they_are_made(make: Make) -> None:
    parameters = [nn.Parameter(torch.randn(200, 300)) for _ in range(3)]
    optimizer, native = make(parameters), accounts().allocator
    assert native is not None
    found = Foresight(parameters, native).update_of(optimizer)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = native.stats().live
    native.reset_peaks()
    optimizer.step()
    kept, most = native.stats().live - before, native.stats().live_peak - before
    assert kept <= found.state <= kept + 1024
    # Where the processor multiplies bfloat16 itself, products of Muon pack their factors first.
    packed = most // 16 if isinstance(optimizer, torch.optim.Muon) else 2048
    assert most - packed <= found.state + found.beside <= 1.5 * most


def test_the_state_of_sparse_adam_is_known_before_it_is_made() -> None:
    table = nn.Embedding(1000, 32, sparse=True)
    optimizer, native = torch.optim.SparseAdam(table.parameters()), accounts().allocator
    assert native is not None
    found = Foresight(table.parameters(), native).update_of(optimizer)
    table(torch.arange(10)).sum().backward()
    before = native.stats().live
    optimizer.step()
    assert found.state == native.stats().live - before


@pytest.mark.few(1)
@pytest.mark.parametrize("forwards", [2, 5])
def test_forwards_before_one_backward_need_two_numbers_at_most(forwards: int) -> None:
    budget, tries = accounts().charged() + (64 << 10), -1
    while budget and tries < 4:
        budget, tries = together(forwards, budget), tries + 1
    assert tries <= 2


def together(forwards: int, budget: int) -> int:
    """Train, and return 0 or the budget that a refusal names."""
    gc.collect()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    optimizer, inputs = ADAMW(model.parameters()), [torch.randn(256, 64) for _ in range(forwards)]
    tightrope.compile(model, budget=budget, progress=False)
    try:
        for _ in range(5):
            optimizer.zero_grad()
            torch.stack([model(x).square().mean() for x in inputs]).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    except (InfeasibleError, OutOfBudgetError) as error:
        return named_by(error) or 0
    return 0


OWN = 80 << 10
"""Bytes that the runtime holds back for itself."""


def taken(run: Callable[[], object]) -> int:
    """Most bytes that a loop takes without a plan."""
    gc.collect()
    native = accounts().allocator
    assert native is not None
    native.reset_peaks()
    run()
    return native.stats().charged_peak + accounts().older


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_what_is_not_one_graph_names_no_more_than_it_takes_without_a_plan() -> None:
    before = taken(lambda: train(Growing, None))  # gradients are dropped before each forward
    found = re.search(r"drops its gradients before each forward works with budget=(\d+)", refused(Growing)[1])
    assert found is not None
    assert int(found[1]) <= before + OWN
    assert train(Growing, int(found[1])) == train(Growing, None)


def test_forwards_before_one_backward_name_what_they_take_without_a_plan_first() -> None:
    before = taken(lambda: pairwise(None))
    first = re.search(r"budget=(\d+)", pairwise(accounts().charged() + (64 << 10)))
    assert first is not None
    said = pairwise(int(first[1]))
    found = re.search(r"Try budget=(\d+), which is about the step without a plan; or budget=(\d+),", said)
    assert found is not None, said
    roomy, smallest = map(int, found.groups())
    assert int(first[1]) < smallest < roomy <= before + OWN
    assert not pairwise(roomy)


def pairwise(budget: int | None) -> str:
    """Train on what six forwards of one net return; return what a refusal says."""
    gc.collect()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 32))
    optimizer, inputs = ADAMW(model.parameters()), [torch.randn(512, 64) for _ in range(6)]
    if budget is not None:
        tightrope.compile(model, budget=budget, progress=False)
    try:
        for _ in range(3):
            optimizer.zero_grad()
            one, *others = map(model, inputs)
            sum((one - other).square().mean() for other in others).backward()
            optimizer.step()
    except (InfeasibleError, OutOfBudgetError) as error:
        return str(error)
    return ""


class Interrupted(nn.Module):
    """Layers with a break of the graph before each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            torch._dynamo.graph_break()
            x = layer(x).relu()
        return x.square().mean()


def drops_behind(budget: int) -> int:
    """Train, and drop gradients behind each forward; return the budget that a refusal names."""
    gc.collect()
    torch.manual_seed(0)
    model = Interrupted()
    optimizer = torch.optim.AdamW(model.parameters())
    tightrope.compile(model, budget=budget, progress=False)
    try:
        for _ in range(4):
            loss = model(torch.randn(32, 256))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except TightropeError as error:
        return named_by(error) or 0
    return 0


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_an_update_at_level_e_has_what_old_gradients_left() -> None:
    named = drops_behind(accounts().charged() + (1 << 18))
    assert named
    assert not drops_behind(named + (96 << 10))  # the batch before may be alive


@pytest.mark.parametrize("most", [4, None])
def test_a_cache_of_the_model_keeps_nothing_of_a_rehearsal(most: int | None) -> None:
    cached = functools.lru_cache(most)(lambda count: (torch.arange(count) + 1.0,))
    other = functools.lru_cache(most)(lambda: 3)
    other()

    class Positions(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + cached(len(x))[0][:, None]

    assert rehearsed(Positions(4, 4), (torch.randn(8, 4),), {}) is not None
    assert cached(8)[0].tolist() == list(range(1, 9))
    assert other.cache_info().currsize == 1


def test_a_loss_outside_is_named_with_the_state_that_is_to_come() -> None:
    one, budgets = case(823), [1 << 18]  # two forwards, a wide loss of each, gradients that stay
    while (found := floor.train(one, budgets[-1]))[0]:
        budgets.append(int(found[1]))
        assert len(budgets) <= 3
    assert budgets[-1] <= floor.unplanned(one)


@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize("seed", [934, 984])
def test_a_loss_outside_of_pieces_that_is_larger_than_they_are_is_told_twice_at_most(seed: int) -> None:
    one, budget = case(seed), 1 << 18  # pairs of all rows, wide; the shapes of the model tell nothing of them
    said = [found := floor.train(one, budget)]
    while found[0] and len(said) < 4:
        said.append(found := floor.train(one, int(found[1])))
    assert [why for why, *_ in said][-1] == ""
    assert len(said) <= 3, said


@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize("seed", [969, 979])
def test_what_is_named_for_pieces_is_no_more_than_the_loop_takes_without_a_plan(seed: int) -> None:
    gc.collect()
    one = case(seed)
    why, named, _ = floor.train(one, 1 << 18)
    assert why.startswith("InfeasibleError")
    gc.collect()
    assert named <= floor.unplanned(one)
    assert floor.train(one, int(named))[0] == ""


def test_a_backward_that_is_planned_anew_does_not_wait_for_itself() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8))
    tightrope.compile(model, budget="64MiB", progress=False)
    outputs = [model(torch.randn(16, 32)) for _ in range(2)]
    calls = compiled_of(model).calls
    first, second = sorted(calls.waiting, key=lambda pending: pending.call)
    assert [calls._expected_need(0, but).num_waiting for but in (None, first, second)] == [2, 1, 1]
    outputs[1].sum().backward()
    assert calls._expected_need(0).summed > calls._expected_need(0, first).summed == 0
    outputs[0].sum().backward()
