"""Adapters to torch: all names there, one check each, and private names in named files only."""

import ast
from pathlib import Path

import pytest
import torch

from tightrope.capture import _checks, _probes, _torch

ROOT = Path(_torch.__file__).parents[1]


@pytest.mark.parametrize("name", sorted(_probes.PROBES))
def test_an_adapter_works_on_the_installed_torch(name: str) -> None:
    assert not _checks.broken((name,)), torch.__version__


def test_every_adapter_has_a_check_and_serves_something() -> None:
    assert set(_checks.CHECKS) == set(_probes.PROBES)
    assert set(_probes.EVICTION) < set(_probes.CAPTURE)


def test_a_name_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_probes.PROBES, "gone", ("torch._dynamo.config.no_such_option",))
    monkeypatch.setitem(_probes.PROBES, "module gone", ("torch._no_such_module.name",))
    found = _probes.gone()
    assert list(found) == ["gone", "module gone"]
    assert "no_such_option" in _probes.said_of(found)
    assert "and 1 more" in _probes.said_of(found)


def _raised(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def test_an_error_is_blamed_on_an_adapter_where_torch_met_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_current_autograd_node", len)  # takes an argument
    assert "adapter '_torch' (TypeError" in _probes.blamed(_raised(lambda: _torch.num_that_run(None)))
    user = _raised(lambda: _torch.watch_storage(None))  # type: ignore[arg-type]
    assert "AttributeError" in _probes.blamed(user)
    assert not _probes.blamed(_raised(lambda: torch.ones(2).no_such))  # type: ignore[attr-defined]
    assert not _probes.blamed(_raised(lambda: torch.mm(1, 2)))  # type: ignore[call-overload]


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(Path(_torch.__file__).parent.glob("_[a-z]*.py"))


def test_private_modules_are_imported_in_named_files_only() -> None:
    for file in ROOT.rglob("*.py"):
        if file not in FILES and file.name != "_torch.py":  # of a line of the product
            private = {name for name in _imports(ast.parse(file.read_text())) if "._" in name}
            assert not {name for name in private if name.startswith("torch.")}, file


def test_what_is_imported_there_is_probed() -> None:
    imported = {name for file in FILES for name in _imports(ast.parse(file.read_text()))}
    probed = {path for names in _probes.PROBES.values() for path in names}
    for name in imported:
        if name.startswith("torch._"):
            assert any(path.startswith(name) for path in probed), f"{name} has no probe"
