"""How often an op is run for its price."""

from importlib import import_module
from itertools import count

import pytest
import torch

from tightrope.native.hook.allocator import allocator
from tightrope.price.measure import measure


@pytest.mark.parametrize(
    ("ns", "timed"), [(1_000, 20), (2_000_000, 3), (15_000_000, 2), (60_000_000, 1), (400_000_000, 1)]
)
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


@pytest.mark.parametrize(("ns", "ran"), [(60_000_000, 2), (400_000_000, 1)])
def test_runs_that_are_recorded_are_enough_for_a_long_op(
    ns: int, ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = count(0, ns)
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

    measured = measure(run, hook)
    assert measured.ns == ns
    assert measured.allocations == ((4, 0, 0, -1),)
    assert len(runs) == ran
