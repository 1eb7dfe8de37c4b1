"""Waits that bring parallel streams under a budget, and streams for captured steps."""

import random

import pytest
from stream_cases import (
    Case,
    closure,
    dependences,
    draw_case,
    fewest_waits,
    graph_of,
    heaviest_clique,
    larger,
)

from tests.oracles import random_graph
from tightrope.core import Graph, InfeasibleError, Op, Phase, Storage, TightropeError
from tightrope_planners.place.streams import (
    StreamGraph,
    StreamStorage,
    bounded_lag,
    check_streams,
    fit_streams,
    live_bound,
    needed_waits,
    place_streams,
    reuse_relation,
    side_streams,
    stream_graph,
)


def least(case: Case) -> int:
    """Bytes that one op after another needs."""
    return heaviest_clique(Case([0] * len(case.streams), case.storages, []), [])


def budgets(case: Case) -> range:
    return range(least(case), heaviest_clique(case, case.waits) + 1)


@pytest.mark.slow
def test_no_smaller_number_of_waits_is_enough_on_small_graphs() -> None:
    tried = several = 0
    for seed in range(450):
        case = draw_case(seed, most_ops=8, most_storages=9, most_uses=1)
        for budget in list(budgets(case))[:4:3]:
            lag = bounded_lag(graph_of(case), budget)
            assert lag.proved
            assert len(lag.added) == fewest_waits(case, budget, most=len(lag.added))
            assert heaviest_clique(case, [*case.waits, *lag.added]) == lag.bound.bytes <= budget
            tried += 1
            several += len(lag.added) > 1
    assert tried > 300
    assert several > 20


def test_without_effort_the_answer_fits_and_claims_no_proof_that_it_lacks() -> None:
    unproved = 0
    for seed in range(6):
        case = larger(seed, num_ops=60)
        low, high = bound_of(case, serial=True), bound_of(case)
        for budget in (low, (low + high) // 2):
            quick = bounded_lag(graph_of(case), budget, seconds=0)
            best = bounded_lag(graph_of(case), budget, seconds=0.5)
            assert quick.bound.bytes <= budget
            assert quick.num_needed <= best.num_needed <= len(best.added) <= len(quick.added)
            unproved += not quick.proved
    assert unproved > 0


def bound_of(case: Case, *, serial: bool = False) -> int:
    streams = [0] * len(case.streams) if serial else case.streams
    return live_bound(reuse_relation(StreamGraph.of(streams, case.storages, case.waits))).bytes


def test_a_budget_below_one_op_after_another_is_refused_with_that_bound() -> None:
    for seed in range(40):
        case = draw_case(seed)
        if least(case):
            with pytest.raises(InfeasibleError, match="can all be alive at once") as refusal:
                bounded_lag(graph_of(case), least(case) - 1)
            assert refusal.value.lower_bound == refusal.value.smallest_found == least(case)


def test_waits_ask_for_no_later_op_than_the_budget_needs() -> None:
    slack = 0
    for seed in range(30):
        case = larger(seed, num_ops=40, num_streams=2)
        budget = (bound_of(case) + bound_of(case, serial=True)) // 2
        lag = bounded_lag(graph_of(case), budget)
        for u, v in lag.added:
            earlier = [op for op in range(u) if case.streams[op] == case.streams[u]]
            if earlier:
                loose = [(earlier[-1], v) if pair == (u, v) else pair for pair in lag.added]
                graph = StreamGraph.of(case.streams, case.storages, [*case.waits, *loose])
                assert live_bound(reuse_relation(graph)).bytes > budget
                slack += u + 1 < v
    assert slack > 5


def test_waits_and_addresses_together_keep_the_budget() -> None:
    for seed in range(12):
        case = larger(seed, num_ops=50)
        budget = (bound_of(case) + bound_of(case, serial=True)) // 2
        lag, placement = fit_streams(graph_of(case), budget, seconds=0.05)
        assert placement.peak <= budget
        assert place_streams(lag.graph, capacity=budget, seconds=0.05).offsets == placement.offsets


def test_a_budget_that_addresses_miss_is_refused_with_what_was_found() -> None:
    # three storages of 2 and 3 bytes whose lifetimes need one byte more than their load
    tight = [(9, 5, 6), (1, 0, 3), (12, 0, 1), (5, 1, 2), (4, 2, 6), (7, 1, 5), (4, 3, 4)]
    storages = [StreamStorage(size, start, tuple(range(start + 1, end))) for size, start, end in tight]
    graph = StreamGraph.of([0] * 6, storages)
    load = live_bound(reuse_relation(graph)).bytes
    with pytest.raises(InfeasibleError, match="smallest arena found") as refusal:
        fit_streams(graph, load, seconds=0.05)
    assert refusal.value.smallest_found is not None
    assert refusal.value.smallest_found > load == refusal.value.lower_bound


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"capacity": -1}, "negative"), ({"capacity": 1, "seconds": -1.0}, r"seconds=-1\.0: give")],
)
def test_negative_arguments_are_refused(bad: dict[str, float], message: str) -> None:
    with pytest.raises(TightropeError, match=message):
        bounded_lag(StreamGraph.of([0], []), **bad)  # type: ignore[arg-type]


