"""The core of a placement that misses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import GAPS, load_bound, smallest_peak, tangle

from benchmarks.placement.generators import perfect
from tightrope.core import TightropeError
from tightrope.place import conflict, place


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 60))
def test_a_core_from_one_instant_is_irreducible_and_adds_up(seed, count, capacity):
    buffers = tangle(seed, count, span=12)
    found = conflict(buffers, capacity, seconds=0.02)
    if found is None:
        assert place(buffers, capacity=capacity, seconds=0.02).peak <= capacity
        return
    core = [buffers[j] for j in found.core]
    assert found.start == min(start for _, start, _ in core)
    assert found.end == max(end for _, _, end in core)
    if load_bound(buffers) > capacity:
        assert found.proved
        assert found.need == sum(size for size, _, _ in core) == load_bound(core) > capacity
        assert found.need - min(size for size, _, _ in core) <= capacity


@pytest.mark.parametrize("buffers", GAPS)
def test_a_core_above_the_load_is_found_among_bystanders_and_proved(buffers):
    bystanders = [(1, start, start + 2) for start in range(20, 60)]
    capacity = load_bound(buffers)
    found = conflict([*bystanders, *buffers], capacity, seconds=0.1)
    assert found is not None
    assert found.proved
    core = [(*bystanders, *buffers)[j] for j in found.core]
    assert set(core) <= set(buffers)
    assert smallest_peak(core) > capacity
    assert all(smallest_peak(core[:j] + core[j + 1 :]) <= capacity for j in range(len(core)))


def test_a_core_without_a_proof_does_not_claim_one():
    found = conflict(perfect(400, 3), 99_000, seconds=0.05)
    assert found is not None
    assert found.need > 99_000
    unknown = conflict(perfect(640, 7), 100_000, seconds=0.02)
    assert unknown is None or not unknown.proved


def test_what_fits_has_no_core_and_bad_input_is_refused():
    assert conflict([(8, 0, 1), (8, 1, 2)], 8) is None
    with pytest.raises(TightropeError):
        conflict([(8, 0, 1)], -1)
