"""The judge stands on the core types alone: it shares no code with what it checks."""

import ast
import sys
from pathlib import Path

import pytest

import tightrope.judge

FILES = sorted(Path(tightrope.judge.__file__).parent.glob("*.py"))


def imported(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_judge_imports_the_core_and_the_standard_library(file: Path) -> None:
    allowed = {"msgspec.structs"} if file.stem in ("reorder", "writes") else set()
    for name in imported(file) - allowed:
        room = name.split(".")[:2]
        assert room in (["tightrope", "core"], ["tightrope", "judge"]) or room[0] in sys.stdlib_module_names


def test_every_judge_is_looked_at() -> None:
    assert len(FILES) >= 9
    assert "tightrope.core" in imported(next(file for file in FILES if file.stem == "walk"))
