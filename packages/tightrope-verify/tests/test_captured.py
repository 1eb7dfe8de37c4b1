"""The code that a plan was made from: written down, and compared."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import msgspec
import pytest
import torch

import tightrope
from tightrope.core import Plan
from tightrope_verify import FindingKind, check_provenance_of, provenance_of

TEXT = "def forward(x):\n    return x * 2\n"
Functions = Callable[[str], FunctionType]


@pytest.fixture
def of_text(tmp_path: Path) -> Functions:
    """Write a module, and load its function."""

    def load(text: str) -> FunctionType:
        file = tmp_path / "own_net.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("own_net", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        exec(compile(text, str(file), "exec"), module.__dict__)
        found = module.forward
        assert isinstance(found, FunctionType)
        return found

    return load


@pytest.fixture(scope="module")
def bare() -> Plan:
    return tightrope.plan(tightrope.capture(torch.nn.Linear(2, 2), torch.ones(1, 2)), budget="100%")


def planned(bare: Plan, function: FunctionType) -> Plan:
    return msgspec.structs.replace(bare, provenance=provenance_of([function.__code__]))


def test_the_code_of_a_plan_is_known_again(bare: Plan, of_text: Functions) -> None:
    plan, again = planned(bare, of_text(TEXT)), of_text(TEXT)
    found = check_provenance_of(plan, captured=provenance_of([again.__code__]))
    assert found.problems == ()
    assert found.num_files == 1
    assert check_provenance_of(plan).holds


def test_a_comment_is_harmless_only_where_the_function_was_captured(bare: Plan, of_text: Functions) -> None:
    plan, again = planned(bare, of_text(TEXT)), of_text(f"{TEXT}# a comment\n")
    (found,) = check_provenance_of(plan).problems
    assert found.kind is FindingKind.CODE
    assert found.path.endswith("own_net.py")
    assert found.expected != found.found
    assert check_provenance_of(plan, captured=provenance_of([again.__code__])).holds


def test_another_function_is_named(bare: Plan, of_text: Functions) -> None:
    plan, other = planned(bare, of_text(TEXT)), of_text(TEXT.replace("2", "3"))
    found = check_provenance_of(plan, captured=provenance_of([other.__code__]))
    assert any("forward is not the function of the plan" in one.why for one in found.problems)


def test_a_file_that_is_gone_is_named(bare: Plan, of_text: Functions, tmp_path: Path) -> None:
    plan = planned(bare, of_text(TEXT))
    (tmp_path / "own_net.py").unlink()
    assert [one.kind for one in check_provenance_of(plan).problems] == [FindingKind.MISSING]


def test_a_plan_without_provenance_is_not_believed(bare: Plan) -> None:
    assert [one.kind for one in check_provenance_of(bare).problems] == [FindingKind.CODE]


def test_a_provenance_with_a_wrong_digest_is_refused(bare: Plan, of_text: Functions, tmp_path: Path) -> None:
    plan, file = planned(bare, of_text(TEXT)), tmp_path / "plan.json"
    plan.save(file)
    assert Plan.load(file) == plan
    raw = json.loads(file.read_text())
    raw["provenance"]["files"][0][3] = "no digest"
    file.write_text(json.dumps(raw))
    with pytest.raises(tightrope.PlanFileError, match=r"provenance.files\[0\].sha256"):
        Plan.load(file)
