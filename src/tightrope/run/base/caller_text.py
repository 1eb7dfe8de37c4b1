"""How many forwards the caller's code makes before a backward, as its text reads.

Idea        The first forward of a loop may not fit, and the loop may make more of them before its backward: a
            siamese net, a contrastive loss. The expression that called the model is found by its position.
            The same expression is then counted up to the next backward of the function.
Guarantee   Nothing of the caller runs. Without its text, the answer is 1.
Complexity  One parse of the caller's file.
Gaps        A comprehension over what is not in sight counts as two calls, another loop as one.
            Calls from other functions are not seen.
"""

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

_OURS: Final = str(Path(__file__).parents[2])
_TORCH: Final = str(Path(torch.__file__).parent)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_COMPREHENSION_FRAMES: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_SOME: Final = 2
"""Items of what is not in sight."""
_LEAVING: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class _CallEvent(NamedTuple):
    """A call of the model, or, with no calls, a backward or a way out."""

    calls: int
    is_here: bool = False


def forwards_ahead() -> tuple[int, str]:
    """Count the forwards before the next backward, the present one included.

    Returns:
        The count, and the caller's file and line; 1 and the empty string where the text is not at hand.
    """
    caller = _caller()
    if caller is None:
        return 1, ""
    code = caller.f_code
    line, last_line, column, last_column = list(code.co_positions())[caller.f_lasti // 2]
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, caller.f_globals)))
    except (SyntaxError, ValueError):  # the file changed, or is no Python
        return 1, ""
    found = _enclosing(tree, (line, column, last_line, last_column))
    if found is None:
        return 1, ""
    scope, here = found
    while caller.f_code.co_name in _COMPREHENSION_FRAMES and caller.f_back is not None:
        caller = caller.f_back
    values = caller.f_locals
    text = _CallerText(here, ast.dump(here.func), dict(values))
    if caller.f_code.co_flags & inspect.CO_OPTIMIZED and type(values) is dict:
        values.clear()  # a function's copy, which it keeps until it ends, and with it what the caller drops
    body = scope.body if isinstance(scope.body, list) else [scope.body]  # type: ignore[attr-defined]
    count, seen = 0, False
    for event in (one for statement in body for one in text.events(statement)):
        if event.calls == 0 and seen:
            break
        count, seen = (count if event.calls else 0) + event.calls, seen or event.is_here
    return max(count, 1), f"{Path(code.co_filename).name}:{line}"


def _caller() -> FrameType | None:
    """The frame that called the outermost model."""
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            found = None
        elif found is None and not name.startswith(_TORCH):
            found = frame
        frame = frame.f_back
    return found


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
    """The text around a call.

    Attributes:
        here: the call.
        callee: what it calls, dumped.
        values: locals of the function.
    """

    here: ast.Call
    callee: str
    values: Mapping[str, Any]

    def events(self, node: ast.AST) -> Iterator[_CallEvent]:
        """List calls of the model, backwards and ways out in the order of the text."""
        if isinstance(node, _SCOPES):
            return
        if isinstance(node, ast.If | ast.IfExp):
            yield from self.events(node.test)
            yield from self._branch(node)
            return
        inside = [one for child in ast.iter_child_nodes(node) for one in self.events(child)]
        if isinstance(node, ast.With) and any("grad" in ast.dump(item) for item in node.items):
            inside = inside if any(one.is_here for one in inside) else []
        if isinstance(node, _COMPREHENSIONS):
            times = prod(self._length(loop.iter) for loop in node.generators)
            inside = [one._replace(calls=times * one.calls) for one in inside]
        yield from inside
        if isinstance(node, _LEAVING):
            yield _CallEvent(0)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "")
            if "backward" in name or name == "grad":
                yield _CallEvent(0)
            elif ast.dump(node.func) == self.callee:
                yield _CallEvent(1, node is self.here)

    def _branch(self, node: ast.If | ast.IfExp) -> list[_CallEvent]:
        """The branch with the call, else the one with more calls; those that leave are not taken."""
        branches: list[list[_CallEvent]] = []
        for branch in (node.body, node.orelse):
            parts = branch if isinstance(branch, list) else [branch]
            found = [one for part in parts for one in self.events(part)]
            if any(one.is_here for one in found):
                return found
            branches.append([] if parts and isinstance(parts[-1], _LEAVING) else found)
        return max(branches, key=lambda found: sum(one.calls for one in found))

    def _length(self, node: ast.expr) -> int:
        """Items that a comprehension goes through: of a list or tuple in sight, or of a slice of one."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper)
            if node.slice.step is None and all(one is None or isinstance(one, ast.Constant) for one in ends):
                first, last = (None if one is None else one.value for one in ends)  # type: ignore[attr-defined]
                if all(one is None or type(one) is int for one in (first, last)):
                    return len(range(self._length(node.value))[first:last])
        if isinstance(node, ast.List | ast.Tuple):
            return len(node.elts)
        value = self.values.get(node.id) if isinstance(node, ast.Name) else None
        return len(value) if isinstance(value, list | tuple) and type(value) in (list, tuple) else _SOME
