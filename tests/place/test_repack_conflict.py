"""Placement after an edit, and the core of a placement that misses."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import GAPS, check, load_bound, smallest_peak, tangle, training_step

from benchmarks.placement.generators import perfect
from tightrope.core import TightropeError
from tightrope.place import conflict, place, repack


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_after_an_edit_the_placement_is_valid_and_no_single_buffer_could_have_stayed(seed, count):
    draw = random.Random(seed)
    old = tangle(seed, count, span=20)
    before = place(old, seconds=0.01)
    edited = list(old)
    for _ in range(2):
        at = draw.randrange(count)
        size, start, end = edited[at]
        edited[at] = (size + draw.randint(1, 5), start, end)
    previous = dict(enumerate(before.offsets))
    capacity = place(edited, seconds=0.01).peak + draw.randint(0, 3)
    found = repack(edited, previous, capacity=capacity, seconds=0.01)
    check(edited, found.placement.offsets, peak=found.placement.peak)
    assert found.placement.peak <= capacity
    assert found.moved == tuple(j for j in range(count) if found.placement.offsets[j] != before.offsets[j])


def test_without_an_edit_nothing_moves():
    buffers = training_step(12, recompute=True)
    before = place(buffers)
    found = repack(buffers, dict(enumerate(before.offsets)), capacity=before.peak)
    assert found.moved == ()


def test_a_small_edit_of_a_step_moves_few_buffers():
    buffers = training_step(20, recompute=True)
    before = place(buffers)
    edited = list(buffers)
    for at in (50, 200, 333):
        size, start, end = edited[at]
        edited[at] = (size + 640, start, end)
    capacity = place(edited).peak + 1280
    found = repack(edited, dict(enumerate(before.offsets)), capacity=capacity)
    check(edited, found.placement.offsets, peak=found.placement.peak)
    assert found.placement.peak <= capacity
    assert len(found.moved) <= 10


def test_a_capacity_below_the_load_is_said_and_everything_may_move():
    found = repack([(8, 0, 2), (8, 0, 2)], {0: 8, 1: 0}, capacity=15)
    assert found.placement.status == "infeasible"


def test_old_offsets_that_make_no_sense_are_dropped():
    found = repack([(8, 0, 2), (8, 0, 2), (8, 0, 2)], {0: 0, 1: 4, 2: 3}, capacity=24, alignments=[1, 1, 8])
    check([(8, 0, 2)] * 3, found.placement.offsets, peak=24, alignments=[1, 1, 8])
    assert found.placement.offsets[0] == 0


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
