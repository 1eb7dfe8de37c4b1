"""The reuse relation, and the refusal of graphs without the waits that they need."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import (
    Case,
    closure,
    conflicts,
    dependences,
    draw_case,
    graph_of,
    may_follow,
    without_compiler,
)

from tightrope.core import TightropeError
from tightrope_planners.place.streams import (
    StreamGraph,
    StreamStorage,
    check_streams,
    fallback,
    reuse_relation,
)
from tightrope_planners.solvers import safety as native

__all__ = ["without_compiler"]


def check_relation(case: Case) -> None:
    relation, ended = reuse_relation(graph_of(case)), closure(case.streams, case.waits)
    table, rows = relation.matrix(), relation.storages.tolist()
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            assert table[i, j] == may_follow(case, ended, a, b), (a, b)
    assert relation.num_conflicts() == len(conflicts(case, case.waits))
    for u, v in ((u, v) for u in range(len(ended)) for v in range(len(ended))):
        assert relation.ended_before(u, v) == ended[u][v]


def test_the_relation_is_that_of_the_closure_on_a_thousand_graphs() -> None:
    for seed in range(1000):
        check_relation(draw_case(seed))


@pytest.mark.usefixtures("without_compiler")
def test_the_relation_without_a_compiler_is_that_of_the_closure() -> None:
    for seed in range(150):
        check_relation(draw_case(seed))


def test_the_relation_is_a_strict_partial_order() -> None:
    for seed in range(100):
        table = reuse_relation(graph_of(draw_case(seed))).matrix()
        assert not table.diagonal().any()
        twice = (table.astype(int) @ table.astype(int)) > 0
        assert not (twice & ~table).any()


def test_dropping_any_needed_wait_is_refused_and_names_it() -> None:
    refused = 0
    for seed in range(300):
        case = draw_case(seed, most_ops=14)
        for wait in case.waits:
            rest = [other for other in case.waits if other != wait]
            ended = closure(case.streams, rest)
            hazard = any(not ended[u][v] for s in case.storages for u, v in dependences(s))
            if hazard:
                refused += 1
                with pytest.raises(TightropeError, match=r"Add the wait \(\d+, \d+\)"):
                    check_streams(StreamGraph.of(case.streams, case.storages, rest))
            else:
                check_streams(StreamGraph.of(case.streams, case.storages, rest))
    assert refused > 200


def test_adding_the_waits_that_refusals_ask_for_ends_in_a_safe_graph() -> None:
    for seed in range(60):
        case, waits = draw_case(seed), list[tuple[int, int]]()
        while True:
            try:
                check_streams(StreamGraph.of(case.streams, case.storages, waits))
            except TightropeError as error:
                numbers = str(error).split("Add the wait (")[1].rstrip(").").split(", ")
                waits.append((int(numbers[0]), int(numbers[1])))
                assert waits[-1] in case.waits
            else:
                break


@pytest.mark.parametrize("seed", range(20))
def test_hazards_without_a_compiler_are_the_native_ones(seed: int) -> None:
    case = draw_case(seed, most_ops=20, most_storages=12)
    graph = StreamGraph.of(case.streams, case.storages)
    clock = native.clocks(graph.issue, graph.waits)
    uses = (graph.writers, graph.reads, graph.mutates)
    assert fallback.hazard(graph.issue, clock, *uses) == native.hazard(graph.issue, clock, *uses)


def test_a_storage_of_the_caller_may_be_changed_only_after_its_readers() -> None:
    parameter = StreamStorage(64, reads=(0,), mutates=(1,))
    with pytest.raises(TightropeError, match="of the caller"):
        check_streams(StreamGraph.of([0, 1], [parameter]))
    check_streams(StreamGraph.of([0, 1], [parameter], [(0, 1)]))


def test_a_reader_of_a_storage_does_not_take_its_address_in_the_same_op() -> None:
    graph = StreamGraph.of([0, 0], [StreamStorage(64, 0, reads=(1,)), StreamStorage(64, 1)])
    assert not reuse_relation(graph).precedes(0, 1)


def test_an_empty_graph_has_nothing_to_order() -> None:
    relation = reuse_relation(StreamGraph.of([], []))
    assert relation.num_conflicts() == 0
    assert relation.matrix().shape == (0, 0)


def test_plain_values_come_back() -> None:
    case = draw_case(5)
    graph = graph_of(case)
    assert list(graph.wait_pairs()) == case.waits
    assert [s.bytes for s in graph.storages()] == [s.bytes for s in case.storages]
    assert StreamGraph.of(case.streams, graph.storages(), case.waits).storages() == graph.storages()


@pytest.mark.parametrize(
    ("streams", "storages", "waits", "says"),
    [
        ([0, -1], [], [], "streams run from -1"),
        ([0, 5000], [], [], "streams run from 0 to 5000"),
        ([0], [StreamStorage(-1, 0)], [], "sizes run from -1"),
        ([0], [StreamStorage(2**62, 0)], [], "sizes run from"),
        ([0, 0], [StreamStorage(2**60 - 1, 0), StreamStorage(2**60 - 1, 1)], [], "more than 2"),
        ([0], [StreamStorage(1, 1)], [], "writers run from 1"),
        ([0, 0], [StreamStorage(1, 1, reads=(0,))], [], "used by op 0 and written by op 1"),
        ([0, 0], [StreamStorage(1, 0, mutates=(0,))], [], "used by op 0 and written by op 0"),
        ([0], [StreamStorage(1, 0, reads=(7,))], [], "ops of reads run from 7"),
        ([0, 1], [], [(1, 0)], "only for ops issued before"),
        ([0, 1], [], [(0, 0)], "only for ops issued before"),
        ([0, 1], [], [(0, 9)], "waits run from 0 to 9"),
        ([0, 1], [], [(0, 2**70)], "pairs of op or storage numbers"),
        ([0, 2**70], [], [], "integers"),
        ([0, 1], [], [(0, 1, 1)], "pairs of op or storage numbers"),
    ],
)
def test_malformed_graphs_are_refused(
    streams: list[int], storages: list[StreamStorage], waits: list[tuple[int, int]], says: str
) -> None:
    with pytest.raises(TightropeError, match=says):
        StreamGraph.of(streams, storages, waits)


def test_arrays_of_another_layout_are_refused() -> None:
    good = StreamGraph.of([0, 1], [StreamStorage(64, 0)])
    columns = {name: getattr(good, name) for name in ("waits", "writers", "reads", "mutates", "resident")}
    with pytest.raises(TightropeError, match="int64"):
        StreamGraph(streams=np.array([0, 1], dtype=np.int32), sizes=good.sizes, **columns)
    with pytest.raises(TightropeError, match="one of each per storage"):
        StreamGraph(streams=good.streams, sizes=np.array([1, 2]), **columns)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_more_waits_never_take_an_order_away(seed: int, step: int) -> None:
    case = draw_case(seed, most_ops=14)
    count = len(case.streams)
    more = [(u, min(count - 1, u + step)) for u in range(0, count - 1, step)]
    before = reuse_relation(graph_of(case)).matrix()
    after = reuse_relation(StreamGraph.of(case.streams, case.storages, [*case.waits, *more])).matrix()
    assert not (before & ~after).any()
