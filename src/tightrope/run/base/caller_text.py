"""How many forwards the caller's code makes before a backward, as its text reads.

Idea        The first forward of a loop may not fit, and the loop may make more of them before its backward: a
            siamese net, a contrastive loss. The expression that called the model is found by its position.
            The same expression is then counted up to the next backward of the function.
Guarantee   Nothing of the caller runs, and nothing of it is held. Without its text, the answer is 1.
Complexity  One parse of the caller's file.
Gaps        A comprehension counts as two calls where it has all of them, else as one, as other loops do.
            Calls from other functions are not seen. A file that changed since its import may be misread.
"""

import ast
import builtins
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import torch

_ENTRY: Final = str(Path(__file__).parents[1] / "session" / "levels.py")
"""Its function ``call`` runs instead of a model's own call."""
_NOT_THE_CALLER: Final = (str(Path(__file__).parents[2]) + os.sep, str(Path(torch.__file__).parent) + os.sep)
_MOST_TEXT: Final = 1 << 20
_SOME: Final = 2
"""Calls of a comprehension, where it has all of them."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LEAVING: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_WITHOUT_GRADIENTS: Final = ("no_grad", "inference_mode", "set_grad_enabled")


class _CallEvent(NamedTuple):
    """A call of the model, or, with no calls, a backward or a way out."""

    calls: int
    is_here: bool = False
    repeats: bool = False  # in a comprehension


def forwards_ahead() -> tuple[int, str]:
    """Count the forwards before the next backward, the present one included: there may be more.

    Returns:
        The count, and the caller's file and line; 1 and the empty string where the text is not at hand.
    """
    try:
        caller = _caller()
        return (1, "") if caller is None else _read(caller)
    except Exception:  # of a loader that gives the text, or of a text that is too deep
        return 1, ""


def _caller() -> FrameType | None:
    """The frame that called the model."""
    frame: FrameType | None = sys._getframe(1)
    entered = False
    while frame is not None:
        name = frame.f_code.co_filename
        entered = entered or (name == _ENTRY and frame.f_code.co_name == "call")
        if entered and not name.startswith(_NOT_THE_CALLER):
            return frame
        frame = frame.f_back
    return None


def _read(caller: FrameType) -> tuple[int, str]:
    code = caller.f_code
    line, last_line, column, last_column = list(code.co_positions())[caller.f_lasti // 2]
    text = "".join(linecache.getlines(code.co_filename, caller.f_globals))
    found = None
    if len(text) < _MOST_TEXT:
        found = _enclosing(ast.parse(text), (line, column, last_line, last_column))
    if found is None:
        return 1, ""
    scope, here = found
    callee = here.func
    if isinstance(callee, ast.Name) and hasattr(builtins, callee.id):  # such as list(map(model, batches))
        return 1, ""
    body = scope.body if isinstance(scope.body, list) else [scope.body]  # type: ignore[attr-defined]
    since: list[_CallEvent] = []
    for event in _CallerText(here, ast.dump(callee)).all_of(body):
        if event.calls:
            since.append(event)
        elif any(one.is_here for one in since):
            break
        else:
            since = []
    fewest = _SOME if any(one.repeats for one in since) else 1
    return max(fewest, sum(one.calls for one in since)), f"{Path(code.co_filename).name}:{line}"


def _enclosing(
    tree: ast.Module, place: tuple[int | None, int | None, int | None, int | None]
) -> tuple[ast.AST, ast.Call] | None:
    """Find the call at a place, and the function or module that it is in."""
    line = place[0]
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, ast.Call) and _place(node) == place:
            return scope, node
        inner = node if isinstance(node, _SCOPES) else scope
        for child in ast.iter_child_nodes(node):
            first, last = getattr(child, "lineno", line), getattr(child, "end_lineno", line)
            if line is None or first is None or last is None or first <= line <= last:
                waiting.append((child, inner))
    return None


def _place(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


class _CallerText(NamedTuple):
    """The text around a call: the call, and what it calls, dumped."""

    here: ast.Call
    callee: str

    def all_of(self, nodes: Iterable[ast.AST]) -> list[_CallEvent]:
        """List calls of the model, backwards and ways out in the order of the text."""
        return [one for node in nodes for one in self._events(node)]

    def _events(self, node: ast.AST) -> Iterator[_CallEvent]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                return
            case ast.If() | ast.IfExp():
                yield from self._events(node.test)
                branches = [one if isinstance(one, list) else [one] for one in (node.body, node.orelse)]
                yield from self._one_of(branches)
            case ast.Try():
                ways = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
                yield from [*self._one_of(ways), *self.all_of(node.finalbody)]
            case ast.Match():
                yield from [*self._events(node.subject), *self._one_of([case.body for case in node.cases])]
            case ast.BoolOp():
                yield from self._one_of([[one] for one in node.values])
            case ast.With() if any(
                word in ast.dump(one) for one in node.items for word in _WITHOUT_GRADIENTS
            ):
                inside = self.all_of(node.body)
                yield from inside if any(one.is_here for one in inside) else []
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from self._events(node.generators[0].iter)
                rest = [one for loop in node.generators[1:] for one in (loop.iter, *loop.ifs)]
                made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                own = any(f"Name(id={name!r}" in self.callee for name in _variables(node.generators))
                inside = self.all_of([*node.generators[0].ifs, *rest, *made])
                yield from (
                    one._replace(repeats=not own) for one in inside
                )  # of several models, each makes one
            case _:
                yield from self.all_of(ast.iter_child_nodes(node))
                if isinstance(node, _LEAVING):
                    yield _CallEvent(0)
                elif isinstance(node, ast.Call):
                    yield from self._called(node)

    def _called(self, node: ast.Call) -> Iterator[_CallEvent]:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if "backward" in name or name == "grad":
            yield _CallEvent(0)
        elif ast.dump(node.func) == self.callee:
            yield _CallEvent(1, node is self.here)

    def _one_of(self, branches: Iterable[list[ast.stmt] | list[ast.expr]]) -> list[_CallEvent]:
        """The branch with the call, else the one with most calls; those that leave are not taken."""
        found: list[list[_CallEvent]] = [[]]
        for branch in branches:
            inside = self.all_of(branch)
            if any(one.is_here for one in inside):
                return inside
            if not branch or not isinstance(branch[-1], _LEAVING):
                found.append(inside)
        return max(found, key=lambda events: sum(one.calls for one in events))


def _variables(loops: Iterable[ast.comprehension]) -> set[str]:
    """Names of the variables of a comprehension."""
    return {one.id for loop in loops for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
