"""`python -m benchmarks hostile` calls a difference from eager one, and an error what it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from benchmarks.hostile.case import CASES, Net, Play, batches, is_kept, mlp
from benchmarks.hostile.main import judged


def plain(play: Play) -> None:
    play.train(Net(lambda me, x: me.net(x), net=mlp()), batches(2))


def scaled(model: nn.Module, **_: Any) -> nn.Module:
    model.register_forward_hook(lambda _m, _a, out: out * 1.000001)
    return model


def failing(_: nn.Module, **__: Any) -> nn.Module:
    raise ZeroDivisionError("inside")


def refusing(_: nn.Module, **__: Any) -> nn.Module:
    raise tightrope.TightropeError("no")


@pytest.mark.parametrize(
    ("compile_", "kind"),
    [
        (lambda model, **_: model, "equal"),
        (scaled, "SILENTLY WRONG"),
        (failing, "RAW ERROR"),
        (refusing, "refused"),
    ],
)
def test_outcomes_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, compile_: Callable[..., nn.Module], kind: str
) -> None:
    monkeypatch.setitem(CASES, "plain", plain)
    monkeypatch.setattr(tightrope, "compile", compile_)
    assert judged("plain", "bytes")[0] == kind


@pytest.mark.slow
def test_a_planned_loop_is_equal_and_a_step_applies_where_the_loop_is_common() -> None:
    torch.set_num_threads(1)
    assert judged("branch_on_a_value", "bytes") == ("equal", "")
    assert judged("siamese", "step") == ("does not apply", "")


def test_half_of_the_cases_is_kept_unseen() -> None:
    assert 0.4 < sum(map(is_kept, CASES)) / len(CASES) < 0.6
