"""Capture without running: the graph of a model's training step."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tightrope.capture import _probes, _torch
from tightrope.capture._compiled import compile_with
from tightrope.capture._eager import meta_as_cpu, mode_in_the_way, said_of
from tightrope.capture.dynamo import make_backend
from tightrope.capture.failures import uncaptured
from tightrope.capture.program import Program
from tightrope.capture.relay import Layout, relay
from tightrope.core import CaptureError, Graph, TightropeError
from tightrope.core.arguments import refuse_argument
from tightrope.lower import with_writes
from tightrope.native.hook.allocator import Allocator
from tightrope.price.kernels import dtype_of
from tightrope.price.ops import Odd, Tick, price_ops
from tightrope.price.store import PriceStore

_ROUNDS = 4
"""Times that one op may lay out its results in a new way; those behind it follow in later rounds."""


class _CaptureDone(TightropeError):
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

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    own = call.__code__  # the host may not hold `call`, and with it the model: Dynamo keeps every backend

    def host(program: Program, real: Sequence[Any]) -> Any:
        codes = tuple(code for code in _torch.traced_code() if code is not own)
        raise _CaptureDone(replace(program, codes=codes), real)

    if lacking := _probes.said_of(_probes.gone(_probes.CAPTURE)):
        raise CaptureError(f"{lacking}. Use tightrope.replay(budget=...), which needs no capture.")
    if (mode := mode_in_the_way()) is not None:
        raise CaptureError(f"{said_of(mode)}: capture {type(model).__name__} outside of it.")
    backend = make_backend(host, name=type(model).__name__, foresee=True)
    planned = compile_with(call, backend)
    try:
        with meta_as_cpu():
            planned(*args, **(kwargs or {}))
    except _torch.unsupported_errors() as error:
        raise uncaptured(error, type(model).__name__, call="capture(model, x, y)") from error
    except Exception as error:
        cause = _torch.cause_in_backend(error)
        if isinstance(cause, _CaptureDone):
            return cause.program, list(cause.real)
        if cause is not None:
            raise cause from error
        raise
    raise CaptureError(f"{type(model).__name__} ran without any tensor op: there is nothing to plan.")


def check_model(model: object) -> None:
    """Refuse what is not a module, and the class of one.

    Raises:
        TightropeError: quotes it.
    """
    if not isinstance(model, torch.nn.Module):
        made = ", made already: Linear(8, 8) and not Linear" if isinstance(model, type) else ""
        refuse_argument("model", model, f"a torch.nn.Module{made}")


def check_call(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], example: str
) -> None:
    """Refuse inputs that a function, called ``name``, does not take, by number or by name.

    Raises:
        CaptureError: shows what it takes, and how to give it.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # without a signature the call itself will say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CaptureError(
            f"{name} cannot be called with these inputs: {error}. Give them as its forward takes them, "
            f"{signature!s:.100}, as in {example}."
        ) from None


def capture(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Graph:
    """Return the graph of ``model(*args, **kwargs)`` and its backward; nothing is run.

    Sizes are exact; times and kernel temporaries are unknown until ops are measured (`measured`)
    or estimated (`tightrope.price.price_graph`).

    Raises:
        CaptureError: the call is not one graph.
        TightropeError: the model is no module.

    Example:
        >>> import torch, tightrope
        >>> graph = tightrope.capture(torch.nn.Linear(8, 8), torch.ones(2, 8))
        >>> [op.target for op in graph.ops][0]
        'aten.addmm.default'
    """
    check_model(model)
    check_call(type(model).__name__, model.forward, args, kwargs, "capture(model, x, y)")
    return capture_program(model, args, kwargs)[0].graph


def measured(
    program: Program,
    real: Sequence[Any],
    allocator: Allocator | None,
    *,
    store: PriceStore | None = None,
    check: bool = False,
    tick: Tick | None = None,
) -> Program:
    """Measure every op of a captured program on this machine.

    Where a kernel lays its result out otherwise than torch's shape functions say, everything behind it
    is derived again from what it really does.

    Args:
        program: as captured.
        real: the caller's tensors in input order.
        allocator: the hook that records allocations, None = times only.
        store: prices known already; default: those on disk for this environment.
        check: whether known prices are compared with what some ops take now, and replaced if they differ.
        tick: progress.

    Raises:
        InfeasibleError: an op does not fit alone under the limit that is set.
        CaptureError: an op allocates, or lays out, what its shapes do not say.
    """
    store = store or PriceStore(program.graph.environment)
    given = [*real, *program.constants]
    rounds: Counter[str] = Counter()
    while True:
        with _torch.real_tensors():
            found = price_ops(program.graph, given, allocator=allocator, store=store, check=check, tick=tick)
        if check:  # another round goes by what this one kept
            store, check = PriceStore(program.graph.environment), False
        if not found.odd:
            return replace(program, graph=with_writes(found.graph))
        rounds.update({odd.op.name for odd in found.odd})
        for odd in found.odd:
            if rounds[odd.op.name] > _ROUNDS:
                raise CaptureError(f"{odd.op.describe()} lays its result out in a new way in every run.")
        program = _relaid(program, found.odd)


def _relaid(program: Program, odd: Sequence[Odd]) -> Program:
    """Read the program again with the layouts that kernels really give."""
    layouts: dict[str, dict[int, Layout]] = {}
    for op, position, layout in odd:
        if layout.bits or program.rebuild is None:
            raise CaptureError(
                f"{op.describe()} gives another tensor than its shapes say (strides {layout.strides}, offset "
                f"{layout.offset}{layout.bits and ', '}{layout.bits}): it cannot be planned."
            )
        layouts.setdefault(op.name, {})[position] = (dtype_of(layout.dtype), layout.strides, layout.offset)
    try:
        relay(program.module.graph, layouts)
    except (RuntimeError, ValueError) as error:  # as a view of what is laid out otherwise
        raise CaptureError(
            f"kernels lay results out otherwise than torch's shape functions say, and then: {error}."
        ) from error
    assert program.rebuild is not None
    again = program.rebuild(program.module)
    return replace(program, graph=again.graph, constants=again.constants, keys=again.keys)
