"""Budgets in percent: of what is said, a refusal names one that works, and growth is told."""

import re

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import InfeasibleError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))


def train(model: nn.Module, rows: int) -> None:
    model(torch.ones(rows, 64)).sum().backward()


def test_a_percentage_that_is_refused_is_answered_by_one_that_trains() -> None:
    with pytest.raises(InfeasibleError, match=r"asked 20% of ") as refused:
        train(tightrope.compile(net(), budget="20%", progress=False), 2048)
    named = re.search(r'budget="(\d+%)"', str(refused.value))
    assert named is not None
    model = tightrope.compile(net(), budget=named[1], progress=False)
    for _ in range(2):
        train(model, 2048)
    assert tightrope.report(model).share == named[1]


def test_the_report_says_of_what_a_percentage_is() -> None:
    model = tightrope.compile(net(), budget="97%", progress=False)
    train(model, 1024)
    report = tightrope.report(model)
    assert report.share == "97%"
    assert report.budget == -(-report.unplanned * 97 // 100)
    assert re.search(r"budget 97% of .* \(unplanned .*, saved .*\)", str(report))


def test_a_limit_that_grows_with_the_shapes_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    model = tightrope.compile(net(), budget="97%")  # some of it may be tensors of other tests
    train(model, 512)
    assert "rose" not in capsys.readouterr().err
    train(model, 640)
    assert re.search(r"budget 97% rose from .* to .*: the unplanned step needs", capsys.readouterr().err)


def test_a_percentage_is_of_the_loop_where_gradients_are_added_up() -> None:
    wide = [nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(2)]
    model, x = nn.Sequential(*wide), torch.randn(32, 128)
    right = [nn.Parameter(one.detach().clone()) for one in model.parameters()]
    for _ in range(3):
        given = dict(zip(dict(model.named_parameters()), right, strict=True))
        out = torch.func.functional_call(model, given, x)
        out.square().mean().backward()
    expected = [one.grad.double().sum().item() for one in right if one.grad is not None]
    del right, given, out
    tightrope.compile(model, budget="100%", progress=False)
    for _ in range(3):
        model(x).square().mean().backward()
    assert [one.grad.double().sum().item() for one in model.parameters() if one.grad is not None] == expected
    report = tightrope.report(model)
    assert report.observed_total <= report.budget
