"""Calls that break an assumption of a capture: all are generated, and some are made here."""

import random

import pytest
import torch

from benchmarks.guards import CASES, noticed
from tightrope.capture import assumptions
from tightrope.capture._guards import overlapping
from tightrope.capture.assumptions import GUARDED


def test_every_assumption_has_a_case() -> None:
    assert GUARDED.keys() - {"device"} == CASES.keys()  # a plan is for one device: others are refused


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("shared memory", 0), ("shared memory", 2), ("shared memory", 10), ("storage offset", 0),
        ("computed inputs", 0), ("default dtype", 0),
    ],
)  # fmt: skip
def test_what_dynamo_does_not_guard_is_noticed(name: str, seed: int) -> None:
    assert noticed(name, seed)


@pytest.mark.parametrize("seed", range(8))
def test_no_overlap_of_two_tensors_is_missed(seed: int) -> None:
    draw, whole = random.Random(seed), torch.zeros(1000)
    places, apart = torch.arange(1000), 0
    for _ in range(500):
        views = []
        strides = [draw.choice([1, 1, 2, 4, 8, 16, 17]) for _ in range(3)]
        for _ in range(2):
            dims = draw.randint(1, 3)
            sizes = [draw.randint(1, 6) for _ in range(dims)]
            own = sorted(strides[:dims], reverse=True) if draw.random() < 0.7 else [16, 4, 1][-dims:]
            views.append((sizes, own, draw.randrange(200)))
        one, other = (set(places.as_strided(*view).flatten().tolist()) for view in views)
        found = overlapping([whole.as_strided(*view) for view in views])
        assert found == {0, 1} or one.isdisjoint(other), views
        apart += not found
    assert apart


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_broken_assumption_is_noticed(name: str) -> None:
    assert all(noticed(name, seed) for seed in range(20))


def test_without_keys_such_a_call_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions.Key, "of", lambda _key, _args: ())
    assert not noticed("kernels of attention", 0) or not noticed("storage offset", 0)
    torch._dynamo.reset()
