"""Schedules whose first runs stand in another order: the legal ones hold, the others name two ops."""

import random

import msgspec
import pytest

from tests.judge.families import FAMILIES
from tests.judge.test_judge_certificate import proof, proved_plans
from tests.oracles import parted
from tests.plan.bound_oracle import plain_graph
from tightrope.core import (
    Compute,
    Executable,
    Flag,
    Free,
    Graph,
    JudgeError,
    Op,
    Plan,
    Run,
    Schedule,
    Storage,
)
from tightrope.judge import walk_executable
from tightrope.lower import lower, lowered, problems
from tightrope.plan.assemble import assemble
from tightrope.plan.schedule import base_schedule
from tightrope_planners.judge.reorder import in_base_order


def in_order(graph: Graph, order: list[int]) -> Executable:
    """Only what says in which order ops run for the first time."""
    return Executable(graph.fingerprint, (), tuple(Run(op, graph.ops[op].target) for op in order))


def legal(graph: Graph, order: list[int]) -> bool:
    """Run the order over values: every op must read what it reads in base order, in every place."""
    flags = Flag.RANDOM | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.OPAQUE

    def seen(sequence: list[int]) -> tuple[list[object], object]:
        value: dict[int, object] = {s.id: ("caller", s.id) for s in graph.storages if s.external}
        read: list[object] = [None] * len(graph.ops)
        effects = 0
        for number in sequence:
            op = graph.ops[number]
            again = graph.op(op.variant).reads if op.variant >= 0 else ()
            known = [value.get(s) for s in (*op.reads, *(s for s in again if s not in op.creates))]
            read[number] = (known, effects if op.flags & flags else 0)
            effects += bool(op.flags & flags)
            for storage in (*op.creates, *op.mutates):
                value[storage] = (number, storage, value.get(storage) if storage in op.mutates else None)
        return read, sorted(value.items())

    kept = all(graph.part_of(op) == graph.part_of(place) for place, op in enumerate(order))
    kept = kept and all(order[end - 1] == end - 1 for end in graph.boundaries)
    return kept and seen(order) == seen(list(range(len(graph.ops))))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_order_is_allowed_exactly_when_it_keeps_every_value(family: str) -> None:
    draw, allowed, refused = random.Random(family), 0, 0
    for seed in range(6):
        graph = FAMILIES[family](seed)
        for _ in range(40):
            order = list(range(len(graph.ops)))
            for _ in range(draw.randint(1, 2)):
                place = draw.randrange(len(order) - 1)
                order[place : place + 2] = order[place + 1], order[place]
            try:
                in_base_order(graph, in_order(graph, order))
            except JudgeError:
                refused += 1
                assert not legal(graph, order)
            else:
                allowed += 1
                assert legal(graph, order)
    assert refused
    assert allowed


def free_plan(graph: Graph, order: list[int]) -> Plan:
    """Run every op once in another order, with exact frees."""
    last = {
        s: place for place, op in enumerate(order) for s in (*graph.ops[op].reads, *graph.ops[op].creates)
    }
    steps: list[Compute | Free] = []
    for place, op in enumerate(order):
        steps.append(Compute(op))
        gone = {*graph.ops[op].reads, *graph.ops[op].creates}
        steps += [Free(s) for s in sorted(gone) if last[s] == place and not graph.storages[s].resident_at_end]
    plan = assemble(graph, Schedule(tuple(steps)), budget=None, placed=False)
    proof = msgspec.structs.replace(plan.certificate, order="free", lower_bound=0, witness=-1)
    return msgspec.structs.replace(plan, certificate=proof)


def test_a_plan_in_another_order_is_judged_like_one_in_base_order() -> None:
    moved = 0
    for seed in range(30):
        graph, draw = plain_graph(seed, num_ops=12), random.Random(seed)
        order: list[int] = []
        while len(order) < 12:
            ready = [op.id for op in graph.ops if op.id not in order and set(op.reads) <= set(order)]
            order.append(draw.choice(ready))
        plan = free_plan(graph, order)
        assert lowered(graph, plan).verdict.ok
        if order != sorted(order):
            moved += 1
            given = msgspec.structs.replace(plan.certificate, order="given")
            assert problems(graph, msgspec.structs.replace(plan, certificate=given))
    assert moved > 10


def test_the_first_swap_that_changes_a_value_is_named() -> None:
    graph = Graph(
        (
            Op(0, "a", "make", (), (0,)),
            Op(1, "b", "change", (0,), (), (0,), flags=Flag.IN_PLACE),
            Op(2, "c", "read", (0,), (1,)),
            Op(3, "d", "draw", (), (2,), flags=Flag.RANDOM),
            Op(4, "e", "draw", (), (3,), flags=Flag.RANDOM),
        ),
        tuple(Storage(s, 64, resident_at_end=s > 0) for s in range(4)),
    )
    graph = parted(graph, 3)
    for order, said in (
        ((0, 2, 1, 3, 4, 5), "op 2 read and op 1 change swap"),
        ((0, 1, 2, 3, 5, 4), "op 4 draw and op 5 draw swap"),
        ((0, 1, 3, 2, 4, 5), "moves across the hand-over"),
        ((0, 1, 2, 3, 4), "op 5 draw never runs"),
        ((1, 0, 2, 3, 4, 5), "swap"),
    ):
        with pytest.raises(JudgeError, match=said):
            in_base_order(graph, in_order(graph, list(order)))
    unchanged = lower(graph, base_schedule(graph))
    assert in_base_order(graph, unchanged) == (graph, unchanged)
    assert walk_executable(graph, unchanged).ns == 0


def test_bounds_for_any_order_are_derived_for_any_order() -> None:
    proved = proved_plans(4)
    for graph, plan in proved[1:3]:
        free = proof(plan, order="free")
        assert any(line.startswith("certificate: ") for line in problems(graph, free))
    modest = proof(
        plan,
        order="free",
        cover=None,
        stages=None,
        ns_bound=graph.base_ns,
        lower_bound=0,
        witness=-1,
        proved=False,
    )
    assert problems(graph, modest) == []


def test_another_order_without_its_judge_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, plan = proved_plans(1)[0]
    monkeypatch.setattr("tightrope.judge.plan.installed", lambda _: {})
    (wrong,) = [line for line in problems(graph, proof(plan, order="free")) if "pip install" in line]
    assert "tightrope[planners]" in wrong
