"""Recurrent layers are planned as eager runs them: LSTM layers by one kernel, others step by step."""

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from tightrope.run.ledger.accounts import accounts


class Recurrent(nn.Module):
    """A recurrent net between two linear layers, that uses its last state too."""

    def __init__(self, kind: type[nn.RNNBase], dtype: torch.dtype, options: dict[str, Any]) -> None:
        super().__init__()
        self.first = nn.Linear(24, 24, dtype=dtype)
        self.layers = kind(24, 48, 2, dtype=dtype, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, state = self.layers(self.first(x).tanh())
        last = state if isinstance(state, torch.Tensor) else state[0]
        total: torch.Tensor = found.square().sum() + last.sum()
        return total


def made(
    kind: type[nn.RNNBase], dtype: torch.dtype = torch.float32, *, length: int = 6, **options: Any
) -> tuple[Recurrent, torch.Tensor]:
    torch.manual_seed(0)
    return Recurrent(kind, dtype, options), torch.randn(length, 16, 24, dtype=dtype)


def gradients(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(batch)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


CASES = {
    "lstm": made(nn.LSTM),
    "two ways": made(nn.LSTM, bidirectional=True, batch_first=True),
    "dropout": made(nn.LSTM, dropout=0.3),
    "bfloat16": made(nn.LSTM, torch.bfloat16, bias=False),
    "tanh": made(nn.RNN),
    "relu": made(nn.RNN, nonlinearity="relu", bidirectional=True),
}
UNPLANNED = {
    "gru": (made(nn.GRU), "in place on parts"),
    "float64": (made(nn.LSTM, torch.float64), "in place on parts"),
    "projected": (made(nn.LSTM, proj_size=12), "in place on parts"),
    "many cells": (made(nn.RNN, length=40), "80 cells one by one"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_recurrent_layers_are_planned_bit_for_bit(case: str) -> None:
    if case == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no kernel of a layer in bfloat16")
    model, batch = CASES[case]
    wanted, twin = gradients(model, batch), copy.deepcopy(model)
    tightrope.compile(twin, budget="64MiB", progress=False)
    assert all(map(torch.equal, wanted, gradients(twin, batch)))
    assert tightrope.report(twin).level == "L1"


def test_a_layer_of_an_lstm_runs_again() -> None:
    model, batch = made(nn.LSTM, length=40)
    wanted, twin = gradients(model, batch), copy.deepcopy(model)
    gc.collect()
    budget = accounts().charged() + (4 << 20)  # with what is held, 85 % of the unplanned step
    tightrope.compile(twin, budget=budget, progress=False)
    for _ in range(2):
        assert all(map(torch.equal, wanted, gradients(twin, batch)))
    assert tightrope.report(twin).num_recomputed > 0
    assert all(proof.checked for proof in tightrope.report(twin).proofs)


@pytest.mark.parametrize("grad_mode", [False, True])
def test_without_gradients_the_kernel_is_that_of_eager(grad_mode: bool) -> None:
    model, batch = made(nn.LSTM)
    model.requires_grad_(False)
    twin = copy.deepcopy(model)
    tightrope.compile(twin, budget="64MiB", progress=False)
    with torch.set_grad_enabled(grad_mode):
        assert torch.equal(model(batch), twin(batch))


@pytest.mark.few(2)
@pytest.mark.parametrize("case", UNPLANNED)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_others_run_at_level_0(case: str) -> None:
    (model, batch), why = UNPLANNED[case]
    wanted, twin = gradients(model, batch), copy.deepcopy(model)
    tightrope.compile(twin, budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match=why):
        found = gradients(twin, batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(twin).level == "L0"


@pytest.fixture
def _without_onednn() -> Iterator[None]:
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


@pytest.mark.usefixtures("_without_onednn")
def test_without_onednn_an_lstm_runs_at_level_0() -> None:
    model, batch = made(nn.LSTM)
    wanted, twin = gradients(model, batch), copy.deepcopy(model)
    tightrope.compile(twin, budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match="in place on parts"):
        found = gradients(twin, batch)
    assert all(map(torch.equal, wanted, found))
    assert tightrope.report(twin).level == "L0"
