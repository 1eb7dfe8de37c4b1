"""What kernels take behind torch's allocator counts against the budget of a compiled model."""

import gc
import re
import sys

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.run.accounts import accounts
from tightrope.run.room import RESERVE

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
    budget = 8_000_000
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
    model = started(8_000_000)
    model(torch.ones(NUM)).backward()
    assert accounts().hidden == HIDDEN
    del model
    torch._dynamo.reset()
    gc.collect()
    assert accounts().hidden == 0
