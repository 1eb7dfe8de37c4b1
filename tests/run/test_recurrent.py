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


@pytest.mark.few(2)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_cells_are_planned_bit_for_bit(kind: type[nn.RNNCellBase], bias: bool) -> None:
    """The last bits of a sigmoid depend on whether its gate is a column of a wider tensor."""
    torch.manual_seed(0)
    cell = kind(24, 48, bias=bias)

    def gradients_of(called: nn.Module) -> list[torch.Tensor]:
        cell.zero_grad()
        x, state = torch.ones(70, 24, requires_grad=True), torch.ones(70, 48, requires_grad=True)
        state_of = (lambda h: (h, h)) if kind is nn.LSTMCell else (lambda h: h)
        found = called(x.sin() * torch.arange(24), state_of(state.cos()))
        last = found[0] if isinstance(found, tuple) else found
        (last * torch.linspace(-1, 1, 48)).sum().backward()
        return [last.detach(), x.grad, state.grad, *(one.grad.clone() for one in cell.parameters())]

    wanted = gradients_of(cell)
    tightrope.compile(cell, budget="64MiB", progress=False)
    assert all(map(torch.equal, wanted, gradients_of(cell)))
    assert tightrope.report(cell).level == "L1"


WHOLE = 6_009_408
"""Bytes that steps of `Carried`, and what they are compared with, take without a plan."""


class Carried(nn.Module):
    """An LSTM that gets the state of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(50, 48), nn.LSTM(48, 48, 2, dropout=0.2)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        found, state = self.layers(self.embed(x), state)
        return found @ self.embed.weight.t(), state


@pytest.mark.parametrize("percent", [100, 75])
def test_a_state_that_no_loss_reads_leaves_the_budget_s_room(percent: int) -> None:
    """The second backward is captured anew; what that measured once is not run within the budget again."""
    gc.collect()
    budget = accounts().charged() + percent * WHOLE // 100  # a percentage is also of what other tests left
    torch.manual_seed(0)
    plain, words = Carried(), torch.randint(0, 50, (60, 32))
    twin = copy.deepcopy(plain)
    tightrope.compile(twin, budget=budget, progress=False)
    for model in (plain, twin):
        torch.manual_seed(1)
        optimizer, state = torch.optim.SGD(model.parameters(), lr=1.0), None
        for at in range(0, 48, 12):
            scores, state = model(words[at : at + 12], state)
            state = tuple(one.detach() for one in state)
            nn.functional.cross_entropy(scores.flatten(0, 1), words[at + 1 : at + 13].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, plain.parameters(), twin.parameters()))
    assert tightrope.report(twin).level == "L1"


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
