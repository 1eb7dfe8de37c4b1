"""Certificates: sound ones are derived again, and a hundred corrupted ones are refused."""

import random
from collections.abc import Callable

import msgspec
import pytest

from tests.plan.bound_oracle import training_graph
from tightrope.core import Case, Cover, Graph, JudgeError, Limits, Op, Plan, Split, Storage
from tightrope.core.codec import dump_plan, load_plan
from tightrope.judge import judge_plan, problems
from tightrope.judge.cover import extra_time
from tightrope.plan import PLANNERS, Options, base_schedule
from tightrope.plan.assemble import assemble
from tightrope.plan.bound.certify import certify
from tightrope.plan.foreign import random_layered

Corruption = Callable[[Plan, random.Random], Plan | None]


def proof(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, certificate=msgspec.structs.replace(plan.certificate, **changes))


def cover_of(plan: Plan) -> Cover:
    assert plan.certificate.cover is not None
    return plan.certificate.cover


def with_cover(plan: Plan, **changes: object) -> Plan:
    return proof(plan, cover=msgspec.structs.replace(cover_of(plan), **changes))


def unit(graph: Graph) -> int:
    return min(op.ns for op in graph.ops if op.ns)


def claims_more(plan: Plan, draw: random.Random) -> Plan:
    return proof(plan, ns_bound=plan.certificate.ns_bound + draw.randint(1, 10**6), proved=False)


def claims_optimality(plan: Plan, draw: random.Random) -> Plan | None:
    short = plan.certificate.ns_bound != plan.forecast.ns
    return proof(plan, proved=True) if short else proof(plan, ns_bound=plan.certificate.ns_bound - 1)


def has_no_numbers(plan: Plan, draw: random.Random) -> Plan:
    return proof(plan, cover=None)


def has_no_weights(plan: Plan, draw: random.Random) -> Plan:
    tree = tuple(node if isinstance(node, Split) else Case() for node in cover_of(plan).tree)
    return with_cover(plan, tree=tree)


def is_lighter(plan: Plan, draw: random.Random) -> Plan:
    return with_cover(plan, scale=cover_of(plan).scale * draw.randint(2, 9))


def is_for_a_smaller_budget(plan: Plan, draw: random.Random) -> Plan:
    return with_cover(plan, budget=plan.budget - draw.randint(1, 50))


def lacks_a_case(plan: Plan, draw: random.Random) -> Plan:
    return with_cover(plan, tree=cover_of(plan).tree[:-1])


def has_a_case_too_many(plan: Plan, draw: random.Random) -> Plan:
    return with_cover(plan, tree=(*cover_of(plan).tree, Case()))


def splits_on_nothing(plan: Plan, draw: random.Random) -> Plan:
    odd = Split(draw.randint(0, 5), draw.choice((-1, 10**6)))
    return with_cover(plan, tree=(odd, *cover_of(plan).tree, Case()))


def splits_twice(plan: Plan, draw: random.Random) -> Plan | None:
    splits = [node for node in cover_of(plan).tree if isinstance(node, Split)]
    if not splits:
        return None
    return with_cover(plan, tree=(splits[0], *cover_of(plan).tree, Case()))


def names_a_row_that_is_not_there(plan: Plan, draw: random.Random) -> Plan:
    wrong = Case(((10**6 + draw.randint(0, 9), 0, 1),))
    tree = tuple(wrong if isinstance(node, Case) else node for node in cover_of(plan).tree)
    return with_cover(plan, tree=tree)


def moves_its_rows(plan: Plan, draw: random.Random) -> Plan:
    tree = tuple(
        node if isinstance(node, Split) else Case(tuple((0, d, w) for _, d, w in node.weights), node.shares)
        for node in cover_of(plan).tree
    )
    return with_cover(plan, tree=tree)


def shares_what_needs_no_sharing(plan: Plan, draw: random.Random) -> Plan:
    wrong = Case((), ((draw.randint(0, 3), 10**6, 1),))
    return with_cover(plan, tree=tuple(wrong if isinstance(n, Case) else n for n in cover_of(plan).tree))


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
    shares_what_needs_no_sharing,
)


@pytest.fixture(scope="module")
def proved() -> list[tuple[Graph, Plan]]:
    """Plans that need recomputation, each with a cover that is worth something."""
    found = []
    for seed in range(11):
        graph = random_layered(60, seed=seed) if seed % 2 else training_graph(seed, depth=16)
        peak = assemble(graph, base_schedule(graph), budget=None, placed=False).forecast.peak
        limits = Limits(bytes=(peak * (85 if seed % 2 else 70) // 100,))
        schedule = PLANNERS["greedy"](graph, None, limits, Options())
        plan = certify(graph, assemble(graph, schedule, budget=None, placed=False))
        if plan.certificate.cover is not None:
            found.append((graph, plan))
    assert len(found) >= 10
    return found


def test_certificates_hold_and_survive_a_file(proved: list[tuple[Graph, Plan]]) -> None:
    for graph, plan in proved:
        assert judge_plan(graph, plan).ok
        assert judge_plan(graph, load_plan(dump_plan(plan))).ok
        assert graph.base_ns < plan.certificate.ns_bound <= plan.forecast.ns
        assert plan.certificate.ns_bound == graph.base_ns + extra_time(graph, cover_of(plan))


def test_corrupted_certificates_are_refused(proved: list[tuple[Graph, Plan]]) -> None:
    refused = 0
    for number, (graph, plan) in enumerate(proved):
        for corrupt in CORRUPTIONS:
            wrong = corrupt(plan, random.Random(number))
            if wrong is None or (corrupt is claims_optimality and not wrong.certificate.proved):
                continue
            assert any(line.startswith("certificate: ") for line in problems(graph, wrong)), corrupt.__name__
            refused += 1
    assert refused >= 100


def test_the_base_time_needs_no_cover() -> None:
    graph = training_graph(0, depth=5)
    plan = certify(graph, assemble(graph, base_schedule(graph), budget=2**40, placed=False))
    assert plan.certificate.cover is None
    assert plan.certificate.proved
    assert judge_plan(graph, plan).ok
    with pytest.raises(JudgeError, match="every op once"):
        judge_plan(graph, proof(plan, ns_bound=graph.base_ns + 1))


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


def test_an_unplaced_plan_is_judged_on_its_live_bytes(proved: list[tuple[Graph, Plan]]) -> None:
    graph, plan = proved[0]
    assert not plan.placed
    assert plan.offsets == ()
    assert plan.forecast.arena == plan.forecast.peak
    less = msgspec.structs.replace(plan.forecast, arena=plan.forecast.arena - 1)
    assert any("arena" in line for line in problems(graph, msgspec.structs.replace(plan, forecast=less)))
    assert problems(graph, msgspec.structs.replace(plan, placed=True))


def test_bounds_for_any_order_are_derived_for_any_order(proved: list[tuple[Graph, Plan]]) -> None:
    graph, plan = proved[1]
    free = proof(plan, order="free")
    assert any(line.startswith("certificate: ") for line in problems(graph, free))
    modest = proof(
        plan, order="free", cover=None, ns_bound=graph.base_ns, lower_bound=0, witness=-1, proved=False
    )
    assert problems(graph, modest) == []
