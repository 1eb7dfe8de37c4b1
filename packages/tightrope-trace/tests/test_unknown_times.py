"""A graph whose ops have no times: nothing says that they take 0 ns."""

import torch

import tightrope
from tightrope.record import forecast
from tightrope_trace import explain


def test_an_unknown_time_is_never_0_ns() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    graph = tightrope.capture(net, torch.ones(512, 64))
    assert graph.base_ns == 0
    plan = tightrope.plan(graph, budget="100%")
    said = f"{plan.explain(graph)}\n{explain(forecast(graph, plan))}"
    assert "0 ns" not in said
    assert "unknown: the ops of the graph have no times" in said
    assert "an unknown time" in said