def test_needed_waits_are_enough_and_none_follows_from_the_others() -> None:
    dropped = 0
    for seed in range(300):
        case = draw_case(seed, most_ops=16)
        bare = StreamGraph.of(case.streams, case.storages)
        waits = needed_waits(bare)
        check_streams(bare.with_waits(waits))
        wanted = [pair for storage in case.storages for pair in dependences(storage)]
        for wait in waits:
            ended = closure(case.streams, [other for other in waits if other != wait])
            assert any(not ended[u][v] for u, v in wanted)
            with pytest.raises(TightropeError, match="Add the wait"):
                check_streams(bare.with_waits(other for other in waits if other != wait))
            dropped += 1
    assert dropped > 200


@pytest.mark.parametrize("seed", range(25))
def test_captured_graphs_keep_their_bytes_and_uses_on_streams(seed: int) -> None:
    graph = random_graph(seed, num_ops=12)
    streams = [random.Random(seed).randrange(3) for _ in graph.ops]
    found = stream_graph(graph, streams)
    check_streams(found)
    for storage, made in zip(graph.storages, found.storages(), strict=False):
        assert made.bytes == (0 if storage.outside else storage.size)
        assert made.resident == storage.resident_at_end
        readers = {op.id for op in graph.ops if storage.id in op.reads} - {made.writer}
        assert {*made.reads, *made.mutates} == readers
        assert set(made.mutates) == {op.id for op in graph.ops if storage.id in op.mutates} - {made.writer}
    temporaries = found.storages()[len(graph.storages) :]
    assert [made.writer for made in temporaries] == [
        op.id for op in graph.ops if any(a.storage < 0 for a in op.allocations)
    ]


def test_weight_gradients_and_updates_go_aside() -> None:
    kept = {"resident_at_end": True}
    storages = (
        Storage(0, 64, external=True),
        Storage(1, 64),
        Storage(2, 64),
        Storage(3, 64),
        Storage(4, 64, **kept),
    )
    ops = (
        Op(0, "forward", "t", (0,), (1,)),
        Op(1, "dx", "t", (1,), (2,), phase=Phase.BACKWARD),
        Op(2, "dw", "t", (1, 2), (3,), phase=Phase.BACKWARD),
        Op(3, "dw2", "t", (2,), (4,), phase=Phase.BACKWARD),
        Op(4, "update", "t", (0, 3), (), (0,), phase=Phase.OPTIMIZER),
    )
    graph = Graph(ops, storages)
    assert side_streams(graph) == (0, 0, 1, 1, 1)
    assert side_streams(graph, num_streams=1) == (0,) * 5
    assert side_streams(graph, num_streams=3, seed=1) == side_streams(graph, num_streams=3, seed=1)
    assert {*side_streams(graph, num_streams=3, seed=1)[2:]} <= {1, 2}
    assert stream_graph(graph, (0, 0, 1, 1, 1)).wait_pairs() == ((1, 2),)
    with pytest.raises(TightropeError, match="at least one"):
        side_streams(graph, num_streams=0)
    with pytest.raises(TightropeError, match="one per op"):
        stream_graph(graph, (0, 1))
