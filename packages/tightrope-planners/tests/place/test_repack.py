"""Placement after an edit."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.place.placements import check, tangle, training_step
from tightrope.place import place
from tightrope_planners.place import repack


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
