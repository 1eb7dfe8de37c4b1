"""Fused steps take the faster of two libraries for matrix products, in any budget that does without."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tightrope
import tightrope.run.session.fused
from tightrope.core import InfeasibleError, VerificationError
from tightrope.fuse.tolerance import WHOLE_STEP, difference
from tightrope.price.kernels import onednn_missing

pytestmark = pytest.mark.skipif(bool(onednn_missing()), reason=onednn_missing() or "-")


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give oneDNN every product that it can compute, whatever that takes."""
    for name, value in (("_PRODUCT_GAIN", -1e9), ("_PRODUCTS_GAIN", -1e9), ("_PRODUCT_BYTES", 1e9)):
        monkeypatch.setattr(tightrope.run.session.fused, name, value)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 8)]
    return nn.Sequential(*layers)


def train(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found: list[torch.Tensor] = []
    for _ in range(steps):
        model.zero_grad()
        loss = model(torch.randn(256, 32)).square().mean()
        loss.backward()
        found += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, torch.get_rng_state()]


@pytest.mark.usefixtures("always")
def test_values_are_within_the_tolerance_and_random_streams_equal() -> None:
    wanted = train(net())
    model = tightrope.compile(net(), budget="64MiB", fuse=True, verify="graph", progress=False)
    found, report = train(model), tightrope.report(model)
    assert report.num_products == 8
    assert "oneDNN computed 8 matrix products" in str(report)
    assert "within a tolerance" in report.verified
    assert torch.equal(found[-1], wanted[-1])
    for one, other in zip(found[:-1], wanted[:-1], strict=True):
        assert difference(one, other) <= WHOLE_STEP
        assert one.stride() == other.stride()


@pytest.mark.usefixtures("always")
def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tightrope.price.kernels._OWN["tightrope.onednn_addmm"]

    def wrong(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = right(bias, one, other)
        return found * 1.01

    monkeypatch.setitem(tightrope.price.kernels._OWN, "tightrope.onednn_addmm", wrong)
    model = tightrope.compile(net(), budget="64MiB", fuse=True, verify="graph", progress=False)
    with pytest.raises(VerificationError):
        train(model, 1)


def test_slower_products_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tightrope.run.session.fused, "_PRODUCT_GAIN", 1.0)
    model = tightrope.compile(net(), budget="64MiB", fuse=True, progress=False)
    train(model, 1)
    assert tightrope.report(model).num_products == 0


@pytest.mark.usefixtures("always")
def test_a_whole_step_takes_them_too() -> None:
    wanted: list[float] = []
    found: list[float] = []
    for fuse, losses in ((False, wanted), (True, found)):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = tightrope.step(
            lambda rows, model=model: model(rows).square().mean(),
            budget="64MiB", model=model, optimizer=optimizer, fuse=fuse, progress=False,
        )  # fmt: skip
        torch.manual_seed(1)
        losses += [float(step(torch.randn(256, 32))) for _ in range(3)]
        assert bool(tightrope.report(step).num_products) is fuse
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.usefixtures("always")
def test_a_budget_that_suffices_without_suffices() -> None:
    model = tightrope.compile(net(), budget="100KiB", progress=False)
    with pytest.raises(InfeasibleError) as refused:
        train(model, 1)
    budget = refused.value.smallest_found
    assert budget is not None
    del model, refused
    gc.collect()
    model = tightrope.compile(net(), budget=budget, fuse=True, progress=False)
    wanted, found = train(net(), 2), train(model, 2)
    assert torch.equal(found[-1], wanted[-1])
