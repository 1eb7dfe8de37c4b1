"""Cuts: where addresses miss although the live bytes fit, the planner is asked to leave room there."""

import pytest

import oracles
from tightrope.core import Allocation, Compute, Free, Graph, Limits, Op, Schedule, Storage
from tightrope.lower import charged_sizes, lower, outside_flags, timeline, walked
from tightrope.place import place
from tightrope.plan import Options, base_schedule
from tightrope.plan.anneal import anneal
from tightrope.plan.cut import cut

_GAP = ((9, 5, 6), (1, 0, 3), (12, 0, 1), (5, 1, 2), (4, 2, 6), (7, 1, 5), (4, 3, 4))


def steps(buffers: tuple[tuple[int, int, int], ...], *, quiet: int) -> tuple[Graph, Schedule]:
    """Turn lifetimes into ops that make one storage each and ops that read those that end.

    Before them stand ``quiet`` ops whose storage is not read.
    """
    storages = [Storage(i, 64) for i in range(quiet)]
    storages += [Storage(quiet + i, 64 * size) for i, (size, _, _) in enumerate(buffers)]
    ops: list[Op] = []
    rows: list[Compute | Free] = []

    def run(name: str, reads: tuple[int, ...] = (), creates: tuple[int, ...] = ()) -> None:
        rows.append(Compute(len(ops)))
        ops.append(Op(len(ops), name, "aten.relu", reads, creates, ns=10))

    for i in range(quiet):
        run("quiet", creates=(i,))
        rows.append(Free(i))
    for now in range(1 + max(end for _, _, end in buffers)):
        ending = tuple(quiet + i for i, (_, _, end) in enumerate(buffers) if end == now)
        if ending:
            run("read", ending)
            rows += [Free(storage) for storage in ending]
        for i, (_, start, _) in enumerate(buffers):
            if start == now:
                run("make", creates=(quiet + i,))
    return Graph(tuple(ops), tuple(storages)), Schedule(tuple(rows))


def intervals(graph: Graph, schedule: Schedule) -> list[tuple[int, int, int]]:
    made = lower(graph, schedule)
    rows = zip(charged_sizes(made), timeline(made).buffers, outside_flags(made), strict=True)
    return [(size, b.start, b.end) for size, b, outside in rows if not outside]


def test_only_ops_in_the_span_of_the_core_get_a_reserve_of_the_missing_bytes() -> None:
    graph, schedule = steps(_GAP, quiet=5)
    found = place(intervals(graph, schedule))
    assert found.status == "optimal"
    load = found.lower_bound
    assert found.peak > load, "this instance wastes bytes at its optimum"
    reserved = cut(graph, schedule, capacity=load)
    assert reserved is not None
    extra = [reserved.allocations(op)[-1] if op != graph.ops[op.id] else None for op in reserved.ops]
    assert not any(extra[:5])
    assert {a for a in extra if a is not None} == {Allocation(found.peak - load, -1, 0, 1)}


def test_what_fits_needs_no_cut() -> None:
    graph, schedule = steps(_GAP, quiet=2)
    assert cut(graph, schedule, capacity=place(intervals(graph, schedule)).peak) is None


def test_reserves_of_earlier_cuts_stay() -> None:
    graph, schedule = steps(_GAP, quiet=0)
    load = place(intervals(graph, schedule)).lower_bound
    first = cut(graph, schedule, capacity=load)
    second = cut(graph, schedule, capacity=load, reserved=first)
    assert second is not None
    assert max(len(op.allocations) for op in second.ops) == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_schedule_for_the_cut_graph_is_valid_and_leaves_the_reserve_free(seed: int) -> None:
    graph = oracles.random_graph(seed, num_ops=14)
    whole = place(intervals(graph, base_schedule(graph))).lower_bound
    capacity = whole - 64
    reserved = cut(graph, base_schedule(graph), capacity=capacity)
    assert reserved is not None
    schedule = anneal(reserved, None, Limits(bytes=(graph.persistent + capacity,)), Options(seed=seed))
    walked(graph, schedule)
    with_reserve = place(intervals(reserved, schedule)).lower_bound
    without = place(intervals(graph, schedule)).lower_bound
    assert without <= with_reserve
    if with_reserve <= capacity:
        held = [op.id for op in reserved.ops if op != graph.ops[op.id]]
        assert held, "somewhere bytes were missing"
        assert without <= capacity
