"""A call that may have to be captured first, and what keeps it from that."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

from tightrope.capture import _torch
from tightrope.capture._compiled import telling
from tightrope.capture.failures import fails_anyway, reason_of, untraceable
from tightrope.core import CaptureError

_Call: TypeAlias = Callable[..., Any]


def attempt(
    run: _Call, args: Any, kwargs: Any, trial: _Call, traced: Callable[[bool], None] | None = None
) -> tuple[Any, str]:
    """Call what Dynamo compiles; where that cannot be captured, return the reason and nothing else.

    A call that fails without capture too raises its own error: ``trial`` finds out. A call in pieces is
    told by ``traced`` when the trace of one begins and ends.
    """
    if reason := untraceable(args, kwargs):
        return None, reason
    try:
        with nullcontext() if traced is None else telling(traced):
            return run(*args, **kwargs), ""
    except CaptureError as error:  # before anything ran
        return None, reason_of(error)
    except _torch.unsupported_errors() as error:
        refused, reason, anyway = None, reason_of(error), fails_anyway(error)
    except Exception as error:
        cause = _torch.cause_in_backend(error)
        if cause is None or cause is error:
            raise
        refused, reason, anyway = None if isinstance(cause, CaptureError) else cause, reason_of(cause), False
    if refused is not None:
        refused.__context__ = None  # the frames of the capture would hold memory
        try:
            raise refused.with_traceback(None)
        finally:
            del refused, cause  # they hold this frame
    if anyway:
        trial(*args, **kwargs)
    return None, reason
