"""Generators that are objects of the model, of its inputs or of its module draw what they draw in eager."""

import random
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.run.base.state import RandomStates, generators_in
from tightrope.run.compile import compiled_of
from tightrope.run.session.levels import try_plain

_GLOBAL = random.Random(7)


class Scaled(nn.Module):
    """Draws a factor per layer, no branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, draw: Any) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x)) * draw.random()
        return x.square().mean()


class Dropped(Scaled):
    """Draws whether a layer runs."""

    def forward(self, x: Tensor, draw: Any) -> Tensor:
        x = self.layer(x)
        for _ in range(5):
            if draw.random() < 0.5:
                x = torch.tanh(self.layer(x))
        return x.square().mean()


class Tree(Scaled):
    """Draws where it ends, in calls of itself."""

    def node(self, x: Tensor, depth: int, draw: Any) -> Tensor:
        if depth == 0 or draw.random() < 0.1:
            return self.layer(x)
        return torch.tanh(self.layer(self.node(x, depth - 1, draw) + self.node(x * 0.9, depth - 1, draw)))

    def forward(self, x: Tensor, draw: Any) -> Tensor:
        return self.node(x, 3, draw).square().mean()


class Owner(nn.Module):
    """Holds the generator itself."""

    def __init__(self, inner: nn.Module, draw: Any) -> None:
        super().__init__()
        self.inner, self.draw = inner, draw

    def forward(self, x: Tensor, _: Any) -> Tensor:
        return self.inner(x, self.draw)  # type: ignore[no-any-return]


class Enclosed(Scaled):
    """Calls a function that draws from a generator around it."""

    def __init__(self) -> None:
        super().__init__()
        draw, inner = random.Random(5), Dropped()
        self.inner, self.run = inner, lambda x: inner(x, draw)

    def forward(self, x: Tensor, draw: Any) -> Tensor:
        del draw
        return self.run(x)


class OfModule(Scaled):
    """Draws from a generator of its module."""

    def forward(self, x: Tensor, _: Any) -> Tensor:
        return super().forward(x, _GLOBAL)


def _trained(
    kind: type[nn.Module], make: Callable[[], Any], own: bool, **options: Any
) -> tuple[list[Any], list[Tensor]]:
    """Train four steps; return losses and what is drawn after them, and the gradients.

    Gradients of a parameter that several graphs read are added in another order than in eager.
    """
    torch.manual_seed(0)
    _GLOBAL.seed(7)
    model, draw = kind(), make()
    if own:
        model = Owner(model, draw)
    if options:
        model = tightrope.compile(model, progress=False, **options)
    losses, gradients = list[Any](), list[Tensor]()
    for _ in range(4):
        model.zero_grad()
        loss = model(torch.ones(2, 8), draw)
        loss.backward()
        losses.append(loss.item())
        gradients += [one.grad.clone() for one in model.parameters() if one.grad is not None]
    return [*losses, draw.random(), _GLOBAL.random()], gradients


def _equal(found: tuple[list[Any], list[Tensor]], wanted: tuple[list[Any], list[Tensor]]) -> bool:
    return found[0] == wanted[0] and all(map(torch.allclose, found[1], wanted[1]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize(
    ("kind", "own", "options"),
    [
        (Scaled, False, {}),
        (Scaled, True, {}),
        (Dropped, False, {}),
        (Dropped, True, {}),
        (Tree, False, {}),
        (Tree, True, {"verify": "eager"}),
        (Dropped, True, {"fallback": "evict"}),
        (OfModule, False, {}),
        (Enclosed, False, {}),
    ],
)
def test_draws_are_those_of_eager(kind: type[nn.Module], own: bool, options: dict[str, Any]) -> None:
    def make() -> random.Random:
        return random.Random(3)

    assert _equal(_trained(kind, make, own, budget="64MiB", **options), _trained(kind, make, own))


@pytest.mark.filterwarnings("ignore:tightrope. level")
@pytest.mark.parametrize("make", [lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)])
def test_so_are_those_of_numpy(make: Callable[[], Any]) -> None:
    assert _equal(_trained(Dropped, make, True, budget="64MiB"), _trained(Dropped, make, True))


def test_a_generator_is_found_where_models_and_inputs_hold_it() -> None:
    class Box:
        def __init__(self) -> None:
            self.inside = {"a": [random.Random(1)]}

    made, numbers, states = torch.Generator(), np.random.default_rng(1), np.random.RandomState(1)
    model = Owner(nn.Linear(1, 1), made)
    found = generators_in((model, (numbers, {"k": states}), Box()))
    assert {type(one) for one in found} == {random.Random, torch.Generator, np.random.Generator, type(states)}
    assert made in found
    assert _GLOBAL in generators_in((OfModule(),))


class Recorded(random.Random):
    def getstate(self) -> Any:
        raise RuntimeError("a stream is not read twice")


def test_modules_and_generators_without_a_state_are_left_alone() -> None:
    class Curious:
        @property
        def __class__(self) -> Any:
            raise AssertionError("code of the object ran")

    library = ModuleType("library")
    library.draw = random.Random(1)  # type: ignore[attr-defined]
    holder = [secrets, library, Curious(), random.SystemRandom(), Recorded(1), secrets.token_bytes, Recorded]
    assert generators_in([holder, torch.distributed]) == []
    before = RandomStates.now(holder)
    assert before.differing(before.present()) == []


@pytest.mark.parametrize("draw", [random.SystemRandom(), Recorded(1)])
def test_a_model_that_holds_a_generator_without_a_state_is_planned(draw: random.Random) -> None:
    model = Owner(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), draw)
    model.forward = lambda x: model.inner(x).sum()  # type: ignore[method-assign, misc, assignment]
    model.library = secrets  # type: ignore[assignment]
    tightrope.compile(model, budget="64MiB", progress=False, verify="eager")
    model(torch.ones(2, 8)).backward()
    assert tightrope.report(model).level == "L1"


def test_states_come_back_and_differences_are_named() -> None:
    own = [random.Random(1), np.random.default_rng(1), np.random.RandomState(1), torch.Generator()]
    before = RandomStates.now(own)
    drawn = [own[0].random(), own[1].random(), own[2].rand(), torch.rand(1, generator=own[3]).item()]  # type: ignore[attr-defined,call-overload]
    assert len(before.differing(before.present())) == 4
    before.restore()
    assert before.differing(before.present()) == []
    assert drawn == [own[0].random(), own[1].random(), own[2].rand(), torch.rand(1, generator=own[3]).item()]  # type: ignore[attr-defined,call-overload]


def test_a_trial_of_a_call_draws_nothing() -> None:
    model, draw = tightrope.compile(Dropped(), budget="64MiB", progress=False), random.Random(3)
    try_plain(weakref.ref(model), compiled_of(model), partial(Dropped.forward, model), torch.ones(2, 8), draw)
    assert draw.random() == random.Random(3).random()
