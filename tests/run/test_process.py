"""What several models, threads and refusals of one process do to each other."""

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, batches, built, digest

import tightrope
from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.native.hook.refused import OutOfBudgetError
from tightrope.run.ledger import accounts as ledger

X, Y = batches(1)[0]
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def test_a_model_that_was_refused_does_not_hold_the_process_to_its_budget() -> None:
    gc.collect()
    refused = tightrope.compile(built(Blocks), budget=100_000, progress=False)
    for _ in range(2):
        with pytest.raises(InfeasibleError):
            refused(X)
        assert allocator().limit is None
    other = tightrope.compile(built(Blocks), budget="64MiB", progress=False)
    functional.cross_entropy(other(X), Y).backward()
    assert tightrope.report(other).limit == 64 << 20


def test_the_report_names_the_largest_budget_where_that_is_what_holds() -> None:
    gc.collect()
    small = tightrope.compile(built(Blocks), budget="32MiB", progress=False)
    large = tightrope.compile(built(Blocks), budget="64MiB", progress=False)
    for model in (small, large):
        functional.cross_entropy(model(X), Y).backward()
    assert "held to 64.00 MiB, the largest budget" in str(tightrope.report(small))
    assert "enforced by the allocator" in str(tightrope.report(large))


class Still(nn.Module):
    """Draws no random numbers, so that threads cannot disturb each other's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x).square().mean()
        return result


def test_threads_take_turns() -> None:
    model = built(Still)
    inputs = [torch.full((64, 32), float(number)) for number in range(8)]

    def gradient(x: Tensor) -> list[str]:
        return [digest(g) for g in torch.autograd.grad(model(x), list(model.parameters()))]

    wanted = [gradient(x) for x in inputs]
    tightrope.compile(model, budget="64MiB", progress=False)
    assert gradient(inputs[0]) == wanted[0]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert list(threads.map(gradient, inputs)) == wanted


def test_a_replay_is_reported_too() -> None:
    step, model = tightrope.replay(budget="64MiB"), nn.Linear(64, 64)
    for _ in range(4):
        with step:
            model(torch.ones(32, 64)).sum().backward()
    report = tightrope.report(step)
    assert (report.level, report.budget) == ("L0", 64 << 20)
    assert report.arena > 0
    step.close()


def test_a_refusal_is_answered_by_the_accounts_of_the_device_whose_limit_it_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at(limit: int) -> SimpleNamespace:
        return SimpleNamespace(
            allocator=SimpleNamespace(limit=limit), advise=lambda asked, charged: (f"at {limit}", limit)
        )

    devices = {torch.device("cpu"): at(100), torch.device("cuda", 0): at(900)}
    monkeypatch.setattr(ledger, "_MADE", devices)
    monkeypatch.setattr(OutOfBudgetError, "advise", ledger._advise)
    for limit in (100, 900):
        said = f"tightrope: asked 64 bytes; 80 are charged now and the limit is {limit} bytes. More."
        error = torch.OutOfMemoryError(said)
        assert isinstance(error, OutOfBudgetError)
        assert error.budget_to_try == limit
        assert str(error) == f"{said} at {limit}"
