"""Calls that Dynamo forbids in what it traces: marks for itself, and others that no trace may hold.

A mark (`mark_static_address`, `mark_dynamic`) says how a tensor is to be traced later. It changes no value:
a trace of ours passes over it. Another one, as `torch.compiler.set_stance`, must not run between pieces
either: a call that makes it is not captured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from tightrope.core import CaptureError

_MARKS: Final = ("mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_static_address", "mark_unbacked")


@contextmanager
def forbidden_calls_known(is_ours: Callable[[], bool]) -> Iterator[None]:
    """Pass over marks inside of a trace that ``is_ours``, and refuse it for any other forbidden call."""
    from torch._dynamo import decorators, symbolic_convert, trace_rules, variables

    forbidden, skipped = trace_rules.is_forbidden, variables.SkipFunctionVariable
    inlined = variables.UserFunctionVariable
    marks = {mark for name in _MARKS if (mark := getattr(decorators, name, None)) is not None}

    def passing(kind: Any) -> Any:
        call = kind.call_function

        def called(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            mark = getattr(function, "value", None) or getattr(function, "fn", None)
            if is_ours() and mark in marks:
                return variables.ConstantVariable.create(None)
            return call(function, tx, args, kwargs)

        return patch.object(kind, "call_function", called)

    def still(function: Any) -> bool:
        if (found := bool(forbidden(function))) and is_ours() and function not in marks:
            raise CaptureError(f"torch forbids {function} in what it traces.")
        return found and not is_ours()

    with patch.object(symbolic_convert, "is_forbidden", still), passing(skipped), passing(inlined):
        yield
