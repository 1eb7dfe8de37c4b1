"""Certificates: sound ones are derived again, and corrupted ones are refused."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.plan.bound_oracle import plain_graph, training_graph
from tightrope.core import (
    Case,
    Choice,
    Cover,
    Fixing,
    Graph,
    JudgeError,
    Limits,
    Op,
    Plan,
    PlanFileError,
    Split,
    StageCase,
    Stages,
    Storage,
)
from tightrope.core.codec import dump_plan, load_plan
from tightrope.judge.cover import extra_time
from tightrope.lower import lowered, problems
from tightrope.plan import PLANNERS, Options, base_schedule, solve, whole_bytes
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import certify as certifying
from tightrope.plan.bound import cover
from tightrope.plan.bound.certify import certify
from tightrope.plan.bound.cover import time_bound

Corruption = Callable[[Plan, random.Random], Plan | None]


def proof(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, certificate=msgspec.structs.replace(plan.certificate, **changes))


def numbers(plan: Plan) -> Cover | Stages:
    found = plan.certificate.cover or plan.certificate.stages
    assert found is not None
    return found


def altered(plan: Plan, **changes: object) -> Plan:
    field = "cover" if plan.certificate.cover is not None else "stages"
    return proof(plan, **{field: msgspec.structs.replace(numbers(plan), **changes)})


def each_case(plan: Plan, change: Callable[[Case | StageCase], Case | StageCase]) -> Plan:
    return altered(plan, tree=tuple(map(partial(changed, change), numbers(plan).tree)))


def changed(change: Callable[[Any], Any], node: Any) -> Any:
    if isinstance(node, Fixing):
        return Fixing(change(node.case))
    return node if isinstance(node, Split | Choice) else change(node)


def empty(plan: Plan) -> Case | StageCase:
    return Case() if plan.certificate.cover is not None else StageCase()


def claims_more(plan: Plan, draw: random.Random) -> Plan:
    return proof(plan, ns_bound=plan.certificate.ns_bound + draw.randint(1, 10**6), proved=False)


def claims_optimality(plan: Plan, draw: random.Random) -> Plan | None:
    return proof(plan, proved=True) if plan.certificate.ns_bound != plan.forecast.ns else None


def has_no_numbers(plan: Plan, draw: random.Random) -> Plan:
    return proof(plan, cover=None, stages=None)


def has_no_weights(plan: Plan, draw: random.Random) -> Plan:
    return each_case(plan, lambda case: empty(plan))


def is_lighter(plan: Plan, draw: random.Random) -> Plan:
    return altered(plan, scale=numbers(plan).scale * draw.randint(2, 9))


def is_for_a_smaller_budget(plan: Plan, draw: random.Random) -> Plan:
    return altered(plan, budget=plan.budget - draw.randint(1, 50))


def lacks_a_case(plan: Plan, draw: random.Random) -> Plan:
    return altered(plan, tree=numbers(plan).tree[:-1])


def has_a_case_too_many(plan: Plan, draw: random.Random) -> Plan:
    return altered(plan, tree=(*numbers(plan).tree, empty(plan)))


def splits_on_nothing(plan: Plan, draw: random.Random) -> Plan:
    odd = Split(draw.randint(0, 5), draw.choice((-1, 10**6)))
    if plan.certificate.stages is not None:
        odd = Choice(draw.choice(("live", "run")), (draw.randint(0, 5),), 10**6)  # type: ignore[assignment]
    return altered(plan, tree=(odd, *numbers(plan).tree, empty(plan)))


def splits_twice(plan: Plan, draw: random.Random) -> Plan | None:
    splits = [node for node in numbers(plan).tree if isinstance(node, Split | Choice)]
    return altered(plan, tree=(splits[0], *numbers(plan).tree, empty(plan))) if splits else None


def names_a_row_that_is_not_there(plan: Plan, draw: random.Random) -> Plan:
    entry = ((10**6 + draw.randint(0, 9), 0, 1),)
    wrong = Case(entry) if plan.certificate.cover is not None else StageCase(entry)
    return each_case(plan, lambda case: wrong)


def moves_its_rows(plan: Plan, draw: random.Random) -> Plan:
    if plan.certificate.stages is not None:
        return altered(plan, ops=tuple(range(len(plan.certificate.stages.ops))))
    return each_case(
        plan,
        lambda case: Case(tuple((0, d, w) for _, d, w in case.weights), case.shares),  # type: ignore[union-attr]
    )


def charges_what_is_not_so(plan: Plan, draw: random.Random) -> Plan:
    what = draw.randint(0, 3)
    if plan.certificate.cover is not None:
        return each_case(plan, lambda case: Case((), ((what, 10**6, 1),)))
    wrong = (
        StageCase(used=((10**6, 0, 9),)),
        StageCase(fed=((10**6, 0, 0, 9),)),
        StageCase(kept=((0, 99, 9),)),
    )
    return each_case(plan, lambda case: wrong[what % 3])


CORRUPTIONS: tuple[Corruption, ...] = (
    claims_more,
    claims_optimality,
    has_no_numbers,
    has_no_weights,
    is_lighter,
    is_for_a_smaller_budget,
    lacks_a_case,
    has_a_case_too_many,
    splits_on_nothing,
    splits_twice,
    names_a_row_that_is_not_there,
    moves_its_rows,
    charges_what_is_not_so,
)


def proved_plans(number: int, stages: tuple[bool, ...] = (False,)) -> list[tuple[Graph, Plan]]:
    """Plans of ``number`` graphs that need recomputation, each with a bound that is worth something."""
    found = []
    for seed in range(number):
        graph = plain_graph(seed, num_ops=60) if seed % 2 else training_graph(seed, depth=16)
        peak = assemble(graph, base_schedule(graph), budget=None, placed=False).forecast.peak
        limits = Limits(bytes=(peak * (85 if seed % 2 else 70) // 100,))
        schedule = PLANNERS["greedy"](graph, None, limits, Options())
        plan = assemble(graph, schedule, budget=None, placed=False)
        for staged in stages:
            bound = time_bound(graph, budget=plan.budget, stages=staged, nodes=20)
            if bound.extra_ns:
                found.append((graph, certify(graph, plan, bound=bound)))
    return found


@pytest.fixture(scope="module")
def proved() -> list[tuple[Graph, Plan]]:
    found = proved_plans(11)
    assert len(found) > 5
    return found


def test_certificates_hold_and_survive_a_file(proved: list[tuple[Graph, Plan]]) -> None:
    for graph, plan in proved:
        assert lowered(graph, plan).verdict.ok
        assert lowered(graph, load_plan(dump_plan(plan))).verdict.ok
        assert graph.base_ns < plan.certificate.ns_bound <= plan.forecast.ns
        assert plan.certificate.cover is not None
        assert plan.certificate.ns_bound == graph.base_ns + extra_time(graph, plan.certificate.cover)


def test_corrupted_certificates_are_refused(proved: list[tuple[Graph, Plan]]) -> None:
    refused = 0
    for number, (graph, plan) in enumerate(proved):
        for corrupt in CORRUPTIONS:
            wrong = corrupt(plan, random.Random(number))
            if wrong is None:
                continue
            assert any(line.startswith("certificate: ") for line in problems(graph, wrong)), corrupt.__name__
            refused += 1
    assert refused >= 100


def test_the_base_time_needs_no_cover() -> None:
    graph = training_graph(0, depth=5)
    plan = certify(graph, assemble(graph, base_schedule(graph), budget=2**40, placed=False))
    assert plan.certificate.cover is None
    assert plan.certificate.proved
    assert lowered(graph, plan).verdict.ok
    with pytest.raises(JudgeError, match="every op once"):
        lowered(graph, proof(plan, ns_bound=graph.base_ns + 1))


def test_a_run_is_not_charged_twice() -> None:
    ops = (
        Op(0, "pair", "pair", (), (0, 1), ns=10),
        Op(1, "wide", "wide", (), (2,), ns=1),
        Op(2, "use", "use", (0, 1), (3,), ns=1),
    )
    graph = Graph(ops, (Storage(0, 64), Storage(1, 64), Storage(2, 128), Storage(3, 64)))
    assert extra_time(graph, Cover(191, 8, (Case(((1, 64, 40),), ((0, 2, 40), (1, 2, 40))),))) == 10
    with pytest.raises(JudgeError, match="charge more than a run"):
        extra_time(graph, Cover(191, 8, (Case(((1, 64, 40),), ((0, 2, 41), (1, 2, 40))),)))


PAIR_USED_APART = Graph(
    (
        Op(0, "pair", "pair", (), (0, 1), ns=10),
        Op(1, "wait", "wait", (), (2,), ns=1),
        Op(2, "use", "use", (1,), (3,), ns=1),
        Op(3, "wide", "wide", (), (4,), ns=1),
        Op(4, "use", "use", (0,), (5,), ns=1),
    ),
    (*(Storage(number, 64) for number in range(4)), Storage(4, 128), Storage(5, 64)),
)
"""Storage 1 is used for the last time before the wide op, storage 0 after it."""


def test_a_negative_share_does_not_let_another_gap_charge_more_than_a_run() -> None:
    sound = Cover(128, 64, (Case(((3, 0, 10),), ((0, 4, 640),)),))
    assert extra_time(PAIR_USED_APART, sound) == 10
    wrong = Cover(128, 1, (Case(((3, 0, 15),), ((0, 4, 1000), (1, 2, -990))),))
    with pytest.raises(JudgeError, match="negative share -990 for storage 1 until op 2"):
        extra_time(PAIR_USED_APART, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        Cover(128, 64, (Case(((3, 0, -10),), ((0, 4, 640),)),)),
        Cover(128, 64, (Case(((3, -64, 10),), ((0, 4, 640),)),)),
        Cover(128, -64, (Case(((3, 0, 10),), ((0, 4, 640),)),)),
        Cover(128, 0, (Case(((3, 0, 10),), ((0, 4, 640),)),)),
        Cover(128, 64, (Case((), ((0, 4, -1),)),)),
        Stages(128, 0, (3,), (StageCase(),)),
        Stages(128, 64, (3,), (StageCase(((0, 0, -1),)),)),
    ],
)
def test_numbers_that_weak_duality_does_not_allow_are_refused(wrong: Cover | Stages) -> None:
    graph = PAIR_USED_APART
    if isinstance(wrong, Cover):
        with pytest.raises(JudgeError, match=r"certificate: the cover has (a negative|the scale)"):
            extra_time(graph, wrong)
    plan = assemble(graph, base_schedule(graph), budget=None, placed=False)
    field = "cover" if isinstance(wrong, Cover) else "stages"
    with pytest.raises(PlanFileError, match=rf"certificate\.{field}\S* = -?\d+: must be between"):
        load_plan(dump_plan(proof(plan, **{field: wrong})))


def test_an_unplaced_plan_is_judged_on_its_live_bytes(proved: list[tuple[Graph, Plan]]) -> None:
    graph, plan = proved[0]
    assert not plan.placed
    assert plan.offsets == ()
    assert plan.forecast.arena == plan.forecast.peak
    less = msgspec.structs.replace(plan.forecast, arena=plan.forecast.arena - 1)
    assert any("arena" in line for line in problems(graph, msgspec.structs.replace(plan, forecast=less)))
    assert problems(graph, msgspec.structs.replace(plan, placed=True))


def test_stages_without_their_judge_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.judge.bound.installed", lambda _: {})
    graph = PAIR_USED_APART
    plan = assemble(graph, base_schedule(graph), budget=None, placed=False)
    claimed = proof(plan, stages=Stages(2**40, 1, (3,), (StageCase(),)))
    assert any("pip install 'tightrope[planners]'" in line for line in problems(graph, claimed))
    assert problems(graph, plan) == []


def test_without_further_bounds_a_plan_keeps_the_proof_of_the_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (certifying, cover):
        monkeypatch.setattr(module, "further", lambda _: None)
    graph = plain_graph(1, num_ops=60)
    budget = (whole_bytes(graph) - graph.persistent) * 85 // 100
    plan = solve(graph, budget=budget, planner="greedy", placed=False, bound=True)
    assert plan.certificate.stages is None
    assert plan.certificate.cover is not None
    assert graph.base_ns < plan.certificate.ns_bound <= plan.forecast.ns
    assert problems(graph, plan) == []
