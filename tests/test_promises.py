"""The table of promises names tests that exist and are fast, and every sabotage is a line of the package."""

import ast
from pathlib import Path

import pytest

import tightrope
from tests.promises import ROOT, named
from tests.sabotage import SABOTAGES, Sabotage, smoke_tests


def slow(tree: ast.Module, test: str) -> bool:
    """Tell whether a file has a test that a mark, its own or that of the file, calls slow."""
    (found,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == test)
    own = any(ast.unparse(one) == "pytest.mark.slow" for one in found.decorator_list)
    whole = (one.value for one in tree.body if isinstance(one, ast.Assign))
    return own or any("pytest.mark.slow" in ast.unparse(value) for value in whole)


@pytest.mark.parametrize("name", named())
def test_a_promise_has_a_fast_test(name: str) -> None:
    file, _, test = name.partition("::")
    assert not slow(ast.parse((ROOT / file).read_text()), test.partition("[")[0])


def test_a_slow_test_is_told() -> None:
    text = "import pytest\n@pytest.mark.slow\ndef test_one(): ...\ndef test_two(): ...\n"
    assert slow(ast.parse(text), "test_one")
    assert not slow(ast.parse(text), "test_two")


def test_no_promise_is_there_twice() -> None:
    assert len(named()) == len(set(named())) > 40


@pytest.mark.parametrize("one", SABOTAGES, ids=lambda one: one.promise)
def test_a_sabotage_changes_one_line_and_has_a_test(one: Sabotage) -> None:
    assert (Path(tightrope.__file__).parent / one.file).read_text().count(one.line) == 1
    assert len(smoke_tests({one.test})) == 1


def test_ten_promises_are_broken() -> None:
    assert len({one.promise for one in SABOTAGES}) == len({one.file for one in SABOTAGES}) == 10
