"""How many forwards come before a backward, from the caller's text alone."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from tightrope.core import InfeasibleError
from tightrope.run.base import caller_text
from tightrope.run.base.caller_text import forwards_ahead
from tightrope.run.ledger.accounts import accounts

FOUND: list[int] = []


class Model:
    """Counts at its first call."""

    def __init__(self) -> None:
        self.first = True

    def __call__(self, *_: Any) -> "Model":
        if self.first:
            self.first = False
            FOUND.append(forwards_ahead()[0])
        return self

    __call__.__code__ = __call__.__code__.replace(co_filename=caller_text._ENTRY, co_name="call")

    def __add__(self, _: object) -> "Model":
        return self

    def backward(self) -> None:
        """No more."""


def one(model: Model) -> None:
    loss = model()
    loss.backward()
    model()


def two(model: Model) -> None:
    loss = model() + model()
    loss.backward()


def after_a_backward(model: Model) -> None:
    other = Model()
    other.first = False
    other.backward()
    for _ in range(2):
        loss = model()
        loss.backward()


def of_a_list(model: Model) -> None:
    outs = [model(x) for x in [1, 2, 3]]
    outs[0].backward()


def of_a_list_behind_a_call(model: Model) -> None:
    first = model()
    outs = [model(x) for x in [1, 2, 3]]
    (first + outs[0]).backward()


def of_what_one_call_returns(model: Model) -> None:
    losses = [one + one for one in (model(),)]
    losses[0].backward()


def of_several_models(model: Model) -> None:
    losses = [each() for each in (model, model)]
    losses[0].backward()


def by_a_builtin(model: Model) -> None:
    loss = sum(map(model, [1]), model)
    assert sum([1])
    loss.backward()


def again_after_an_error(model: Model) -> None:
    try:
        loss = model()
    except ValueError:
        loss = model()
    loss.backward()


def in_one_of_three_cases(model: Model) -> None:
    match len(FOUND):
        case 0:
            loss = model()
        case 1:
            loss = model() + model()
        case _:
            loss = model()
    loss.backward()


def one_or_the_other(model: Model) -> None:
    (model() or model()).backward()


def beside_an_inference(model: Model) -> None:
    loss = model()
    with torch.inference_mode():
        model()
    loss.backward()


def before_a_backward_by_name(model: Model) -> None:
    backward = Model.backward
    loss = model()
    backward(loss)
    model()


def in_a_branch_that_leaves(model: Model) -> Model:
    if model.first:
        return model()
    return model() + model()


def behind_a_branch_that_leaves(model: Model) -> Model:
    if not model.first:
        return model() + model()
    return model()


def in_one_of_two_branches(model: Model) -> None:
    (model() + model() if model.first else model()).backward()


def beside_an_evaluation(model: Model) -> None:
    loss = model()
    with torch.no_grad():
        model()
    loss.backward()


def of_the_gradient_of_an_input(model: Model) -> None:
    autograd = torch.autograd if model is None else Stub()
    loss = model()
    autograd.grad(loss)
    model().backward()


class Stub:
    """Has a gradient."""

    def grad(self, loss: Model) -> None:
        """Of what is given."""


@pytest.mark.parametrize(
    ("loop", "count"),
    [
        (one, 1),
        (two, 2),
        (after_a_backward, 1),
        (of_a_list, 2),
        (of_a_list_behind_a_call, 2),
        (of_what_one_call_returns, 1),
        (of_several_models, 1),
        (by_a_builtin, 1),
        (again_after_an_error, 1),
        (in_one_of_three_cases, 1),
        (one_or_the_other, 1),
        (beside_an_inference, 1),
        (before_a_backward_by_name, 1),
        (in_a_branch_that_leaves, 1),
        (behind_a_branch_that_leaves, 1),
        (in_one_of_two_branches, 2),
        (beside_an_evaluation, 1),
        (of_the_gradient_of_an_input, 1),
    ],
)
def test_calls_are_counted_up_to_the_next_backward(loop: Callable[[Model], Any], count: int) -> None:
    FOUND.clear()
    loop(Model())
    assert count == FOUND[0]


def test_variables_of_the_caller_stay_and_what_it_drops_is_gone() -> None:
    held = Model()
    gone, config = weakref.ref(held), locals()
    out = held() + held()
    assert FOUND.pop() == len("ab")
    assert "held" in config
    config.clear()
    del held, out
    assert gone() is None


def test_a_text_that_is_too_deep_is_one(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text("(" + " + ".join(["model()"] * 900) + ").backward()")
    exec(compile(file.read_text(), str(file), "exec"), {"model": Model()})
    assert FOUND.pop() == 1


def test_without_a_text_it_is_one() -> None:
    FOUND.clear()
    exec("(model() + model()).backward()", {"model": Model()})
    assert FOUND[0] == 1


def test_a_first_refusal_names_a_budget_for_both_forwards_of_a_siamese_net() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(12)))
    pairs = [torch.randn(256, 128) for _ in range(2)]

    def train(budget: int) -> None:
        gc.collect()
        tightrope.compile(model, budget=budget, progress=False)
        for _ in range(2):
            left, right = (model(x) for x in pairs)
            (left - right).square().mean().backward()
            model.zero_grad()

    with pytest.raises(
        InfeasibleError, match=r"test_caller_text\.py:\d+ calls the model at least 2 times"
    ) as refused:
        train(1 << 16)
    named = refused.value.smallest_found
    assert named is not None
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(12)))
    train(named)
    assert accounts().charged() <= named
