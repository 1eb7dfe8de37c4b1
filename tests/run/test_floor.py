"""The smallest budget that is named is typed in and trained in, the optimizer's state included."""

import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, batches, built

import tightrope
from tightrope.cli.estimate import Asked, describe, steps_of
from tightrope.cli.target import build
from tightrope.core import InfeasibleError, TightropeError
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.headroom import Headroom
from tightrope.run.ledger.optimizer import Foresight, assumed_update

pytestmark = pytest.mark.usefixtures("alone")
Make = Callable[[Any], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]
DATA = batches(2, size=256)
ADAMW: Make = lambda parameters: torch.optim.AdamW(parameters)  # noqa: E731
OPTIMIZERS: dict[str, Make] = {
    "adamw": ADAMW,
    "amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "adam, decay, maximize": lambda p: torch.optim.Adam(p, weight_decay=0.1, maximize=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "plain momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "momentum": 0.9}], lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_update_takes_is_known_before_it_is_made(name: str) -> None:
    parameters = [nn.Parameter(torch.randn(100, 300)) for _ in range(4)]
    optimizer = OPTIMIZERS[name](parameters)
    native = accounts().allocator
    assert native is not None
    found = Foresight(parameters, native).update_of(optimizer)
    assert not optimizer.state
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = native.stats().live
    optimizer.step()
    assert found.state == native.stats().live - before
    before = native.stats().live
    native.reset_peaks()
    optimizer.step()
    beside = native.stats().live_peak - before
    assert beside - 256 <= found.beside <= beside + 2048


def test_the_assumed_optimizer_is_adamw() -> None:
    parameters = [nn.Parameter(torch.randn(100, 300)), nn.Parameter(torch.randn(7))]
    found = Foresight(parameters, accounts().allocator)
    assumed, real = found.assumed(), found.update_of(ADAMW(parameters))
    assert assumed == assumed_update([120000, 28])
    assert assumed.state == real.state
    assert 0 <= real.beside - assumed.beside <= 2048


class Wide(nn.Module):
    """Weights and their updates outweigh activations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 1024), nn.GELU(), nn.Linear(1024, 32), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def pairwise(out: Tensor, y: Tensor) -> Tensor:
    far = (out.unsqueeze(1) - out.unsqueeze(0)).pow(2).sum(-1)
    return far.exp().neg().mean() + functional.cross_entropy(out, y)


LOSSES: dict[str, Loss] = {
    "mean": lambda out, y: out.mean(),
    "cross entropy": functional.cross_entropy,
    "pairwise": pairwise,
}


def train(
    model: Any, optimizer: torch.optim.Optimizer, loss_fn: Loss, *, drops: str = "after", steps: int = 5
) -> list[float]:
    """Steps of a loop that keeps outputs and the last loss."""
    torch.manual_seed(7)
    losses = []
    for number in range(steps):
        x, y = DATA[number % 2]
        if drops == "before":
            optimizer.zero_grad()
        out = model(x)
        loss = loss_fn(out, y)
        if drops != "before":
            optimizer.zero_grad(set_to_none=drops == "after")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def larger(error: TightropeError, budget: int) -> int:
    """The budget that an error names: a larger one."""
    assert isinstance(error, InfeasibleError | OutOfBudgetError)
    found = error.budget_to_try if isinstance(error, OutOfBudgetError) else error.smallest_found
    assert found is not None
    assert found > budget
    return found


def tries_until_it_works(build: Callable[[], nn.Module], loss: str) -> int:
    """Type in what is named, again and again, and count."""
    budget: int | None = 64 << 10
    for tries in range(9):
        assert budget is not None
        budget = named(build, LOSSES[loss], ADAMW, budget, "after")
        if budget is None:
            return tries
    return 9


def named(
    build: Callable[[], nn.Module], loss_fn: Loss, make: Make, budget: int | str, drops: str
) -> int | None:
    """Train under a budget; None, or the budget that a refusal names instead."""
    gc.collect()
    model = tightrope.compile(built(build), budget=budget, fallback="pieces", progress=False)
    try:
        losses = train(model, make(list(model.parameters())), loss_fn, drops=drops)
    except (InfeasibleError, OutOfBudgetError) as error:
        return larger(error, budget if isinstance(budget, int) else 0)
    report = tightrope.report(model)
    assert report.observed_total <= report.budget
    assert "checked in its first run" in str(report)
    del model
    gc.collect()
    eager = built(build)
    assert losses == train(eager, make(list(eager.parameters())), loss_fn, drops=drops)
    return None


_QUICK = {
    ("adamw", "before", Blocks),
    ("adamw", "after", Wide),
    ("sgd", "zeros", Blocks),
    ("sgd", "before", Wide),
}
"""Every optimizer, order and net; the other pairs are run by `make test-all`."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "drops", "build"),
    [
        pytest.param(*one, marks=() if one in _QUICK else pytest.mark.slow)
        for one in itertools.product(["adamw", "sgd"], ["before", "after", "zeros"], [Blocks, Wide])
    ],
)
def test_one_number_is_named_and_it_works(build: Callable[[], nn.Module], drops: str, name: str) -> None:
    found = named(build, LOSSES["cross entropy"], OPTIMIZERS[name], 64 << 10, drops)
    assert found is not None
    assert named(build, LOSSES["cross entropy"], OPTIMIZERS[name], found, drops) is None


