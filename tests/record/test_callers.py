"""Where a line was called from: kept from the capture to the trace, its file and torch's viewer."""

import inspect
from pathlib import Path

import pytest
import torch

import tightrope
from tightrope.core import Trace
from tightrope.record import forecast


def squared(x: torch.Tensor) -> torch.Tensor:
    return x.square()


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = squared(x)
        return squared(first).mean()


@pytest.fixture(scope="module")
def trace() -> Trace:
    graph = tightrope.capture(Twice(), torch.ones(4, requires_grad=True))
    return forecast(graph, tightrope.plan(graph, budget="100%"))


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"{Path(__file__).name}:{first + next(k for k, line in enumerate(lines) if text in line)}"


def test_one_line_called_from_two_places_has_two_stacks(trace: Trace) -> None:
    mine = line_of(squared, "x.square()")
    found = {
        tuple(trace.lines[line] for line in trace.callers[event.callers])
        for event in trace.events
        if event.line >= 0 and trace.lines[event.line] == mine
    }
    assert found == {(line_of(Twice, "first = "),), (line_of(Twice, "return squared"),)}
