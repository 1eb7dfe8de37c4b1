"""Certificates with stages: sound ones are derived again, and corrupted ones are refused."""

import random

import pytest

from tests.judge.test_judge_certificate import (
    CORRUPTIONS,
    PAIR_USED_APART,
    Corruption,
    altered,
    numbers,
    proof,
    proved_plans,
)
from tightrope.core import Fixing, Graph, InputPath, JudgeError, Plan, StageCase, Stages
from tightrope.core.codec import dump_plan, load_plan
from tightrope.lower import lowered, problems
from tightrope_planners.judge.stages import staged_time


def has_a_higher_target(plan: Plan, draw: random.Random) -> Plan | None:
    """Raise what is claimed and the target of the fixings alike: the weights no longer decide as much."""
    found = plan.certificate.stages
    if found is None or not any(isinstance(node, Fixing) for node in found.tree):
        return None
    more = draw.randint(1, 10**6)
    claimed = proof(plan, ns_bound=plan.certificate.ns_bound + more, proved=False)
    return altered(claimed, target=found.target + more)


def fixes_without_weights(plan: Plan, draw: random.Random) -> Plan | None:
    if plan.certificate.stages is None:
        return None
    return altered(plan, tree=(Fixing(StageCase()), *numbers(plan).tree[1:]))


def has_an_odd_path(plan: Plan, draw: random.Random) -> Plan | None:
    found = plan.certificate.stages
    if found is None or not found.paths:
        return None
    first = found.paths[0]
    odd = draw.choice(
        (
            InputPath(first.row, first.last, (*first.storages[::-1], first.storages[0])),
            InputPath(len(found.ops), len(found.ops), first.storages),
            InputPath(first.row, first.last, ()),
        )
    )
    return altered(plan, paths=(odd,) * len(found.paths))


STAGED_CORRUPTIONS: tuple[Corruption, ...] = (
    *CORRUPTIONS,
    has_a_higher_target,
    fixes_without_weights,
    has_an_odd_path,
)


@pytest.fixture(scope="module")
def proved() -> list[tuple[Graph, Plan]]:
    found = proved_plans(11, (True,))
    assert sum(plan.certificate.stages is not None for _, plan in found) > 5
    return found


def test_certificates_with_stages_hold_and_survive_a_file(proved: list[tuple[Graph, Plan]]) -> None:
    for graph, plan in proved:
        assert lowered(graph, plan).verdict.ok
        assert lowered(graph, load_plan(dump_plan(plan))).verdict.ok
        assert graph.base_ns < plan.certificate.ns_bound <= plan.forecast.ns
        found = plan.certificate.stages
        assert found is None or plan.certificate.ns_bound == graph.base_ns + staged_time(graph, found)


def test_corrupted_stages_are_refused(proved: list[tuple[Graph, Plan]]) -> None:
    refused = 0
    for number, (graph, plan) in enumerate(proved):
        for corrupt in STAGED_CORRUPTIONS:
            wrong = corrupt(plan, random.Random(number))
            if wrong is None:
                continue
            assert any(line.startswith("certificate: ") for line in problems(graph, wrong)), corrupt.__name__
            refused += 1
    assert refused >= 100


@pytest.mark.parametrize(
    "wrong", [Stages(128, 0, (3,), (StageCase(),)), Stages(128, 64, (3,), (StageCase(((0, 0, -1),)),))]
)
def test_stages_that_weak_duality_does_not_allow_are_refused(wrong: Stages) -> None:
    with pytest.raises(JudgeError, match=r"certificate: the stages have (a negative|the scale)"):
        staged_time(PAIR_USED_APART, wrong)


def test_stages_are_no_proof_for_any_order(proved: list[tuple[Graph, Plan]]) -> None:
    graph, plan = next((graph, plan) for graph, plan in proved if plan.certificate.stages is not None)
    assert any("in any order" in line for line in problems(graph, proof(plan, order="free")))
