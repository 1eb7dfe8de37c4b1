"""Private names of torch: all there, and one probe each."""

import ast
from pathlib import Path

import pytest
import torch

from tightrope.capture import _probes, _torch

ROOT = Path(_torch.__file__).parents[1]


@pytest.mark.parametrize("name", sorted(_probes.PROBES))
def test_the_installed_torch_has(name: str) -> None:
    assert _probes.probe()[name], f"torch {torch.__version__} lacks {_probes.PROBES[name]}"


def test_a_name_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_probes.PROBES, "gone", "torch._dynamo.config.no_such_option")
    monkeypatch.setitem(_probes.PROBES, "module gone", "torch._no_such_module.name")
    found = _probes.probe()
    assert (found["gone"], found["module gone"]) == (False, False)


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
    probed = set(_probes.PROBES.values())
    for name in imported:
        if name.startswith("torch._"):
            assert any(path.startswith(name) for path in probed), f"{name} has no probe"
