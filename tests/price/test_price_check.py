"""Kept prices that are compared with what the ops take now."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tightrope.capture import capture_program
from tightrope.price import Measured, PriceStore, price_ops
from tightrope.run.ledger.accounts import accounts

NOW = 1000


@pytest.mark.parametrize(
    ("kept", "check", "wanted"),
    [(1100, True, 1100), (2000, True, NOW), (500, True, NOW), (2000, False, 2000)],
)
def test_prices_of_another_state_of_the_machine_are_measured_again(
    kept: int, check: bool, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = import_module("tightrope.price.ops")

    real = ops.measure

    def measure(*args: Any) -> Measured:
        return replace(real(*args), ns=NOW)

    monkeypatch.setattr(ops, "measure", measure)
    monkeypatch.setattr(ops, "FreshPrices", lambda environment: PriceStore(environment, tmp_path / "new"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    program, given = capture_program(model, (torch.ones(2, 4),))
    store = PriceStore(program.graph.environment, tmp_path)
    allocator = accounts().allocator
    known = [*given, *program.constants]
    price_ops(program.graph, known, allocator=allocator, store=store)
    for key, price in store.prices.items():
        store.put(key, replace(price, ns=kept))
    found = price_ops(program.graph, known, allocator=allocator, store=store, check=check)
    assert {op.ns for op in found.graph.ops if op.ns} == {wanted}  # handing over takes no time


def test_prices_that_were_all_measured_now_are_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = import_module("tightrope.price.ops")

    monkeypatch.setattr(ops, "FreshPrices", None)
    model = torch.nn.Linear(4, 4)
    program, given = capture_program(model, (torch.ones(2, 4),))
    store = PriceStore(program.graph.environment, tmp_path)
    known = [*given, *program.constants]
    price_ops(program.graph, known, allocator=accounts().allocator, store=store, check=True)
    assert store.prices
