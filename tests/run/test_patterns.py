"""When calls that follow each other are planned as one, and when they stay apart."""

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import InfeasibleError
from tightrope.lower.join import Turn
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
