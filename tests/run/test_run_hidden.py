"""What kernels take behind torch's allocator counts against the budget of a compiled model."""

import gc
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE

pytestmark = pytest.mark.skipif(
    compiler() is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux"
)
NUM = 100_000
HIDDEN = 16 * NUM
"""What `topk` takes for as many numbers: a value and an index each."""
STEP = 3 * 4 * NUM
"""The product, its gradient and one more copy."""


class Largest(nn.Module):
    """The largest of many numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).topk(5).values.sum()


def started(budget: int) -> nn.Module:
    return tightrope.compile(Largest(), budget=budget, progress=False)


def test_it_is_held_back_reported_and_leaves_the_forecast_alone() -> None:
    budget = accounts().charged() + 8_000_000
    model = started(budget)
    model(torch.ones(NUM)).backward()
    report = tightrope.report(model)
    assert report.hidden == HIDDEN
    assert report.forecast_peak == report.observed_peak
    assert f"held back for kernels, which take it beside torch's allocator: {HIDDEN / 2**20:.2f} MiB" in str(
        report
    )
    native = accounts().allocator
    assert native is not None
    assert native.limit == budget - accounts().older - HIDDEN


def test_a_budget_without_room_for_it_is_refused_and_the_named_one_works() -> None:
    x = torch.ones(NUM)
    accounts().note_tensors([x])
    held = accounts().charged()
    model = started(held + STEP + RESERVE)
    with pytest.raises(InfeasibleError) as refused:
        model(x)
    named = re.search(r"budget=(\d+)", str(refused.value))
    assert named is not None
    assert int(named[1]) > refused.value.lower_bound > held + HIDDEN
    model = started(int(named[1]))
    model(x).backward()
    report = tightrope.report(model)
    assert report.observed_total + report.hidden <= int(named[1])
    assert report.bound >= held + HIDDEN


def test_a_request_that_would_take_it_says_whose_it_is() -> None:
    model = started(4_000_000 + accounts().charged())
    model(torch.ones(NUM)).backward()
    native = accounts().allocator
    assert native is not None
    assert native.limit is not None
    with pytest.raises(torch.OutOfMemoryError, match=f"{HIDDEN} bytes that kernels take beside torch's"):
        torch.empty(native.limit + 1, dtype=torch.uint8)


def test_it_is_given_free_with_the_model() -> None:
    model = started(accounts().charged() + 8_000_000)
    model(torch.ones(NUM)).backward()
    assert accounts().hidden == HIDDEN
    del model
    torch._dynamo.reset()
    gc.collect()
    assert accounts().hidden == 0


class Rows(nn.Module):
    """Rows of a table, each looked up once; how many depends on values, so it is planned in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8)

    def forward(self, ids: Tensor) -> Tensor:
        rows, where = torch.unique(ids, return_inverse=True)
        return self.table(rows)[where].square().mean()


def train(model: nn.Module, ids: Tensor, num_steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(num_steps):
            model.zero_grad()
            model(ids).backward()


def test_between_the_graphs_it_is_seen_in_the_first_steps_and_held_back() -> None:
    ids = torch.arange(NUM) % 100
    budget = accounts().charged() + 20_000_000
    model = tightrope.compile(Rows(), budget=budget, fallback="pieces", progress=False)
    train(model, ids, 4)
    report = tightrope.report(model)
    assert "sequence of graphs" in report.why
    assert report.hidden >= HIDDEN
    assert report.observed_total + report.hidden <= report.budget


@pytest.mark.slow
def test_between_the_graphs_a_budget_for_everything_else_is_refused_and_the_named_one_works() -> None:
    ids = torch.arange(NUM) % 100
    budget = accounts().charged() + 20_000_000
    for _ in range(2):  # a smaller budget is held with fewer bytes
        model = tightrope.compile(Rows(), budget=budget, fallback="pieces", progress=False)
        train(model, ids, 4)
        taken, hidden = tightrope.report(model).observed_total, tightrope.report(model).hidden
        budget = taken + hidden
        del model
        torch._dynamo.reset()
        gc.collect()
    model = tightrope.compile(Rows(), budget=taken + hidden // 2, fallback="pieces", progress=False)
    with pytest.raises(InfeasibleError, match="Try budget=") as refused:  # in the first step already
        train(model, ids, 4)
    named = refused.value.smallest_found
    assert named is not None
    del model, refused  # the frames of the error hold the loss
    torch._dynamo.reset()
    gc.collect()
    model = tightrope.compile(Rows(), budget=named, fallback="pieces", progress=False)
    train(model, ids, 4)
    assert tightrope.report(model).observed_total + tightrope.report(model).hidden <= named


def test_a_whole_step_and_a_saved_one_hold_it_back_too(tmp_path: Path) -> None:
    model, x = Largest(), torch.ones(NUM)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    budget = accounts().charged() + 8_000_000
    train = tightrope.step(model.forward, budget=budget, model=model, optimizer=sgd, progress=False)
    train(x)
    report = tightrope.report(train)
    assert report.hidden == HIDDEN
    assert report.forecast_peak == report.observed_peak
    tightrope.save(train, tmp_path / "train.step", (x,))
    del train, model, sgd
    torch._dynamo.reset()
    gc.collect()
    assert accounts().hidden == 0
    saved = tightrope.load(tmp_path / "train.step", budget=budget)
    assert accounts().hidden == HIDDEN
    with pytest.raises(InfeasibleError):
        tightrope.load(tmp_path / "train.step", budget=4 * NUM + HIDDEN)
    del saved
