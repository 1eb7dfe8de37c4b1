"""The most bytes alive at once, and addresses that are safe on streams."""

import numpy as np
import pytest
from stream_cases import (
    Case,
    conflicts,
    draw_case,
    graph_of,
    heaviest_clique,
    larger,
    overlaps,
    without_compiler,
)

from tightrope.core import TightropeError
from tightrope.place import place
from tightrope_planners.place.streams import (
    StreamGraph,
    StreamStorage,
    fallback,
    live_bound,
    place_streams,
    reuse_relation,
)
from tightrope_planners.solvers import safety as native
from tightrope_planners.solvers.safety import Births

__all__ = ["without_compiler"]


def check_placement(case: Case, offsets: tuple[int, ...], peak: int) -> None:
    together = conflicts(case, case.waits)
    assert not [(a, b) for a, b in together if overlaps(case, offsets, a, b)]
    for storage, offset in zip(case.storages, offsets, strict=True):
        assert (offset == -1) if storage.writer < 0 else (0 <= offset <= peak - storage.bytes)


def test_the_bound_is_the_heaviest_clique_on_five_hundred_graphs() -> None:
    for seed in range(500):
        case = draw_case(seed, most_storages=10)
        bound = live_bound(reuse_relation(graph_of(case)))
        assert bound.bytes == heaviest_clique(case, case.waits)
        assert sum(case.storages[number].bytes for number in bound.witness) == bound.bytes
        together = conflicts(case, case.waits)
        assert all((a, b) in together for a in bound.witness for b in bound.witness if a < b)


@pytest.mark.parametrize("seed", range(40))
def test_a_budget_stops_at_the_first_storage_too_many(seed: int) -> None:
    births = reuse_relation(graph_of(draw_case(seed, most_ops=20, most_storages=15))).births
    weights = [native.antichain(first(births, count))[0] for count in range(1, len(births.size) + 1)]
    for budget in range(0, max(weights, default=0) + 2, 3):
        stop = next((number for number, weight in enumerate(weights) if weight > budget), len(weights))
        for find in (native.antichain, fallback.antichain):
            if len(births.size):
                weight, reach, inside = find(births, budget=budget)
                assert reach == stop
                assert stop == len(weights) or (weight == births.size[inside].sum() == weights[stop])


def first(births: Births, count: int) -> Births:
    """Leave out the storages written last."""
    return Births(
        births.size[:count], births.stream[:count], births.position[:count], births.deaths[:count].copy()
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_native_and_python_bounds_agree_on_longer_graphs(seed: int) -> None:
    births = reuse_relation(graph_of(larger(seed))).births
    weight, _, inside = native.antichain(births)
    assert weight == fallback.antichain(births)[0] == births.size[inside].sum()
    before = births.deaths[:, births.stream] <= births.position[None, :]
    assert not before[np.ix_(inside, inside)].any()


def test_on_one_stream_the_bound_is_the_load_and_the_relation_that_of_lifetimes() -> None:
    case = larger(0, num_streams=1)
    buffers = [(s.bytes, s.writer, max((s.writer, *s.reads)) + 1) for s in case.storages]
    assert live_bound(reuse_relation(graph_of(case))).bytes == place(buffers).lower_bound


def test_placements_are_safe_on_small_graphs() -> None:
    for seed in range(300):
        case = draw_case(seed, most_storages=12)
        placement = place_streams(graph_of(case), seconds=0.001, seed=seed)
        check_placement(case, placement.offsets, placement.peak)
        assert placement.peak >= placement.lower_bound
        assert (placement.status == "optimal") == (placement.peak == placement.lower_bound)


@pytest.mark.parametrize("num_streams", [2, 3])
def test_placements_are_safe_where_conflicts_are_a_matrix(num_streams: int) -> None:
    case = larger(1, num_ops=120, num_streams=num_streams)
    kept = [storage._replace(resident=number % 3 == 0) for number, storage in enumerate(case.storages)]
    case = Case(case.streams, kept, case.waits)
    placement = place_streams(graph_of(case), seconds=0.02)
    check_placement(case, placement.offsets, placement.peak)
    assert placement.peak <= 1.1 * placement.lower_bound


@pytest.mark.usefixtures("without_compiler")
def test_placements_without_a_compiler_are_safe_and_have_the_same_bound() -> None:
    for seed in range(60):
        case = draw_case(seed)
        placement = place_streams(graph_of(case))
        check_placement(case, placement.offsets, placement.peak)
        assert placement.lower_bound == heaviest_clique(case, case.waits)
        if placement.offsets and max(placement.offsets) >= 0:
            assert "no C++ compiler" in placement.method


def test_a_placement_for_one_stream_is_not_one_for_two() -> None:
    storages = [StreamStorage(64, 0), StreamStorage(64, 1)]
    one, two = (place_streams(StreamGraph.of(streams, storages)) for streams in ([0, 0], [0, 1]))
    assert one.peak == 64
    assert two.peak == 128


def test_capacity_decides_the_status() -> None:
    case = larger(2)
    free = place_streams(graph_of(case))
    assert place_streams(graph_of(case), capacity=free.lower_bound - 1, seconds=0).status == "infeasible"
    assert place_streams(graph_of(case), capacity=2 * free.peak, seconds=0).status == "feasible"
    tight = place_streams(graph_of(case), capacity=free.lower_bound, seconds=0)
    assert tight.status == ("optimal" if tight.peak == tight.lower_bound else "time_limit")


def test_equal_seeds_give_equal_offsets_and_alignment_is_kept() -> None:
    graph = graph_of(larger(3))
    alignments = [64 << number % 4 for number in range(len(graph.sizes))]
    one, two = (place_streams(graph, seconds=0.02, seed=7, alignments=alignments) for _ in range(2))
    assert one.offsets == two.offsets
    assert all(offset % align == 0 for offset, align in zip(one.offsets, alignments, strict=True))


def test_nothing_to_place_has_peak_zero() -> None:
    placement = place_streams(StreamGraph.of([0], [StreamStorage(64, -1, reads=(0,))]))
    assert (placement.offsets, placement.peak, placement.status) == ((-1,), 0, "optimal")


@pytest.mark.parametrize(
    "options", [{"capacity": -1}, {"seconds": -1.0}, {"seed": -1}, {"alignments": [0]}, {"alignments": []}]
)
def test_malformed_arguments_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(TightropeError):
        place_streams(StreamGraph.of([0], [StreamStorage(64, 0)]), **options)  # type: ignore[arg-type]
