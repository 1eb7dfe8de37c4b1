"""Where no plan fits a training step, level E goes on with it: same bits, and never beyond the budget."""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import tightrope
from tightrope.core import Bytes, InfeasibleError
from tightrope.native import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import accounts

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed"),
    pytest.mark.filterwarnings("ignore:tightrope. level"),
]
Loss = Callable[[nn.Module, int], torch.Tensor]
STEPS, WIDTH = 4, 128


class Blocks(nn.Module):
    """Residual blocks with dropout, then a head."""

    def __init__(self, *, breaks: bool = False, out: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
            )
            for _ in range(3)
        )
        self.head, self.breaks = nn.Linear(WIDTH, out), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.head(x)


def rows(step: int, number: int = 0) -> torch.Tensor:
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(10 * step + number))


def once(model: nn.Module, step: int) -> torch.Tensor:
    return functional.cross_entropy(model(rows(step)), torch.arange(64) % 16)


def twice(model: nn.Module, step: int) -> torch.Tensor:
    one, other = model(rows(step)), model(rows(step, 1))
    return one.square().mean() + other.square().mean()


def train(model: nn.Module, loss: Loss) -> list[float]:
    """Train a loop that keeps its gradients and fills them with zeros."""
    torch.manual_seed(1)
    optimizer, losses = torch.optim.Adam(model.parameters(), weight_decay=0.1), []
    for step in range(STEPS):
        found = loss(model, step)
        optimizer.zero_grad(set_to_none=False)
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses


def made() -> Blocks:
    torch.manual_seed(0)
    return Blocks()


def named_by(refusal: BaseException) -> Bytes:
    found = re.search(r"budget=(\d+)", str(refusal))
    assert found
    return int(found[1])


@contextmanager
def counted() -> Iterator[list[Bytes]]:
    """Count the most bytes that are charged inside, from the outside."""
    gc.collect()
    native = allocator()
    assert native is not None
    native.reset_peaks()
    found: list[Bytes] = []
    yield found
    found.append(native.stats().charged_peak + accounts().older)


@pytest.mark.parametrize("loss", [once, twice])
def test_the_first_named_budget_trains_and_is_less_than_the_loop_takes_without_a_plan(loss: Loss) -> None:
    with counted() as unplanned:
        eager = train(made(), loss)
    with pytest.raises(InfeasibleError, match="at level E, with a plan") as refused:
        train(tightrope.compile(made(), budget=accounts().charged() + (3 << 20), progress=False), loss)
    budget = named_by(refused.value)
    assert budget == refused.value.by_eviction < (refused.value.smallest_found or 0)
    assert budget <= unplanned[0]
    del refused
    gc.collect()
    model = tightrope.compile(made(), budget=budget, progress=False)
    assert train(model, loss) == eager
    report = tightrope.report(model)
    assert report.level == "E", report
    assert report.observed_total <= budget
    assert "No plan fits" in str(report)


def test_a_percentage_that_no_plan_fits_is_of_what_the_first_steps_take() -> None:
    eager = train(made(), twice)
    model = tightrope.compile(made(), budget="100%", progress=False)
    assert train(model, twice) == eager
    assert tightrope.report(model).level == "E"


def test_what_cannot_be_evicted_is_refused_with_the_budget_of_a_plan() -> None:
    budget = accounts().charged() + (3 << 20)
    model = tightrope.compile(made(), budget=budget, fallback="pieces", progress=False)
    with pytest.raises(InfeasibleError) as refused:
        train(model, once)
    assert "level E" not in str(refused.value)
    assert named_by(refused.value) == refused.value.smallest_found


def test_an_evaluation_that_does_not_fit_is_refused_and_training_stays_planned() -> None:
    model = tightrope.compile(made(), budget=accounts().charged() + (24 << 20), progress=False)
    train(model, once)
    with torch.no_grad(), pytest.raises(InfeasibleError):
        model(torch.randn(16384, WIDTH))
    train(model, once)
    assert tightrope.report(model).level == "L1"


def adversarial(budget: Bytes, *, breaks: str, first: str) -> tuple[list[float], str]:
    """Train a generator and a discriminator, of which one has a graph break."""
    torch.manual_seed(0)
    nets = {"generator": Blocks(breaks=breaks == "generator", out=WIDTH)}
    nets["discriminator"] = Blocks(breaks=breaks == "discriminator", out=1)
    generator, judge = nets.values()
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets.values()]
    if budget:
        for net in nets.values():
            tightrope.compile(net, budget=budget, progress=False)
    losses = []
    for step in range(STEPS):
        if first == "discriminator":
            judge(rows(step, 1)).mean().backward()
        fake = generator(rows(step))
        one = functional.softplus(judge(fake.detach())).mean() - judge(rows(step, 1)).mean()
        one.backward()
        optimizers[1].step()
        other = functional.softplus(-judge(fake)).mean()
        other.backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses += [one.item(), other.item()]
    reports = [str(tightrope.report(net)).splitlines()[0] for net in nets.values()] if budget else []
    return losses, " ".join(reports)


@pytest.mark.parametrize("breaks", ["generator", "discriminator"])
@pytest.mark.parametrize("first", ["generator", "discriminator"])
@pytest.mark.parametrize("share", [1.2, 2.0])
def test_a_planned_model_trains_together_with_one_that_no_plan_serves(
    breaks: str, first: str, share: float
) -> None:
    with counted() as unplanned:
        eager, _ = adversarial(0, breaks=breaks, first=first)
    run = partial(adversarial, breaks=breaks, first=first)
    budget = accounts().charged() + int(share * unplanned[0])
    with counted() as charged:
        losses, levels = run(budget)
    assert losses == eager, levels
    assert charged[0] <= budget
    assert breaks == "generator" or len(re.findall(r"level E \(", levels)) == 2, levels


class Uncaptured(nn.Module):
    """A layer that torch never captures."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    @torch._dynamo.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_recording_gives_way_to_a_plan_in_the_same_step_and_says_so() -> None:
    def run(budget: Bytes) -> tuple[list[float], str]:
        torch.manual_seed(0)
        first, second = Blocks(out=WIDTH), Uncaptured()
        if budget:
            tightrope.compile(first, budget=budget, progress=False)
            tightrope.compile(second, budget=budget, fallback="replay", progress=False)
        losses = []
        for step in range(STEPS):
            found = second(first(rows(step))).square().mean()
            found.backward()
            losses.append(found.item())
        return losses, str(tightrope.report(second)) if budget else ""

    losses, said = run(accounts().charged() + (64 << 20))
    assert losses == run(0)[0]
    assert said.startswith("level L0")
    assert "the limit alone holds" in said
