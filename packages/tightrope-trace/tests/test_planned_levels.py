"""Recordings of steps that fuse, page, announce gradients or run in pieces."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tightrope
from tests.run import test_announce as announced
from tests.run import test_fuse as fused
from tests.run import test_paging_run as paged
from tests.run import test_step_time as timed
from tests.run.training import budget_for, built, play
from tightrope.capture import announce
from tightrope.core import TightropeError
from tightrope.native.build import compiler
from tightrope.record import forecast
from tightrope.run.execute import prepared
from tightrope.run.ledger.accounts import accounts
from tightrope_trace.judge.trace import compare_traces
from tightrope_trace.planned import record_run

pytestmark = pytest.mark.skipif(compiler() is None, reason="a recording needs a C++ compiler")


class Broken(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        result: torch.Tensor = self.second(x).tanh()
        return result


def train(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.ones(8, 32)).sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo's own, with any backend
@pytest.mark.filterwarnings("ignore:tightrope. level L1 in pieces")
def test_a_model_in_pieces_can_be_recorded_after_one_more_step_at_an_ample_budget() -> None:
    model = tightrope.compile(Broken(), budget="64MiB", fallback="pieces", progress=False)
    for _ in range(3):
        train(model)
    assert "one by one (nothing is computed again" in tightrope.report(model).why
    with pytest.raises(TightropeError, match="Run another step, which makes it"), record_run(model):
        train(model)
    train(model)
    with record_run(model) as recording:
        train(model)
    assert recording.trace.events


def test_a_step_that_is_recorded_announces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "_trains_together", lambda: True)
    model, batch = built(announced.build), announced.data(1)[0]
    tightrope.compile(model, budget=budget_for(model, (batch[0],)) + (2 << 20), progress=False)
    play(model, announced.plain)
    found = announced.watched(model, announced.allocations)
    with record_run(model) as recording:
        announced.loss_of(model, batch).backward()
    assert len(set(found)) == 1
    assert recording.trace.events


def test_a_recording_does_not_change_what_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "clock_here", timed.ticking(1))
    model = timed.net(accounts().charged() + (64 << 20))
    timed.train(model, 2)
    monkeypatch.setattr(prepared, "clock_here", timed.ticking(50))
    with record_run(model):
        timed.train(model, 1)
    monkeypatch.setattr(prepared, "clock_here", timed.ticking(1))
    assert timed.train(model, 1).time.observed_ns == 2 * timed.TICK


@pytest.mark.slow
def test_a_step_that_pages_cannot_be_recorded(tmp_path: Path) -> None:
    model = paged.paging(paged.deep, tmp_path, recompute=True)
    model(paged.batch()).square().mean().backward()
    with pytest.raises(TightropeError, match="a step that pages cannot be recorded"), record_run(model):
        pass


def test_a_fused_step_is_recorded_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session.fused", "step"):  # with the layouts and the kernels of the model
        monkeypatch.setattr(f"tightrope.run.{module}.faster_form", lambda *_: None)
    model, batch = fused.net_with_lone_ops(), torch.randn(fused.ROWS, fused.WIDTH)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tightrope.step(
        lambda x: model(x).square().mean(), budget="200%", model=model, optimizer=sgd, fuse=True, verify=None
    )
    step(batch)
    with record_run(step) as recording:
        step(batch)
    seen, said = recording.trace, forecast(recording.graph, recording.plan)
    assert compare_traces(said, seen).equal
    assert said.profile() == seen.profile()
    assert [(b.creator, b.readers, b.storage, b.offset) for b in seen.buffers] == [
        (b.creator, b.readers, b.storage, b.offset) for b in said.buffers
    ]
    assert [(e.name, e.op, e.phase) for e in seen.events] == [(e.name, e.op, e.phase) for e in said.events]
    stretches = [event for event in seen.events if event.name.startswith("fused: ")]
    assert len(stretches) == len(recording.plan.stretches) > 0
    assert any(seen.lines[event.line].count("test_fuse.py:") > 1 for event in stretches)