@pytest.mark.few(1)
@pytest.mark.parametrize("share", ["30%", "60%"])
def test_a_refused_share_names_a_number_that_works(share: str) -> None:
    found = named(Wide, LOSSES["cross entropy"], ADAMW, share, "after")
    assert found is not None
    assert named(Wide, LOSSES["cross entropy"], ADAMW, found, "after") is None


def test_a_budget_below_what_exists_is_refused_alike_beside_another_model() -> None:
    other = tightrope.compile(built(Blocks), budget=2**30, progress=False)
    train(other, ADAMW(list(other.parameters())), LOSSES["mean"], steps=1)
    with pytest.raises(InfeasibleError, match="smallest feasible found"):
        tightrope.compile(built(Wide), budget=1000, progress=False)(DATA[0][0])


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_every_failure_names_a_larger_budget_until_one_works(loss: str) -> None:
    assert tries_until_it_works(Blocks, loss) <= (4 if loss == "pairwise" else 1)


def test_a_loss_that_lacks_room_makes_its_forward_drop_what_can_be_computed_again() -> None:
    loss_fn, (x, y) = LOSSES["pairwise"], DATA[0]
    plain = built(Blocks)
    loss_fn(plain(x), y).backward()
    model = tightrope.compile(built(Blocks), budget="64MiB", progress=False)
    loss_fn(model(x), y).backward()
    headroom = compiled_of(model).calls.last_unit(0).headroom  # type: ignore[union-attr]
    assert headroom.peak > headroom.held > 0
    del model
    gc.collect()
    bare = built(Blocks)
    budget = accounts().charged() + headroom.peak + (160 << 10)
    model = tightrope.compile(bare, budget=budget, progress=False)
    out = model(x)
    (pending,) = compiled_of(model).calls.waiting
    loss = loss_fn(out, y)
    loss.backward()
    assert pending.dropped
    assert all(
        torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)
    )


def test_an_optimizer_that_comes_late_is_refused_before_its_first_update() -> None:
    found = named(Wide, LOSSES["mean"], lambda p: torch.optim.SGD(p, lr=0.1), 64 << 10, "before")
    gc.collect()
    model = tightrope.compile(built(Wide), budget=found or 0, progress=False)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = DATA[0]
    functional.cross_entropy(model(x), y).backward()
    late = torch.optim.AdamW(model.parameters(), foreach=True)
    with pytest.raises(InfeasibleError, match="Try budget=") as refused:
        late.step()
    assert not late.state
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    needed = refused.value.smallest_found
    assert needed is not None
    del refused, model, late, before
    foreach: Make = lambda p: torch.optim.AdamW(p, foreach=True)  # noqa: E731
    assert named(Wide, LOSSES["cross entropy"], foreach, needed, "before") is None


def test_parameters_that_thaw_are_foreseen_before_their_first_update() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    for parameter in list(model.parameters())[:4]:
        parameter.requires_grad_(False)
    optimizer = ADAMW(list(model.parameters()))
    budget = accounts().charged() + 2_800_000
    tightrope.compile(model, budget=budget, progress=False)
    x = torch.randn(32, 256)

    def update() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    update()
    model.requires_grad_(True)
    with pytest.raises(InfeasibleError) as refused:  # in the forward already
        model(x)
    assert refused.value.smallest_found is not None
    assert refused.value.smallest_found > budget
    assert len(optimizer.state) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tightrope. level E")  # it goes on there before it is refused
def test_what_a_loop_keeps_is_refused_with_a_larger_number() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4)))
    optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
    x, kept = torch.randn(512, 128), []
    budget = accounts().charged() + 3_700_000
    tightrope.compile(model, budget=budget, progress=False)

    def train_and_keep() -> None:
        for _ in range(120):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(torch.zeros(8192))

    with pytest.raises((InfeasibleError, OutOfBudgetError)) as refused:
        train_and_keep()
    larger(refused.value, budget)


