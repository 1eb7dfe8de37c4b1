"""Steps that fit a budget without a plan, where no plan fits: they run so, and the budget named is theirs."""

import gc
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.run.accounts import accounts

HIDDEN = 2 << 20
"""Of kernels, at most: the count of the loop without a plan has none of it."""
pytestmark = pytest.mark.skipif(accounts().allocator is None, reason="needs the hook")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1)) for _ in range(12)])


def train(model: nn.Module, *, steps: int = 4) -> Iterator[Tensor]:
    """Gradients are dropped behind the forward, while the arena has room for new ones already."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    for _ in range(steps):
        loss = model(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def needs_unplanned() -> int:
    native = accounts().allocator
    assert native is not None
    native.reset_peaks()
    list(train(net()))
    gc.collect()
    return native.stats().charged_peak + accounts().older


def refusal() -> tuple[int, int, str]:
    """Budgets without a plan and with one, and what is said of them."""
    model = tightrope.compile(net(), budget="1MiB", progress=False)
    try:
        list(train(model, steps=1))
    except tightrope.InfeasibleError as error:  # its frames hold the model
        found = error.smallest_found or 0, error.planned or 0, str(error)
    assert all(found)
    return found


def test_the_budget_that_is_named_is_no_more_than_the_loop_takes_and_trains_with_equal_bits() -> None:
    eager = net()
    losses = [float(loss) for loss in train(eager)]
    plain = losses, [float(weight.detach().sum()) for weight in eager.parameters()]
    del eager
    whole = needs_unplanned()
    named, planned, said = refusal()
    assert named - HIDDEN <= 1.01 * whole
    assert planned > whole
    assert "without a plan" in said
    assert f"budget={named}" in said
    assert f"budget={planned}" in said
    model = tightrope.compile(net(), budget=named, progress=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        losses = [float(loss) for loss in train(model)]
    assert [str(one.message).split(".")[0] for one in warned] == [
        "tightrope: level L0 (a hard limit, no plan)"
    ]
    report = tightrope.report(model)
    assert report.level == "L0"
    assert report.enforced
    assert "fits without one" in report.why
    assert (losses, [float(weight.detach().sum()) for weight in model.parameters()]) == plain


def test_with_the_other_budget_that_is_named_every_step_is_planned() -> None:
    _, planned, _ = refusal()
    model = tightrope.compile(net(), budget=planned, progress=False)
    list(train(model))
    assert tightrope.report(model).level == "L1"


def test_what_a_step_without_a_plan_lacks_is_refused() -> None:
    named, _, _ = refusal()
    model = tightrope.compile(net(), budget=named, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(train(model))
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.randn(64 * 64, 256))
