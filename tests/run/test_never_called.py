"""A compiled model that is trained and never called is said to be planned nothing."""

import warnings

import pytest
import torch
from torch import nn

import tightrope


class Lit(nn.Module):
    """A module as Lightning has them: the loop calls `training_step`, and that a part."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(x)
        return result

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(batch)
        return result.square().mean()


def train(model: Lit, *, called: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.ones(4, 16)
        loss = model(batch).square().mean() if called else model.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_loop_that_goes_past_the_model_is_warned_once_and_the_report_says_so() -> None:
    model = tightrope.compile(Lit(), budget="64MiB", progress=False)
    with pytest.warns(UserWarning, match=r"nothing of this Lit is planned.*Compile the module") as seen:
        train(model, called=False)
    assert len(seen) == 1
    text = str(tightrope.report(model))
    assert "nothing is planned yet" in text
    assert "forecast 0 B" not in text
    assert "enforced" not in text


def test_a_model_that_is_called_in_a_closure_is_not_warned_of() -> None:
    model = tightrope.compile(Lit(), budget="64MiB", progress=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(torch.ones(4, 16)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(closure)


def test_a_model_that_is_called_and_a_part_that_is_compiled_are_not_warned_of() -> None:
    model = Lit()
    tightrope.compile(model.net, budget="64MiB", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, called=False)
        train(tightrope.compile(Lit(), budget="64MiB", progress=False), called=True)
    assert "nothing is planned" not in str(tightrope.report(model.net))
