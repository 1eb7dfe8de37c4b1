"""How often an op is run for its price."""

from importlib import import_module
from itertools import count

import pytest
import torch

from tightrope.native.hook.allocator import allocator
from tightrope.price.measure import measure


@pytest.mark.parametrize(("ns", "timed"), [(1_000, 20), (2_000_000, 3), (60_000_000, 2), (400_000_000, 1)])
def test_a_long_op_is_timed_in_fewer_runs(ns: int, timed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(0, ns)
    monkeypatch.setattr(
        import_module("tightrope.price.measure"),
        "clock_here",
        lambda: ("a clock of steps", lambda: next(times)),
    )
    runs: list[int] = []

    def run() -> torch.Tensor:
        runs.append(1)
        return torch.empty(1)

    assert measure(run, None).ns == ns
    assert len(runs) == 1 + timed


def test_the_run_that_is_recorded_is_the_last_of_a_long_op(monkeypatch: pytest.MonkeyPatch) -> None:
    times = count(0, 400_000_000)
    monkeypatch.setattr(
        import_module("tightrope.price.measure"),
        "clock_here",
        lambda: ("a clock of steps", lambda: next(times)),
    )
    hook = allocator()
    if hook is None:
        pytest.skip("needs the allocator")
    hook.attach_hidden()
    runs: list[int] = []

    def run() -> torch.Tensor:
        runs.append(1)
        return torch.empty(1)

    assert measure(run, hook).ns == 400_000_000
    assert len(runs) == 2
