"""Without a C++ compiler: the same results, and a report that says what was checked and what was not."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Blocks, Seen, batches, built, play

import tightrope
from tightrope.price.store import PriceStore
from tightrope.run.ledger.accounts import Accounts, accounts

DATA = batches(3)


@pytest.fixture(autouse=True)
def _unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()  # `DATA` is found by walking what the collector knows
    accounts()  # those of the process have their hook, whoever asks for them first
    monkeypatch.setattr("tightrope.run.ledger.accounts.missing", lambda _: "no C++ compiler found.")
    monkeypatch.setattr("tightrope.run.ledger.accounts.compiler", lambda: None)
    monkeypatch.setattr("tightrope.run.ledger.accounts.warn_once", lambda _: None)
    monkeypatch.setattr(PriceStore, "get", lambda *_: None)
    monkeypatch.setattr(PriceStore, "save", lambda _: None)
    unhooked = Accounts()
    monkeypatch.setattr("tightrope.run.session.on_gpu.accounts", lambda _: unhooked)


def loop(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DATA:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()


def mixed(model: nn.Module, see: Seen) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(DATA[0][0])
    out.float().square().mean().backward()
    see.gradients(model)


def test_results_are_the_same_and_the_report_says_checked() -> None:
    wanted = play(built(Blocks), loop)
    model = tightrope.compile(built(Blocks), budget="32MiB", progress=False)
    assert play(model, loop) == wanted
    report = tightrope.report(model)
    assert not report.enforced
    assert "checked, not enforced: no C++ compiler" in report.why
    assert str(report).splitlines()[1] == "budget 32.00 MiB, checked, not enforced"
    assert 0 <= report.observed_peak - report.forecast_peak < 65536  # temporaries of kernels are unknown here
    weights = sum(4 * parameter.numel() for parameter in model.parameters())
    data = sum(x.nbytes + y.nbytes for x, y in DATA)
    assert report.persistent >= weights + data
    assert report.persistent < report.observed_total <= report.budget


@pytest.mark.slow
def test_mixed_precision() -> None:
    def build() -> nn.Module:
        return Blocks(dropout=0.0)

    wanted = play(built(build), mixed)
    assert play(tightrope.compile(built(build), budget="32MiB", progress=False), mixed) == wanted
