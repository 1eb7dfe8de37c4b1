"""A plan as a file and as text: save, load, diff, explain."""

from pathlib import Path

import msgspec
import pytest

from oracles import random_graph
from tightrope.core import FingerprintError, Plan, PlanFileError
from tightrope.plan import smallest, solve

GRAPH = random_graph(0, num_ops=9)
LEAST = smallest(GRAPH)
FULL = solve(GRAPH, budget=2**30)


def test_a_saved_plan_loads_to_an_equal_one(tmp_path: Path) -> None:
    for plan in (LEAST, FULL):
        plan.save(tmp_path / "step.plan.json")
        assert Plan.load(str(tmp_path / "step.plan.json")) == plan


@pytest.mark.parametrize("path", ["", ".", "absent/step.plan.json", "step\0.json"])
def test_a_path_that_cannot_be_used_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFileError):
        LEAST.save(f"{tmp_path}/{path}" if path else tmp_path)
    with pytest.raises(PlanFileError):
        Plan.load(f"{tmp_path}/{path}" if path else tmp_path)


def test_a_plan_agrees_with_itself() -> None:
    assert str(LEAST.diff(LEAST)) == "the plans agree"


def test_a_diff_names_figures_decisions_and_moved_addresses() -> None:
    moved = msgspec.structs.replace(LEAST, offsets=tuple(offset + 64 for offset in LEAST.offsets))
    assert LEAST.diff(moved).num_moved == len(LEAST.offsets)
    found = FULL.diff(LEAST)
    assert FULL.forecast.total > LEAST.forecast.total
    assert {name for name, _, _ in found.figures} >= {"budget", "total"}
    decided = {reason.storage: reason.decision for reason in LEAST.reasons}
    assert found.decisions
    assert all(decided[storage] == after for storage, _, after in found.decisions)
    assert f"budget: {FULL.figures()['budget']} -> {LEAST.figures()['budget']}" in str(found)


def test_a_missing_reason_is_an_absent_decision() -> None:
    fewer = msgspec.structs.replace(LEAST, reasons=LEAST.reasons[1:])
    (only,) = LEAST.diff(fewer).decisions
    assert only == (LEAST.reasons[0].storage, LEAST.reasons[0].decision, "absent")


def test_explain_lists_the_largest_first_and_no_more_than_asked() -> None:
    lines = [line for line in LEAST.explain(GRAPH, top=3).splitlines() if "  storage " in line]
    largest = sorted(LEAST.reasons, key=lambda reason: (-reason.bytes, reason.storage))[:3]
    assert [int(line.split("storage ")[1].split(":")[0].split()[0]) for line in lines] == [
        reason.storage for reason in largest
    ]
    assert all(line.endswith(reason.text) for line, reason in zip(lines, largest, strict=True))


def test_explain_refuses_another_graph() -> None:
    with pytest.raises(FingerprintError):
        LEAST.explain(random_graph(12))
