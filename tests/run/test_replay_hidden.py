"""Level 0 sees what kernels take behind torch's allocator, and holds it back."""

import sys

import pytest
import torch

from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import accounts
from tightrope.run.session.replay import replay

pytestmark = pytest.mark.skipif(
    compiler() is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux"
)
NUM = 100_000
HIDDEN = 16 * NUM


def step() -> None:
    x = torch.ones(NUM, requires_grad=True)
    (x * 2).topk(5).values.sum().backward()


def held() -> int:
    return accounts().charged()


def test_it_is_seen_before_the_first_replay_and_held_back() -> None:
    budget = held() + 8_000_000
    guard = replay(budget)
    for _ in range(4):
        with guard:
            step()
    assert guard.phase == "replay"
    assert guard.hidden == HIDDEN
    with guard:
        assert allocator().limit == budget - guard.external - HIDDEN
        step()
    assert guard.divergence is None
    guard.close()


def test_a_budget_for_everything_but_that_is_refused_and_the_named_one_works() -> None:
    budget = held() + 4 * 4 * NUM + HIDDEN // 2
    guard = replay(budget)
    with (
        pytest.raises(InfeasibleError, match=r"hidden in kernels +1\.53 MiB") as refused,
        guard,
    ):
        step()
    named = refused.value.smallest_found
    assert named is not None
    assert budget < named <= budget + HIDDEN // 2
    guard.close()
    guard = replay(named + 4096)
    for _ in range(4):
        with guard:
            step()
    assert guard.phase == "replay"
    assert guard.charged_peak + guard.hidden <= named + 4096
    guard.close()


def test_a_net_without_such_kernels_has_nothing_held_back() -> None:
    guard = replay(held() + 8_000_000)
    x = torch.ones(64, 64, requires_grad=True)
    for _ in range(4):
        with guard:
            (x @ x).tanh().sum().backward()
            x.grad = None
    assert guard.hidden == 0
    guard.close()
