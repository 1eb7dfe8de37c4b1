"""When calls that follow each other are planned as one, and when they stay apart."""

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import InfeasibleError, TightropeError
from tightrope.lower.join import Turn
from tightrope.record import record_run
from tightrope.run.session.patterns import Patterns, single

TWICE = (Turn(0, 0, False), Turn(1, 0, False), Turn(1, 0, True), Turn(0, 0, True))


def test_calls_stay_apart_while_nothing_is_computed_again() -> None:
    known = Patterns()
    known.learn(TWICE, free=True)
    assert known.expected(0) == single(0)
    assert "gains nothing" in known.why_apart()
    known.learn(TWICE)
    assert known.expected(0) == TWICE
    assert known.why_apart() == ""


def test_calls_stay_apart_where_no_plan_of_all_fits_even_for_a_recording() -> None:
    known = Patterns()
    known.learn(TWICE)
    known.never_fits(TWICE)
    known.together = True
    assert known.expected(0) == single(0)
    assert "fitted" in known.why_apart()


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


class Asking(nn.Module):
    """Code outside of every graph runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) if x.sum() > 0 else self.layer(x).tanh()
        return result


def test_a_refused_model_in_pieces_leaves_the_process_free() -> None:
    model = tightrope.compile(Asking(), budget="1KiB", fallback="pieces", progress=False)
    with pytest.raises(InfeasibleError, match="asked"):
        model(torch.ones(32, 16))
    assert torch.ones(1 << 20).sum() == 1 << 20
