"""`tightrope estimate` and `tightrope.compile` draw the same line between what fits and what does not."""

import gc
from typing import Any

import pytest
import torch

import tightrope
from benchmarks.zoo import build
from tightrope.cli.estimate import OPTIMIZERS, Asked, Step, describe
from tightrope.cli.target import Built
from tightrope.core import Bytes, InfeasibleError, TightropeError
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import CAPTURE_SLACK

_LONG = pytest.mark.slow


def steps_done(net: str, optimizer: str, budget: Bytes, *, drops: str, num: int = 3) -> int:
    """Train a net in a budget beside what the process holds; count the steps before a refusal."""
    torch._dynamo.reset()  # so that what an earlier net left is not given back meanwhile
    gc.collect()
    beside = accounts().charged()
    case = build(net, scale="test")
    make = OPTIMIZERS[optimizer]
    update = make(list(case.model.parameters())) if make is not None else None
    model: Any = tightrope.compile(case.model, budget=budget + beside, progress=False)
    done = 0
    try:
        while done < num:
            if drops == "before":
                model.zero_grad()
            loss = model(*case.inputs)
            if drops == "after":
                model.zero_grad()
            loss.backward()
            if update is not None:
                update.step()
            done += 1
    except InfeasibleError:
        pass
    except TightropeError as error:
        raise AssertionError(f"{net} ran out at {budget}") from error
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "optimizer"),
    [
        ("vit", "sgd"),
        pytest.param("llama", "adamw", marks=_LONG),
        pytest.param("unet", "adamw", marks=_LONG),
        pytest.param("mobilenetv2", "none", marks=_LONG),
        pytest.param("gpt2", "adamw", marks=_LONG),
        pytest.param("bert", "momentum", marks=_LONG),
        pytest.param("resnet18", "adamw", marks=_LONG),
        pytest.param("llama_lora", "adam", marks=_LONG),
    ],
)
def test_what_is_said_to_fit_trains_and_less_is_refused(net: str, optimizer: str) -> None:
    case = build(net, scale="test")
    asked = Asked(net, "1B", optimizer=optimizer)
    step = Step(asked, Built(case.model, case.inputs, {}))
    least, any_loop = step.floor.dropping, step.floor.budget
    said = describe(step)
    del case, step
    assert (said["smallest_dropping_bytes"], said["smallest_bytes"]) == (least, any_loop)
    assert least < any_loop
    assert steps_done(net, optimizer, least, drops="before") == 3
    assert steps_done(net, optimizer, any_loop, drops="after") == 3
    assert steps_done(net, optimizer, least - 1024 - CAPTURE_SLACK, drops="after") == 0


@pytest.mark.slow
def test_every_answer_about_a_limit_follows_from_the_same_numbers() -> None:
    case = build("unet", scale="test")
    built = Built(case.model, case.inputs, {})
    step = Step(Asked("unet"), built)
    once, least, any_loop = step.once(), step.floor.dropping, step.floor.budget
    for limit in (least - 1, least, once - 1, once, any_loop - 1, any_loop):
        step.asked = Asked("unet", str(limit))
        said = describe(step)
        assert said["fits"] == (limit >= once)
        assert said["fits_with_a_plan"] == (limit >= least)
        assert said["fits_in_any_loop"] == (limit >= any_loop)
        assert said["once_bytes"] <= limit if said["fits"] else said["more_time_percent"] != 0.0
