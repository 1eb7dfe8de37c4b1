"""Private names of torch: all there, and one probe each."""

import ast
from pathlib import Path

import pytest
import torch

from tightrope.capture import _eager, _guards, _norms, _random, _sizes, _torch

ROOT = Path(_torch.__file__).parents[1]


@pytest.mark.parametrize("name", sorted(_torch.PROBES))
def test_the_installed_torch_has(name: str) -> None:
    assert _torch.probe()[name], f"torch {torch.__version__} lacks {_torch.PROBES[name]}"


def test_a_name_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_torch.PROBES, "gone", "torch._dynamo.config.no_such_option")
    monkeypatch.setitem(_torch.PROBES, "module gone", "torch._no_such_module.name")
    found = _torch.probe()
    assert (found["gone"], found["module gone"]) == (False, False)


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_private_modules_are_imported_in_seven_files_only() -> None:
    for file in ROOT.rglob("*.py"):
        if file.name not in (
            "_torch.py",
            "_eager.py",
            "_guards.py",
            "_norms.py",
            "_inductor.py",
            "_random.py",
            "_sizes.py",
        ):
            private = {name for name in _imports(ast.parse(file.read_text())) if "._" in name}
            assert not {name for name in private if name.startswith("torch.")}, file


def test_what_is_imported_there_is_probed() -> None:
    files = (_torch, _eager, _guards, _norms, _random, _sizes)
    texts = [Path(str(file.__file__)).read_text() for file in files]
    imported = {name for text in texts for name in _imports(ast.parse(text))}
    probed = set(_torch.PROBES.values())
    for name in imported:
        if name.startswith("torch._"):
            assert any(path.startswith(name) for path in probed), f"{name} has no probe"
