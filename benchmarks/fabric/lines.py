"""R4: four programs of several processes, over this fabric and over gRPC: equal bits, and lines of code.

Lines are counted as they stand, formatted alike, without empty lines, comments and documentation; schemas of
gRPC count, what is generated from them does not. What both versions calculate is in `cases.nets` and counts
for neither. Tokens are counted beside, as lines may be long or short.
"""

import ast
import importlib
import importlib.util
import io
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.fabric.cases import alone
from benchmarks.micro.rows import Row

CASES: Final = ("games", "pipeline", "recommender", "federated")
_FOLDER = Path(__file__).parent / "cases"
_SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def python_code(text: str) -> dict[int, list[str]]:
    """Return the tokens of every line that has code: no comments, no documentation.

    >>> python_code('"A module."' + chr(10) + 'x = 1  # one' + chr(10))
    {2: ['x', '=', '1']}
    """
    documents: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            documents |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    found: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED and token.start[0] not in documents:
            for line in range(token.start[0], token.end[0] + 1):
                found.setdefault(line, [])
            found[token.start[0]].append(token.string)
    return found


def schema_code(text: str) -> dict[int, list[str]]:
    """Return the tokens of every line of a schema that has any."""
    marks = str.maketrans({mark: f" {mark} " for mark in "(){};=."})
    lines = {at: line.partition("//")[0].translate(marks).split() for at, line in enumerate(text.split("\n"))}
    return {at: tokens for at, tokens in lines.items() if tokens}


def counted(case: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Lines and tokens of a case, over the fabric and over gRPC."""
    ours = python_code((_FOLDER / f"{case}.py").read_text())
    theirs = python_code((_FOLDER / f"{case}_grpc.py").read_text())
    schema = schema_code((_FOLDER / f"{case}.proto").read_text())
    return _size(ours), (len(theirs) + len(schema), _size(theirs)[1] + _size(schema)[1])


def _size(code: dict[int, list[str]]) -> tuple[int, int]:
    return len(code), sum(map(len, code.values()))


def written_once() -> int:
    """Lines of all gRPC versions where what is equal in several of them is written once.

    Whole statements of modules and classes, and messages of schemas, count as equal where their text is.
    """
    python: set[str] = set()
    schemas: set[str] = set()
    for case in CASES:
        text = (_FOLDER / f"{case}_grpc.py").read_text()
        for node in ast.parse(text).body:
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                inner = node.body if isinstance(node, ast.ClassDef) else [node]
                python |= {ast.unparse(one) for one in inner}
                python |= {f"{node.name} {case}"} if isinstance(node, ast.ClassDef) else set()
        schemas |= set((_FOLDER / f"{case}.proto").read_text().split("\n\n"))
    return sum(len(one.splitlines()) for one in python) + sum(len(schema_code(one)) for one in schemas)


def grpc_missing() -> bool:
    """Whether gRPC and its compiler are not installed (``pip install grpcio grpcio-tools``)."""
    return any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_tools"))


def r4(quick: bool = False) -> list[Row]:
    """Run all versions, compare bits, and count."""
    torch.set_num_threads(1)
    rounds, rows, all_ours, all_theirs = 2 if quick else 5, [], 0, 0
    for case in CASES:
        (lines, tokens), (their_lines, their_tokens) = counted(case)
        expected = _run("alone", case, rounds)
        equal, peer = _equal(expected, _run("fabric", case, rounds)), ""
        right = equal == len(expected)
        if grpc_missing():
            peer = "gRPC not run: peer not installed (pip install grpcio grpcio-tools)"
        else:
            same = _equal(expected, _run("grpc", case, rounds))
            peer, right = f"gRPC: {same} of {len(expected)} equal", right and same == len(expected)
        all_ours, all_theirs = all_ours + lines, all_theirs + their_lines
        rows.append(
            Row(
                f"R4, {case}",
                "<= 60 lines, <= 1/5 of gRPC",
                f"{lines} lines, gRPC {their_lines} (1/{their_lines / lines:.1f}); tokens {tokens}, "
                f"{their_tokens} (1/{their_tokens / tokens:.1f}); {equal} of {len(expected)} losses and "
                "weights equal to one process; real processes",
                right and lines <= 60 and 5 * lines <= their_lines,
                peer,
            )
        )
    once = written_once()
    rows.append(
        Row(
            "R4, together",
            "no bar",
            f"{all_ours} lines, gRPC {all_theirs} (1/{all_theirs / all_ours:.1f}); {once} lines "
            f"(1/{once / all_ours:.1f}) where what is equal in several gRPC versions is written once",
            True,
        )
    )
    return rows


def _run(kind: str, case: str, rounds: int) -> list[Tensor]:
    options: dict[str, Any] = {"lost": rounds - 1} if case == "federated" else {}
    if kind == "alone":
        run: Callable[..., list[Tensor]] = getattr(alone, case)
    else:
        module = f"benchmarks.fabric.cases.{case}{'_grpc' if kind == 'grpc' else ''}"
        run = importlib.import_module(module).train
    return run(rounds, **options)


def _equal(expected: list[Tensor], found: list[Tensor]) -> int:
    return sum(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
