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

    _in_this_package = __call__.__code__.replace(co_filename=f"{caller_text._OURS}/model.py")
    __call__.__code__ = _in_this_package

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
    views = [1, 2, 3]
    outs = [model(x) for x in views]
    outs[0].backward()


def of_a_slice(model: Model) -> None:
    views = (1, 2, 3, 4)
    first = model(views[0])
    outs = [model(x) for x in views[1:]]
    (first + outs[0]).backward()


def of_what_is_not_in_sight(model: Model) -> None:
    outs = [model(x) for x in iter([1, 2, 3])]
    outs[0].backward()


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
        (of_a_list, 3),
        (of_a_slice, 4),
        (of_what_is_not_in_sight, 2),
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


def test_what_the_caller_drops_is_gone() -> None:
    held = Model()
    gone = weakref.ref(held)
    views = [1, 2]
    (outs,) = ([held(x) for x in views],)
    assert FOUND.pop() == len(views)
    del held, outs
    assert gone() is None


def test_variables_outside_of_functions_stay(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text("views = [1, 2]\n(model(views) + model(views)).backward()\n")
    own = {"model": Model()}
    exec(compile(file.read_text(), str(file), "exec"), {}, own)
    assert FOUND.pop() == len(own) == len(("model", "views"))


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

    with pytest.raises(InfeasibleError, match=r"test_caller_text\.py:\d+ calls the model 2 times") as refused:
        train(1 << 16)
    named = refused.value.smallest_found
    assert named is not None
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(12)))
    train(named)
    assert accounts().charged() <= named
