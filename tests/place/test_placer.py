import random
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import GAPS, check, load_bound, smallest_peak, tangle, training_step

from benchmarks.placement.families import case
from benchmarks.placement.generators import perfect
from benchmarks.placement.tilings import SIDE, Cuts, cut
from tightrope.core import TightropeError
from tightrope.place import PlaceOptions, place

TECHNIQUES = [field.name for field in fields(PlaceOptions)]
SEARCHES = ["search", "niches"]


def only(*names: str, fusion: bool) -> PlaceOptions:
    """Switch everything off but these techniques and what every search needs."""
    kept = {*names, "restarts", "memory", "decomposition"} | ({"fusion"} if fusion else set())
    return PlaceOptions(**{name: name in kept for name in TECHNIQUES})


small = st.tuples(st.integers(1, 9), st.integers(0, 6), st.integers(1, 4)).map(
    lambda draw: (draw[0], draw[1], draw[1] + draw[2])
)


@pytest.fixture(scope="module")
def tangles() -> list[tuple[list[tuple[int, int, int]], int]]:
    """Instances with their optimum, among them some whose optimum exceeds the load."""
    drawn = [tangle(seed) for seed in range(20)]
    mirrored = [[(size, -end, -start) for size, start, end in buffers] for buffers in GAPS]
    return [(buffers, smallest_peak(buffers)) for buffers in (*drawn, *GAPS, *mirrored)]


def test_the_instances_with_gaps_have_them():
    assert all(smallest_peak(buffers) == load_bound(buffers) + 1 for buffers in GAPS)


@pytest.mark.parametrize("off", [None, *TECHNIQUES])
def test_each_technique_off_proves_the_same_optimum(tangles, off):
    options = PlaceOptions() if off is None else PlaceOptions(**{off: False})
    for buffers, optimum in tangles:
        placement = place(buffers, options=options)
        check(buffers, placement.offsets, peak=placement.peak)
        assert (placement.peak, placement.status) == (optimum, "optimal")


@pytest.mark.parametrize("alone", SEARCHES)
def test_each_search_alone_proves_the_same_optimum(tangles, alone):
    options = PlaceOptions(**{name: name == alone for name in TECHNIQUES})
    for buffers, optimum in tangles:
        placement = place(buffers, options=options, seconds=20)
        check(buffers, placement.offsets, peak=placement.peak)
        assert (placement.peak, placement.status) == (optimum, "optimal")


@settings(max_examples=100, deadline=None)
@given(st.lists(small, min_size=1, max_size=6))
def test_the_search_on_niches_agrees_with_brute_force(buffers):
    optimum = smallest_peak(buffers)
    for fusion in (False, True):
        options = only("niches", fusion=fusion)
        placement = place(buffers, options=options)
        check(buffers, placement.offsets, peak=placement.peak)
        assert (placement.peak, placement.status) == (optimum, "optimal")
        assert place(buffers, capacity=optimum - 1, options=options).status == "infeasible"


def test_fused_buffers_lie_where_the_judge_allows():
    """Every buffer is cut up, so that nearly all of them can be fused again, and the peak is known."""
    methods = set()
    for seed in range(6):
        draw = random.Random(seed)
        buffers = []
        for size, start, end in perfect(80, seed):
            part, now = draw.randrange(size + 1), draw.randrange(start, end)
            lives = [(start, now), (now, end)] if start < now else [(start, end)]
            buffers += [(share, *life) for life in lives for share in (part, size - part)]
        draw.shuffle(buffers)
        placement = place(buffers, options=only("niches", fusion=True), seconds=2)
        check(buffers, placement.offsets, peak=placement.peak)
        assert placement.peak == 100_000
        methods.add(placement.method)
    assert "search on fused buffers" in methods


@pytest.mark.parametrize("seed", range(1, 4))
def test_wheels_are_fused_around_bytes_to_spare(seed):
    """Every cut is a wheel of five, and eight pieces are missing."""
    draw = random.Random(seed)
    pieces = cut(draw, Cuts(201, pinwheels=1.0))
    buffers = [(high - low, start, end) for start, end, low, high in draw.sample(pieces, len(pieces) - 8)]
    placement = place(buffers, capacity=SIDE, options=only("niches", fusion=True))
    check(buffers, placement.offsets, peak=placement.peak)
    assert placement.peak == SIDE
    assert placement.method == "search on fused buffers"


