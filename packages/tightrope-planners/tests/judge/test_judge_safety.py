"""The judge of streams is fed right and wrong waits and addresses."""

import random

import pytest
from stream_cases import (
    Case,
    closure,
    conflicts,
    dependences,
    draw_case,
    graph_of,
    larger,
    overlaps,
)

from tightrope.core import JudgeError
from tightrope_planners.judge.safety import Tenant, ancestors, check_sharing, check_uses
from tightrope_planners.place.streams import (
    bounded_lag,
    live_bound,
    needed_waits,
    place_streams,
    reuse_relation,
)

Pair = tuple[int, int]


def tenants(case: Case) -> list[Tenant]:
    return [Tenant(*storage) for storage in case.storages]


def hazards(case: Case, waits: list[Pair]) -> bool:
    ended = closure(case.streams, waits)
    return any(not ended[u][v] for storage in case.storages for u, v in dependences(storage))


def test_ancestors_are_the_closure() -> None:
    for seed in range(200):
        case = draw_case(seed)
        ended, wanted = ancestors(case.streams, case.waits), closure(case.streams, case.waits)
        assert [[bool(e >> u & 1) for e in ended] for u in range(len(ended))] == wanted


def test_uses_are_refused_exactly_when_something_does_not_order_them() -> None:
    refused = 0
    for seed in range(400):
        case = draw_case(seed)
        waits = [wait for wait in case.waits if random.Random(seed).random() < 0.8]
        if hazards(case, waits):
            refused += 1
            with pytest.raises(JudgeError, match="nothing orders them"):
                check_uses(case.streams, waits, tenants(case))
        else:
            check_uses(case.streams, waits, tenants(case))
    assert refused > 30


@pytest.mark.slow
def test_a_thousand_dropped_waits_are_a_thousand_refusals() -> None:
    """Every wait that data or a shared address needs, by the closure of Floyd and Warshall."""
    dropped, seed = 0, 0
    while dropped < 1000:
        case = draw_case(seed, most_ops=12, most_storages=10)
        case = Case(case.streams, case.storages, list(needed_waits(graph_of(case))))
        low = live_bound(reuse_relation(graph_of(Case([0] * len(case.streams), case.storages, [])))).bytes
        lag = bounded_lag(graph_of(case), low)
        waits, placement = list(lag.graph.wait_pairs()), place_streams(lag.graph, seconds=0.001)
        judged = (tenants(case), placement.offsets)
        check_sharing(case.streams, waits, *judged, arena=placement.peak)
        for wait in waits:
            rest = [other for other in waits if other != wait]
            shared = [pair for pair in conflicts(case, rest) if overlaps(case, placement.offsets, *pair)]
            if hazards(case, rest) or shared:
                with pytest.raises(JudgeError, match="nothing orders"):
                    check_sharing(case.streams, rest, *judged, arena=placement.peak)
                dropped += 1
            else:
                check_sharing(case.streams, rest, *judged, arena=placement.peak)
        seed += 1


def test_a_thousand_moved_storages_are_judged_right() -> None:
    refused = moved = 0
    for seed in range(200):
        case, draw = draw_case(seed), random.Random(seed)
        offsets = list(place_streams(graph_of(case), seconds=0.001).offsets)
        together = conflicts(case, case.waits)
        for number in [n for n, storage in enumerate(case.storages) if storage.writer >= 0]:
            wrong = list(offsets)
            wrong[number] = draw.randrange(12)
            moved += 1
            if any(overlaps(case, wrong, *pair) for pair in together):
                refused += 1
                with pytest.raises(JudgeError, match="share addresses"):
                    check_sharing(case.streams, case.waits, tenants(case), wrong, arena=100)
            else:
                check_sharing(case.streams, case.waits, tenants(case), wrong, arena=100)
    assert moved > 500
    assert refused > 100


def test_an_arena_or_alignment_that_is_not_kept_is_refused() -> None:
    case = larger(0, num_ops=40)
    found = place_streams(graph_of(case), seconds=0.001)
    judged = (case.streams, case.waits, tenants(case))
    check_sharing(*judged, found.offsets, arena=found.peak, alignment=64)
    for offsets, arena, alignment in (
        (found.offsets, found.peak - 1, 64),
        (found.offsets, found.peak, 2**20),
        ((-1, *found.offsets[1:]), found.peak, 64),
        (found.offsets[1:], found.peak, 64),
    ):
        with pytest.raises(JudgeError, match="offsets"):
            check_sharing(*judged, offsets, arena=arena, alignment=alignment)


def test_a_storage_of_the_caller_has_no_address() -> None:
    with pytest.raises(JudgeError, match="must not lie at 0"):
        check_sharing([0], [], [Tenant(64)], [0], arena=64)
    check_sharing([0], [], [Tenant(64)], [-1], arena=64)


@pytest.mark.parametrize(
    ("streams", "waits", "storages"),
    [
        ([0, 1], [(1, 0)], []),
        ([0, 1], [(0, 2)], []),
        ([0] * 20_001, [], []),
        ([0, 0], [], [Tenant(64, 1, reads=(0,))]),
        ([0, 0], [], [Tenant(64, 2)]),
        ([0, 0], [], [Tenant(64, 0, reads=(2,))]),
        ([0, 0], [], [Tenant(64, -2)]),
        ([0, 0], [], [Tenant(-64, 0)]),
    ],
)
def test_malformed_graphs_are_refused(streams: list[int], waits: list[Pair], storages: list[Tenant]) -> None:
    with pytest.raises(JudgeError, match="streams"):
        check_uses(streams, waits, storages)
