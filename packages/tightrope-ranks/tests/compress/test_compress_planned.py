"""Ready times from our own plans, and the drawing of a forecast."""

import xml.etree.ElementTree as ElementTree

import torch
from msgspec.structs import replace
from torch import nn

import tightrope
from benchmarks.compress.problems import random_problem
from tightrope_ranks.compress import forecast, plan_exchange, planned_stream, timeline_svg


def test_what_is_computed_again_delays_gradients() -> None:
    torch.manual_seed(0)
    layers = [one for _ in range(8) for one in (nn.Linear(256, 256), nn.Tanh())]
    graph = tightrope.capture(nn.Sequential(*layers), torch.randn(512, 256))
    graph = replace(graph, ops=tuple(replace(op, ns=10**6) for op in graph.ops))  # prices come from measuring
    free = tightrope.plan(graph, budget=2**40)
    tight = tightrope.plan(graph, budget=free.forecast.total - 2 * 512 * 256 * 4)
    assert tight.forecast.ns > free.forecast.ns
    streams = [planned_stream(graph, plan) for plan in (free, tight)]
    assert streams[0].names == streams[1].names
    assert sum(streams[0].sizes) >= sum(one.nbytes for layer in layers for one in layer.parameters())
    ends = [sum(one.compute) + one.before for one in streams]
    assert ends[1] - ends[0] > 0.5e-9 * (tight.forecast.ns - free.forecast.ns)
    assert len([one for one in streams[0].compute if one]) > 4


def test_a_forecast_is_drawn() -> None:
    problem = random_problem(3, 12, 2)
    plan = plan_exchange(problem)
    trace = forecast(problem, plan.messages)
    picture = ElementTree.fromstring(timeline_svg(trace, title="a < b"))
    assert len(picture.findall("{http://www.w3.org/2000/svg}rect")) == len(trace.events)