@pytest.mark.parametrize("seed", [0, 12, 15])
def test_a_wheel_is_not_taken_for_its_old_middle(seed, monkeypatch):
    """On so coarse a grid many buffers fit by chance where the middle of a finished wheel did."""
    monkeypatch.setattr("benchmarks.placement.tilings.SIDE", 48)
    draw = random.Random(seed)
    pieces = cut(draw, Cuts(150, pinwheels=0.7))
    buffers = [(high - low, start, end) for start, end, low, high in draw.sample(pieces, len(pieces))]
    placement = place(buffers, seconds=0.05, options=only("niches", fusion=True))
    check(buffers, placement.offsets, peak=placement.peak)


@pytest.mark.parametrize(("family", "seed"), [("with holes", 2054), ("shortened", 2004), ("shortened", 2092)])
def test_shared_instants_say_where_bytes_are_to_spare(family, seed):
    """In sections, which are fewer than instants, buffers seem to meet that never did."""
    one = case(family, seed)
    placement = place(one.buffers, capacity=one.known, seconds=0.5)
    check(one.buffers, placement.offsets, peak=placement.peak)
    assert placement.peak == one.known


def each_event_alone(buffers: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Give every begin and end an instant of its own; the same buffers are alive together."""
    events = sorted(
        (time, begins, j) for j, life in enumerate(buffers) for begins, time in enumerate(life[:0:-1])
    )
    now = {(begins, j): at for at, (_, begins, j) in enumerate(events)}
    return [(size, now[1, j], now[0, j]) for j, (size, _, _) in enumerate(buffers)]


@pytest.mark.parametrize("seed", [4003, 4018, 4028])
def test_sections_say_who_follows_whom_where_no_instants_are_shared(seed):
    one = case("with holes", seed)
    placement = place(each_event_alone(one.buffers), capacity=one.known, seconds=0.5)
    check(one.buffers, placement.offsets, peak=placement.peak)
    assert placement.peak == one.known


def test_without_search_the_answer_is_valid_and_claims_no_proof_above_the_load(tangles):
    for buffers, optimum in tangles:
        placement = place(buffers, options=PlaceOptions(search=False, niches=False), seconds=0.01)
        check(buffers, placement.offsets, peak=placement.peak)
        assert placement.peak >= optimum
        assert (placement.status == "optimal") == (placement.peak == load_bound(buffers))


def test_one_unit_below_the_optimum_is_proved_infeasible(tangles):
    for buffers, optimum in tangles:
        assert place(buffers, capacity=optimum - 1).status == "infeasible"
        reached = place(buffers, capacity=optimum)
        assert reached.peak == optimum
        assert reached.status in ("optimal", "feasible")


@settings(max_examples=60, deadline=None)
@given(st.lists(small, min_size=1, max_size=5), st.data())
def test_alignment_and_fixed_offsets_reach_the_brute_force_optimum(buffers, data):
    align = data.draw(st.lists(st.sampled_from((1, 2, 4)), min_size=len(buffers), max_size=len(buffers)))
    fixed = {0: align[0] * data.draw(st.integers(0, 5))}
    placement = place(buffers, alignments=align, fixed=fixed)
    check(buffers, placement.offsets, peak=placement.peak, alignments=align, fixed=fixed)
    assert placement.status == "optimal"
    assert placement.peak == smallest_peak(buffers, alignments=align, fixed=fixed)


@settings(max_examples=100, deadline=None)
@given(st.lists(small, max_size=40), st.integers(0, 200))
def test_any_instance_gets_valid_addresses_and_a_witness(buffers, capacity):
    placement = place(buffers, capacity=capacity, seconds=0.05)
    check(buffers, placement.offsets, peak=placement.peak)
    assert placement.lower_bound == load_bound(buffers)
    alive = [buffers[index] for index in placement.witness]
    assert sum(size for size, _, _ in alive) == placement.lower_bound
    assert not alive or max(start for _, start, _ in alive) < min(end for _, _, end in alive)
    assert (placement.status == "infeasible") <= (placement.peak > capacity)
    assert (placement.status in ("feasible", "optimal")) == (placement.peak <= capacity)


@pytest.mark.parametrize("seed", range(4))
def test_perfect_instances_of_160_buffers_are_packed_without_waste(seed):
    buffers = perfect(160, seed)
    placement = place(buffers, seconds=2)
    check(buffers, placement.offsets, peak=placement.peak)
    assert (placement.peak, placement.status) == (100_000, "optimal")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("num_layers", [2, 12, 40])
def test_training_steps_need_exactly_their_load(num_layers, recompute):
    buffers = training_step(num_layers, recompute=recompute)
    placement = place(buffers)
    check(buffers, placement.offsets, peak=placement.peak)
    assert placement.peak == placement.lower_bound == load_bound(buffers)


def test_equal_seeds_give_equal_answers():
    buffers = tangle(3, 60, span=20, largest=1000)
    first, second = (place(buffers, seconds=0.05, seed=9) for _ in range(2))
    assert (first.offsets, first.num_nodes) == (second.offsets, second.num_nodes)


def test_the_order_of_the_buffers_does_not_matter():
    draw = random.Random(0)
    for buffers in (tangle(3, 60, span=20, largest=1000), perfect(80, 2), training_step(12, recompute=True)):
        first = place(buffers, seconds=0.05)
        order = draw.sample(range(len(buffers)), len(buffers))
        again = place([buffers[j] for j in order], seconds=0.05)
        assert again.num_nodes == first.num_nodes
        addresses = sorted((*buffers[j], offset) for j, offset in zip(order, again.offsets, strict=True))
        assert addresses == sorted((*life, at) for life, at in zip(buffers, first.offsets, strict=True))


def test_huge_sizes_do_not_overflow():
    buffers = [(2**57 - 1, 0, 2), (2**57 - 3, 1, 3), (2**56, 2, 4)]
    placement = place(buffers)
    check(buffers, placement.offsets, peak=placement.peak)
    assert placement.peak == 2**58 - 4


@pytest.mark.parametrize("capacity", [100_000, 102_000])
@pytest.mark.parametrize("seed", range(4))
def test_a_capacity_that_is_missed_costs_nothing(capacity, seed):
    buffers = perfect(320, seed)
    for seconds in (0.003, 0.02, 0.05):
        least = place(buffers, seconds=seconds, seed=seed).peak
        assert place(buffers, capacity=capacity, seconds=seconds, seed=seed).peak <= max(least, capacity)


def test_unknown_is_never_called_infeasible():
    buffers = perfect(640, 7)
    placement = place(buffers, capacity=100_000, seconds=0.005)
    check(buffers, placement.offsets, peak=placement.peak)
    assert placement.status == ("time_limit" if placement.peak > 100_000 else "optimal")


def test_the_values_are_frozen():
    placement = place([(64, 0, 1)])
    with pytest.raises(FrozenInstanceError):
        placement.peak = 1


def test_empty_and_zero_sized():
    nothing = place([])
    assert (nothing.offsets, nothing.peak, nothing.status, nothing.witness) == ((), 0, "optimal", ())
    placement = place([(0, 0, 5), (64, 1, 2), (0, 1, 2)], fixed={2: 64})
    assert (placement.peak, placement.offsets[2], placement.witness) == (64, 64, (1,))


@pytest.mark.parametrize(
    ("buffers", "options", "message"),
    [
        ([(64, 3, 3)], {}, "empty lifetime"),
        ([(-64, 0, 3)], {}, "negative size"),
        ([(64, 0, 2**63)], {}, "62 bits"),
        ([(64, 0)], {}, "one alignment each"),
        ([(2**59, 0, 1)] * 3, {}, "at most 2\\^60"),
        ([(64, 0, 1)], {"alignments": [0]}, "alignment outside"),
        ([(64, 0, 1)], {"alignments": [1, 2]}, "one alignment each"),
        ([(64, 0, 1)], {"fixed": {1: 0}}, "out of range"),
        ([(64, 0, 1)], {"alignments": [8], "fixed": {0: 4}}, "breaks its alignment"),
        ([(64, 0, 2), (64, 1, 3)], {"fixed": {0: 0, 1: 32}}, "overlap in time and in address"),
        ([(64, 0, 1)], {"capacity": -1}, "must not be negative"),
        ([(64, 0, 1)], {"capacity": "64"}, "capacity is '64'"),
        ([(64, 0, 1)], {"seconds": None}, "seconds=None: give"),
        ([(64, 0, 1)], {"seed": 0.5}, r"seed is 0\.5"),
        ([(64, 0, 1)], {"fixed": [0]}, r"mapping from buffers, not \[0\]"),
        ([(64, 0, 1)], {"options": 3}, "must be PlaceOptions, not 3"),
    ],
)
def test_malformed_input_is_refused_with_its_reason(buffers, options, message):
    with pytest.raises(TightropeError, match=message):
        place(buffers, **options)


@settings(max_examples=40, deadline=None)
@given(st.lists(small, min_size=1, max_size=12), st.data())
def test_fixed_buffers_stay_and_alignments_hold(buffers, data):
    align = data.draw(st.lists(st.sampled_from((1, 2, 4)), min_size=len(buffers), max_size=len(buffers)))
    fixed = {0: align[0] * 3}
    placement = place(buffers, alignments=align, fixed=fixed)
    check(buffers, placement.offsets, peak=placement.peak, alignments=align, fixed=fixed)
    assert placement.lower_bound == load_bound(buffers)


def test_numpy_tables_are_accepted():
    table = np.array([(64, 0, 2), (64, 1, 3)], dtype=np.int64)
    assert place(table).peak == 128
