"""Capture without running: the graph of a model's training step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tightrope.capture import _torch
from tightrope.capture.costs import price_program
from tightrope.capture.dynamo import make_backend
from tightrope.capture.failures import uncaptured
from tightrope.capture.program import Program
from tightrope.core import CaptureError, Graph, TightropeError
from tightrope.native.allocator import Allocator
from tightrope.price.store import PriceStore

RECOMPILE_LIMIT = 256
"""Shapes (and train/eval, grad/no-grad) that one model may be captured for."""


class _Captured(TightropeError):
    """Carries the program out of the compiler before anything runs."""

    def __init__(self, program: Program, real: Sequence[Any]) -> None:
        super().__init__("captured")
        self.program, self.real = program, real


def capture_program(
    model: torch.nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> tuple[Program, list[Any]]:
    """Capture one call of ``model`` and its backward; nothing is run and nothing allocated.

    Works on real modules and on modules on the ``meta`` device.

    Returns:
        The program, and the tensors behind its placeholders.

    Raises:
        CaptureError: the call is not one graph; the message has Dynamo's reason.
    """

    def host(program: Program, real: Sequence[Any]) -> Any:
        raise _Captured(program, real)

    _torch.ignore_logging()
    backend = make_backend(host, name=type(model).__name__)
    planned = torch.compile(lambda *a, **k: model(*a, **k), backend=backend, fullgraph=True, dynamic=False)
    try:
        with _torch.calling(RECOMPILE_LIMIT):
            planned(*args, **(kwargs or {}))
    except _torch.unsupported_errors() as error:
        raise uncaptured(error, type(model).__name__, call="capture(model, x, y)") from error
    except Exception as error:
        cause = _torch.cause_in_backend(error)
        if isinstance(cause, _Captured):
            return cause.program, list(cause.real)
        if cause is not None:
            raise cause from error
        raise
    raise CaptureError(f"{type(model).__name__} ran without any tensor op: there is nothing to plan.")


def capture(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Graph:
    """Return the graph of ``model(*args, **kwargs)`` and its backward; nothing is run.

    Sizes are exact; times and kernel temporaries are unknown until ops are measured (`measured`)
    or estimated (`tightrope.price.price_graph`).

    Raises:
        CaptureError: the call is not one graph.

    Example:
        >>> import torch, tightrope
        >>> graph = tightrope.capture(torch.nn.Linear(8, 8), torch.ones(2, 8))
        >>> [op.target for op in graph.ops][0]
        'aten.addmm.default'
    """
    return capture_program(model, args, kwargs)[0].graph


def measured(program: Program, real: Sequence[Any], allocator: Allocator | None) -> Program:
    """Measure every op of a captured program on this machine."""
    return price_program(program, real, allocator=allocator, store=PriceStore(program.graph.environment))
