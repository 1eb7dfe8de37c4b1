"""The twin on addresses: never an overlap, and never below the load."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import TightropeError
from tightrope.place.overlap import first_overlap
from tightrope_fleet.jobs import AddressWay, choose_way, replay_allocations
from tightrope_fleet.jobs.allocator import WAYS


def trace(seed: int) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)
    starts = sorted(draw.randrange(60) for _ in range(40))
    return [(64 * draw.randint(1, 20), start, start + draw.randint(1, 40)) for start in starts]


@given(st.integers(0, 10**6), st.sampled_from(WAYS), st.floats(0, 3))
@settings(max_examples=80, deadline=None)
def test_live_tensors_never_overlap(seed: int, way: AddressWay, sigma: float) -> None:
    buffers = trace(seed)
    draw = random.Random(seed)
    ends = [start + (end - start) * math.exp(draw.gauss(0, sigma)) for _, start, end in buffers]
    found = replay_allocations(buffers, ends, way=way)
    rows = [(offset, size, a, b) for offset, (size, a, b) in zip(found.offsets, buffers, strict=True)]
    assert first_overlap(rows) is None
    assert found.peak >= found.load
    assert found.fragmentation >= 0


def test_the_chosen_way_is_no_worse_than_best_fit_on_the_same_step() -> None:
    for seed in range(10):
        buffers = trace(seed)
        ends = [float(end) for _, _, end in buffers]
        way = choose_way(buffers, ends)
        assert replay_allocations(buffers, ends, way=way).peak <= replay_allocations(buffers).peak


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(TightropeError, match="one per tensor"):
        replay_allocations([(64, 0, 1)], [])
    with pytest.raises(TightropeError, match="begin before it ends"):
        replay_allocations([(64, 1, 1)])
