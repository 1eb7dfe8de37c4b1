"""One rule for what a buffer is for: planned and forecast traces agree."""

from collections import Counter

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import Category, EventPhase, Trace
from tightrope.record import forecast
from tightrope_trace import Recording, record_run


class Classifier(nn.Module):
    """A loss of class scores: its backward makes gradients of activations."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.loss = layers, nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.layers(x), y)
        return loss


def layered() -> Classifier:
    return Classifier(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)))


BATCH = (torch.ones(8, 16), torch.zeros(8, dtype=torch.long))


@pytest.fixture(scope="module")
def planned() -> Recording:
    """One step; as in eager, every result has memory of its own."""
    return by_plan(overwrite=False)


def by_plan(*, overwrite: bool) -> Recording:
    model, batch = layered(), BATCH
    tightrope.compile(model, budget="64MiB", verify=None, overwrite=overwrite)
    for _ in range(2):
        model(*batch).backward()
        model.zero_grad(set_to_none=True)
    with record_run(model) as recording:
        model(*batch).backward()
    return recording


def kinds(trace: Trace) -> Counter[tuple[int, Category]]:
    """Bytes and category of everything that outlives the op that made it."""
    return Counter((b.bytes, b.category) for b in trace.buffers if b.category is not Category.TEMPORARY)


def of_the_loss(trace: Trace) -> set[Category]:
    """What the gradients that the backward of the loss makes are said to be."""
    return {
        buffer.category
        for buffer in trace.buffers
        if buffer.creator >= 0
        and "log_softmax_backward" in trace.events[buffer.creator].name
        and trace.events[buffer.creator].phase is EventPhase.BACKWARD
    }


def test_planned_and_forecast_say_the_same(planned: Recording) -> None:
    assert kinds(planned.trace) == kinds(forecast(planned.graph, planned.plan))


def test_planned_and_forecast_say_the_same_of_what_is_written_over(planned: Recording) -> None:
    over = by_plan(overwrite=True)
    assert kinds(over.trace) == kinds(forecast(over.graph, over.plan))
    assert len(over.trace.buffers) < len(planned.trace.buffers)


def test_gradients_of_activations_are_gradients(planned: Recording) -> None:
    assert of_the_loss(planned.trace) == {Category.GRADIENT}


def test_what_the_model_hands_back_is_output(planned: Recording) -> None:
    assert [b.bytes for b in planned.trace.buffers if b.category is Category.OUTPUT] == [4]


def test_a_recomputed_activation_stays_one() -> None:
    model = Classifier(nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU()))))
    batch = (torch.ones(256, 64), torch.zeros(256, dtype=torch.long))
    graph = tightrope.capture(model, *batch)
    plan = tightrope.plan(graph, budget="70%")
    trace = forecast(graph, plan)
    again = [
        buffer.category
        for buffer in trace.buffers
        if buffer.copy and trace.events[buffer.creator].phase is EventPhase.RECOMPUTE
    ]
    assert again
    assert set(again) == {Category.ACTIVATION}


def test_an_op_with_several_results_that_writes_over_an_input_is_followed() -> None:
    """The backward of batch norm: its first result goes on in the bytes of an input."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4))
    model, batch = Classifier(layers), (torch.ones(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))
    tightrope.compile(model, budget="64MiB", progress=False)
    model(*batch).backward()
    with record_run(model) as planned:
        model(*batch).backward()
    (norm,) = [op for op in planned.graph.ops if op.target == "tightrope.norm_backward"]
    assert norm.over in norm.reads

    def read(trace: Trace) -> list[tuple[int, int, list[str]]]:
        names = [[trace.events[k].name for k in b.readers] for b in trace.buffers]
        ops = ([name for name in each if name != "tightrope.return"] for each in names)
        return [(b.storage, b.bytes, each) for b, each in zip(trace.buffers, ops, strict=True)]

    assert read(planned.trace) == read(forecast(planned.graph, planned.plan))
