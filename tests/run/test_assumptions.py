"""Calls that break an assumption of a capture: all are generated, and some are made here."""

import pytest
import torch

from benchmarks.guards import CASES, noticed
from tightrope.capture import assumptions
from tightrope.capture.assumptions import GUARDED


def test_every_assumption_has_a_case() -> None:
    assert GUARDED.keys() - {"device"} == CASES.keys()  # a plan is for one device: others are refused


@pytest.mark.parametrize("name", ["shared memory", "storage offset", "computed inputs", "default dtype"])
def test_what_dynamo_does_not_guard_is_noticed(name: str) -> None:
    assert noticed(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_broken_assumption_is_noticed(name: str) -> None:
    assert all(noticed(name, seed) for seed in range(20))


def test_without_keys_such_a_call_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions.Key, "of", lambda _key, _args: ())
    assert not noticed("kernels of attention", 0) or not noticed("storage offset", 0)
    torch._dynamo.reset()
