"""The code that a plan was made from: written down, and compared before the plan runs."""

import gc
import importlib.util
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace

import msgspec
import pytest
import torch

import tightrope
from tightrope import integrity
from tightrope.capture import capture_program
from tightrope.core import IntegrityError, Plan, TightropeError
from tightrope.integrity import FindingKind, Inspection, demand_code_of, provenance_of
from tightrope.integrity.provenance import compared
from tightrope.record import record_run

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


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other check is installed."""
    monkeypatch.setattr("tightrope.integrity.provenance.installed", lambda _: {})


@pytest.fixture(scope="module")
def bare() -> Plan:
    return tightrope.plan(tightrope.capture(torch.nn.Linear(2, 2), torch.ones(1, 2)), budget="100%")


def planned(bare: Plan, function: FunctionType) -> Plan:
    return msgspec.structs.replace(bare, provenance=provenance_of([function.__code__]))


def test_the_code_of_a_plan_is_known_again(bare: Plan, of_text: Functions) -> None:
    plan, again = planned(bare, of_text(TEXT)), of_text(TEXT)
    found = compared(plan, captured=provenance_of([again.__code__]))
    assert found.problems == ()
    assert found.num_files == 1
    assert compared(plan).holds


def test_a_comment_is_harmless_only_where_the_function_was_captured(bare: Plan, of_text: Functions) -> None:
    plan, again = planned(bare, of_text(TEXT)), of_text(f"{TEXT}# a comment\n")
    (found,) = compared(plan).problems
    assert found.kind is FindingKind.CODE
    assert found.path.endswith("own_net.py")
    assert found.expected != found.found
    assert compared(plan, captured=provenance_of([again.__code__])).holds


def test_another_function_is_named(bare: Plan, of_text: Functions) -> None:
    plan, other = planned(bare, of_text(TEXT)), of_text(TEXT.replace("2", "3"))
    found = compared(plan, captured=provenance_of([other.__code__]))
    assert any("forward is not the function of the plan" in one.why for one in found.problems)


def test_a_file_that_is_gone_is_named(bare: Plan, of_text: Functions, tmp_path: Path) -> None:
    plan = planned(bare, of_text(TEXT))
    (tmp_path / "own_net.py").unlink()
    assert [one.kind for one in compared(plan).problems] == [FindingKind.MISSING]


def test_a_plan_without_provenance_is_not_believed(bare: Plan) -> None:
    assert [one.kind for one in compared(bare).problems] == [FindingKind.CODE]


@pytest.mark.usefixtures("alone")
def test_a_plan_of_other_code_is_not_run(bare: Plan, of_text: Functions, tmp_path: Path) -> None:
    model, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)
    tightrope.compile(model, budget="64MiB", progress=False)
    model(batch).sum().backward()
    with record_run(model) as first:
        model(batch).sum().backward()
    plan = planned(first.plan, of_text(TEXT))
    with record_run(model, plan=plan, graph=first.graph):
        model(batch).sum().backward()
    (tmp_path / "own_net.py").write_text(TEXT.replace("2", "3"))
    with pytest.raises(IntegrityError, match=r"own_net\.py"), record_run(model, plan=plan, graph=first.graph):
        pass


class Entry:
    """An entry point."""

    dist = SimpleNamespace(name="others")

    def __init__(self, load: Callable[[], object]) -> None:
        self.load = load


def test_a_check_that_is_installed_decides(bare: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> object:
        return lambda plan, captured: Inspection(())

    def broken() -> object:
        raise ImportError("no such module")

    monkeypatch.setattr("tightrope.integrity.provenance.installed", lambda _: {"provenance": (Entry(said),)})
    demand_code_of(bare)
    monkeypatch.setattr(
        "tightrope.integrity.provenance.installed", lambda _: {"provenance": (Entry(broken),)}
    )
    with pytest.raises(
        TightropeError,
        match=r"code of others does not load \(no such module\): install others again",
    ):
        demand_code_of(bare)


def test_a_name_that_became_a_plug_in_says_what_to_install() -> None:
    with pytest.raises(AttributeError, match=r"pip install 'tightrope\[verify\]', and take it from"):
        _ = integrity.verify_loaded
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = integrity.nothing


def test_a_provenance_with_a_wrong_digest_is_refused(bare: Plan, of_text: Functions, tmp_path: Path) -> None:
    plan, file = planned(bare, of_text(TEXT)), tmp_path / "plan.json"
    plan.save(file)
    assert Plan.load(file) == plan
    raw = json.loads(file.read_text())
    raw["provenance"]["files"][0][3] = "no digest"
    file.write_text(json.dumps(raw))
    with pytest.raises(tightrope.PlanFileError, match=r"provenance.files\[0\].sha256"):
        Plan.load(file)


def test_a_model_that_was_captured_is_not_kept() -> None:
    model = torch.nn.Linear(4, 4)
    capture_program(model, (torch.ones(2, 4),))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
