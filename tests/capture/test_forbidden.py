"""Calls that Dynamo forbids while it traces: marks are passed over, the others keep a call from capture."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope

MARKS = ("mark_static_address", "mark_static", "mark_dynamic", "maybe_mark_dynamic")


class Marking(nn.Module):
    """Marks a tensor as a cache of a language model does."""

    def __init__(self, mark: Any, *more: int) -> None:
        super().__init__()
        self.layer, self.mark, self.more = nn.Linear(8, 8), mark, more

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        self.mark(state, *self.more)
        made: Tensor = self.layer(x) + state
        return made


@pytest.mark.parametrize("name", MARKS)
def test_a_mark_for_later_traces_is_passed_over(name: str) -> None:
    mark = getattr(torch._dynamo, name)
    model = Marking(mark, *[0][: name != "mark_static_address"])
    x = torch.ones(4, 8)
    wanted = model(x).detach()
    tightrope.compile(model, budget="64MiB", progress=False)
    made = model(x)
    made.sum().backward()
    assert torch.equal(made, wanted)
    report = tightrope.report(model)
    assert (report.level, report.why, report.unlike_eager) == ("L1", "", ())


class Standing(nn.Module):
    """Says in its forward how torch is to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch.compiler.set_stance("default")
        made: Tensor = self.last(x)
        return made


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_another_forbidden_call_is_no_crash() -> None:
    model, x = Standing(), torch.ones(4, 8)
    wanted = model(x).detach()
    tightrope.compile(model, budget="64MiB", progress=False)
    made = model(x)
    made.sum().backward()
    assert torch.equal(made, wanted)
    assert "set_stance" in tightrope.report(model).why