def test_running_out_is_an_error_of_this_package_with_a_budget() -> None:
    model = tightrope.compile(built(Blocks), budget=accounts().charged() + (8 << 20), progress=False)
    x, y = DATA[0]
    out = model(x)
    with pytest.raises(TightropeError, match="Try budget=") as ran_out:
        torch.empty(64 << 20)
    assert isinstance(ran_out.value, torch.OutOfMemoryError)
    assert isinstance(ran_out.value, OutOfBudgetError)
    assert ran_out.value.asked == 256 << 20
    assert (ran_out.value.budget_to_try or 0) >= (256 << 20) + (8 << 20)
    functional.cross_entropy(out, y).backward()


def test_other_errors_of_torch_keep_their_class() -> None:
    assert type(torch.OutOfMemoryError("CUDA out of memory")) is torch.OutOfMemoryError


def test_what_was_seen_never_shrinks() -> None:
    seen = Headroom(100, 164).observe_oom(2000)
    assert seen.candidates() == (2000, 564, 364, 164)
    assert seen.observe_peak(500, 300).candidates() == (2000, 300, 164)


@pytest.mark.slow
@pytest.mark.parametrize("share", ["100%", "60%"])
def test_two_forwards_before_each_backward_fit_in_percent(share: str) -> None:
    model = tightrope.compile(built(Blocks), budget=share, progress=False)
    optimizer = torch.optim.AdamW(model.parameters())
    (x, y), (other, _) = batches(2, size=8192)
    for _ in range(5):
        optimizer.zero_grad()
        (functional.cross_entropy(model(x), y) + model(other).square().mean()).backward()
        optimizer.step()
    report = tightrope.report(model)
    assert report.observed_total <= report.budget


@pytest.mark.parametrize("build", [Blocks, Wide])
def test_100_percent_has_the_state_of_the_optimizer_in_it(build: Callable[[], nn.Module]) -> None:
    losses = []
    for budget in (None, "100%"):
        model: Any = built(build)
        if budget is not None:
            tightrope.compile(model, budget=budget, progress=False)
        losses.append(train(model, ADAMW(model.parameters()), LOSSES["cross entropy"], drops="before"))
    assert losses[0] == losses[1]
    assert tightrope.report(model).overhead == 0.0


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.Linear(256, 4))

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y)

def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(64, 32), torch.arange(64) % 4)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "make"), [("adamw", ADAMW), ("momentum", OPTIMIZERS["plain momentum"])])
def test_estimate_names_what_a_refusal_names_and_it_works(name: str, make: Make, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    target = f"{file}:build"
    rows = [describe(one) for one in steps_of(Asked(target, optimizer=name), build(target), (32, 64))]
    assert [row["batch"] for row in rows] == [32, 64]
    assert rows[0]["smallest_bytes"] < rows[1]["smallest_bytes"] == rows[1]["smallest_bytes"]
    smallest = rows[1]["smallest_bytes"]
    gc.collect()
    smallest += accounts().charged()  # what other tests hold
    for budget in (smallest // 4, smallest):
        gc.collect()
        built = build(f"{file}:build")
        model: Any = tightrope.compile(built.model, budget=budget, progress=False)
        optimizer = make(list(model.parameters()))
        if budget < smallest:
            with pytest.raises(InfeasibleError) as refused:
                model(*built.args)
            assert abs((refused.value.smallest_found or 0) - smallest) <= 16384
            del refused
        else:
            for _ in range(5):
                optimizer.zero_grad()
                model(*built.args).backward()
                optimizer.step()
            assert tightrope.report(model).observed_total <= smallest
        del built, model, optimizer


def test_pieces_name_a_budget_that_works() -> None:
    class Broken(Wide):
        def forward(self, x: Tensor) -> Tensor:
            x = self.net[:2](x)
            torch._dynamo.graph_break()
            out: Tensor = self.net[2:](x)
            return out

    with pytest.warns(UserWarning, match="in pieces"):
        tries = tries_until_it_works(Broken, "mean")
    assert tries <= 3


def test_replay_names_a_budget_that_works() -> None:
    model = built(Blocks)
    optimizer = torch.optim.AdamW(model.parameters())
    budget = accounts().charged() + (64 << 10)
    for _ in range(7):
        guard = tightrope.replay(budget)
        try:
            for _ in range(5):
                with guard:
                    x, y = DATA[0]
                    optimizer.zero_grad()
                    functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
            break
        except (InfeasibleError, OutOfBudgetError) as error:
            budget = larger(error, budget)
        finally:
            guard.close()
    assert guard.steps == 5
    assert guard.charged_peak <= budget
    report = tightrope.report(guard)
    assert report.persistent >= 3 * sum(p.nbytes for p in model.parameters())
