"""`compile`: a byte budget for a model, in any training loop.

The model object stays what it is: same class, parameters, ``state_dict`` and hooks. Only the way
in which a call runs changes (torch's own per-module compile slot is used). Each new input shape is
captured and planned once.
"""

import gc
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

from tightrope.capture import _torch
from tightrope.capture.api import RECOMPILE_LIMIT
from tightrope.capture.dynamo import Runner, make_backend
from tightrope.capture.failures import fails_anyway
from tightrope.capture.program import Program
from tightrope.core import Bytes, CaptureError, InfeasibleError, Machine, TightropeError, parse_bytes
from tightrope.run.ledger import Ledger, ledger
from tightrope.run.progress import Progress
from tightrope.run.refusal import RESERVE
from tightrope.run.replay import Replay, replay
from tightrope.run.runner import InferenceRunner, Options, PlannedRunner
from tightrope.run.sequence import Shares

Model = TypeVar("Model", bound=torch.nn.Module)
_MAX_GRAPHS, _MAX_NEW = 64, 16
"""Graphs of one call, and calls in a row that need new ones: beyond, plans would hardly be used again."""


class Handle:
    """What belongs to one compiled model: its runners, one per captured graph, and its level.

    Attributes:
        level: ``L1`` (planned), or ``L0`` (planned addresses only) with the reason in ``why``.
        shares: divides the budget where the model became several graphs; None = it is one.
        num_graphs: captured so far, those without a backward included.
        broken: why the model is not one graph.
        num_new: calls in a row that needed new graphs, where there are several.
        budget: as asked.
        runners: training graphs in order of capture.
        replay: the L0 recorder, when that level is used.
        forget: makes Dynamo drop what it compiled for the model.
    """

    def __init__(self, budget: str | int, options: Options, *, progress: Progress) -> None:
        self.level, self.why = "L1", ""
        self.budget, self.options, self.progress = budget, options, progress
        self.runners: list[PlannedRunner] = []
        self.num_graphs = self.num_new = 0
        self.shares: Shares | None = None
        self.replay: Replay | None = None
        self.forget: Callable[[], None] = lambda: None
        self.ledger: Ledger = ledger()
        self._inside_step = self._lifted = False
        self._called, self.broken = 0, ""

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Lift the budget and give back what no step is using."""
        self.ledger.release(self)
        with suppress(TightropeError):  # nobody is left to hear that the last step did not fit
            self.end_step()
        if self.replay is not None:
            self.replay.close()
        for runner in self.runners:
            runner.close()
        self.forget()

    def host(self, program: Program, real: Sequence[Any]) -> Runner:
        """Make the runner of a captured graph."""
        self.ledger.survey()
        self.num_graphs += 1
        if program.num_forward_outputs == len(program.outputs):
            if isinstance(self.options.budget, int):
                self.ledger.hold(self, self.options.budget)
            return InferenceRunner(program, self.ledger)
        shared = self.shares is not None
        runner = PlannedRunner(program, real, self.options, self.ledger, self.progress, shared=shared)
        self.ledger.hold(self, max(runner.budget for runner in [*self.runners, runner]))
        self.runners.append(runner)
        handle = weakref.ref(self)
        runner.when_fits = lambda: _hold_again(handle())
        return runner

    def break_up(self, reason: str) -> None:
        """Try a sequence of graphs, each within its share of the budget, because of ``reason``."""
        assert isinstance(self.options.budget, int)
        self.broken = reason
        self.shares = Shares(self.options.budget - RESERVE)
        self.ledger.hold(self, self.options.budget)
        self.ledger.take_peak()

    def say_in_pieces(self) -> None:
        """Tell the user, once, that the model runs as a sequence of graphs, and why."""
        if not self.why:
            self.why = f"planned as a sequence of graphs: {self.broken}"
            warnings.warn(
                "tightrope: level L1 in pieces (each graph is planned within its share of the budget; what "
                f"runs between them is limited, not planned). {self.broken}",
                stacklevel=6,
            )

    def refused(self) -> None:
        """Lift the budget of a model of which no step ever fitted, until it is called again."""
        if not any(runner.num_steps for runner in self.runners):
            self.ledger.release(self)
            self._lifted = True

    def hold_again(self) -> None:
        """Hold the process to the budget once more if a refusal lifted it."""
        if self._lifted:
            self._lifted = False
            known = self.options.budget if isinstance(self.options.budget, int) else 0
            self.ledger.hold(self, max([known, *(runner.budget for runner in self.runners)]))

    def last_run(self) -> list[PlannedRunner]:
        """List the graphs that ran last: one, or all of the last call of a sequence of them."""
        if self.shares is None:
            return [max(self.runners, key=lambda runner: runner.last_used)]
        ran = [runner for runner in self.runners if runner.last_used >= self._called]
        return ran or self.runners[-1:]

    def next_call(self) -> None:
        """Set the shares of the graphs before a call of a model that is a sequence of them."""
        if self.shares is not None:
            self._called = time.monotonic_ns()
            peak = self.ledger.take_peak()
            self.shares.begin(self.runners, held=self.ledger.charged(), peak=peak)

    def drop_to_replay(self, reason: str) -> None:
        """Fall back to level 0 and say why."""
        self.level, self.why = "L0", reason
        self.shares = None
        for runner in self.runners:
            runner.close()
        self.runners.clear()
        if not isinstance(self.options.budget, int):
            raise TightropeError(
                f"a budget in percent needs a captured graph, and there is none: {reason} Give bytes."
            )
        self.ledger.hold(self, self.options.budget)
        self.replay = replay(budget=self.options.budget)
        warnings.warn(
            f"tightrope: level L0 (planned addresses and a hard limit, no recomputation). {reason}",
            stacklevel=5,
        )

    def next_step(self) -> None:
        """Tell the L0 recorder that a training step begins."""
        assert self.replay is not None
        self.ledger.open_step(None)
        self.replay.__enter__()
        self._inside_step = True
        handle = weakref.ref(self)

        def close() -> None:
            still_there = handle()
            if still_there is not None:
                still_there.end_step()

        self.ledger.open_step(close)

    def end_step(self) -> None:
        """Tell the L0 recorder that the open training step, if any, is over."""
        if self._inside_step:
            self._inside_step = False
            assert self.replay is not None
            self.replay.__exit__(None, None, None)


def _hold_again(handle: Handle | None) -> None:
    if handle is not None:
        handle.hold_again()


_HANDLES: "weakref.WeakKeyDictionary[torch.nn.Module, Handle]" = weakref.WeakKeyDictionary()


def handle_of(model: torch.nn.Module) -> Handle:
    """Find the handle of a compiled model.

    Raises:
        TightropeError: the model was not compiled by `compile`.
    """
    if model not in _HANDLES:
        raise TightropeError(
            f"this {type(model).__name__} was not compiled: call tightrope.compile(model, budget=...) first."
        )
    return _HANDLES[model]


def compile(
    model: Model,
    *,
    budget: str | int,
    example: Any = None,
    verify: str | None = "first",
    machine: Machine | None = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: bool | None = None,
) -> Model:
    """Hold the training steps of ``model`` to a number of bytes, with unchanged results.

    The budget is the total on the device during the step: parameters, buffers, optimizer state,
    inputs, activations, gradients and temporaries, placed at planned addresses. Losses, gradients,
    buffers and random streams are bit-equal to the captured graph without a plan.

    Args:
        model: trained in place; the same object is returned.
        budget: ``"8GiB"``, ``"300 MB"``, bytes, or ``"60%"`` of what the unplanned step needs.
        example: inputs (a tuple of positional or a dict of keyword arguments) to capture and plan
            with now; by default this happens at the first call.
        verify: ``"first"`` compares the first step with a reference and raises on any difference;
            None does not.
        machine: profile to check the budget against; default: this machine.
        seed: of the plan search.
        seconds: of plan search; default: until the default effort is spent.
        progress: show progress; default: on a terminal.

    Returns:
        ``model``.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: at the first call (or now, with ``example``): no plan fits.
        VerificationError: at the first call: results differ from the reference.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
    """
    if verify not in ("first", None):
        raise TightropeError(f'verify={verify!r}: use "first" or None.')
    handle = Handle(
        budget,
        Options(parse_budget(budget, machine), verify=verify == "first", seed=seed, seconds=seconds),
        progress=Progress(shown=progress),
    )
    _torch.ignore_logging()
    backend = make_backend(host_of(weakref.ref(handle)), name=type(model).__name__)

    def one_call(*args: Any, **kwargs: Any) -> Any:
        # a frame of ours: Dynamo refuses to start in a frame of torch.nn, such as Linear's
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    handle.forget = _torch.own_code(one_call)
    whole = torch.compile(one_call, backend=backend, fullgraph=True, dynamic=False)
    pieces = torch.compile(one_call, backend=backend, dynamic=False)
    if model in _HANDLES:
        _HANDLES[model].close()
    gc.collect()  # models that nobody uses any more hold the process to their budgets until then
    if handle.ledger.budget and isinstance(handle.options.budget, int):
        handle.ledger.hold(handle, handle.options.budget)
    model._compiled_call_impl = _entry(weakref.ref(model), handle, whole, pieces, one_call)
    _HANDLES[model] = handle
    if example is not None:
        _plan_ahead(model, example)
    return model


def parse_budget(budget: str | int, machine: Machine | None) -> Bytes | Callable[[Bytes], Bytes]:
    """Read a budget: bytes, or for a share a function of what the unplanned step needs.

    Raises:
        BudgetSyntaxError: it is not an amount of memory.
        TightropeError: ``machine`` has less.
    """
    if isinstance(budget, str) and budget.strip().endswith("%"):
        parse_bytes(budget, whole=1)
        return lambda whole: parse_bytes(budget, whole=whole)
    size = parse_bytes(budget)
    if machine is not None and size > machine.tiers[0].bytes:
        raise TightropeError(
            f"budget {budget!r} is more than {machine.name} has "
            f"({machine.tiers[0].bytes} bytes of {machine.tiers[0].name})."
        )
    return size


def host_of(reference: "weakref.ref[Handle]") -> Callable[[Program, Sequence[Any]], Runner]:
    """Reach the handle without keeping it alive: Dynamo remembers every backend for ever."""

    def host(program: Program, real: Sequence[Any]) -> Runner:
        handle = reference()
        assert handle is not None
        return handle.host(program, real)

    return host


def _entry(
    model: "weakref.ref[torch.nn.Module]",
    handle: Handle,
    whole: Callable[..., Any],
    pieces: Callable[..., Any],
    plain: Callable[..., Any],
) -> Callable[..., Any]:
    """Make what runs instead of the model's call: one graph, else a sequence of graphs, else level 0."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # part of a larger model that is being captured
            return plain(*args, **kwargs)
        if handle.level == "L0":
            handle.next_step()
            return plain(*args, **kwargs)
        handle.ledger.mark()
        try:
            return steps(*args, **kwargs)
        except InfeasibleError:
            handle.refused()
            raise

    def steps(*args: Any, **kwargs: Any) -> Any:
        if handle.shares is None:
            result, reason = _captured(whole, args, kwargs, trial)
            if not reason:
                return result
            if not isinstance(handle.options.budget, int):
                handle.drop_to_replay(reason)
            else:
                handle.break_up(reason)
        return in_pieces(*args, **kwargs)

    def trial(*args: Any, **kwargs: Any) -> None:
        """Call the model as it is, within the budget: running out says nothing about the call."""
        owner = model()
        assert owner is not None
        if isinstance(handle.options.budget, int):
            handle.ledger.hold(handle, handle.options.budget)
        try:
            with suppress(torch.OutOfMemoryError), torch.no_grad():
                restore = _state_of(owner)
                try:
                    plain(*args, **kwargs)
                finally:
                    restore()
        except BaseException:
            handle.refused()
            raise

    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        owner = model()
        assert owner is not None
        known, restore = handle.num_graphs, _state_of(owner)
        handle.next_call()
        result, reason = _captured(pieces, args, kwargs, trial)
        if not reason and not handle.num_graphs:
            reason = f"No part of it can be captured: {handle.broken}"
        if not reason:
            handle.say_in_pieces()
            new = handle.num_graphs - known
            handle.num_new = handle.num_new + 1 if new else 0
            if new > _MAX_GRAPHS or handle.num_new > _MAX_NEW:
                handle.drop_to_replay(f"Its calls need ever more graphs, {handle.num_graphs} so far.")
            return result
        del result
        restore()
        handle.drop_to_replay(reason)
        return call(*args, **kwargs)

    return call


def _captured(run: Callable[..., Any], args: Any, kwargs: Any, trial: Callable[..., None]) -> tuple[Any, str]:
    """Call what Dynamo compiles; where that cannot be captured, return the reason and nothing else.

    A call that fails without capture too raises its own error: ``trial`` finds out.
    """
    try:
        with _torch.calling(RECOMPILE_LIMIT):
            return run(*args, **kwargs), ""
    except _torch.unsupported_errors() as error:
        refused, reason, anyway = None, _reason(error), fails_anyway(error)
    except Exception as error:
        cause = _torch.cause_in_backend(error)
        if cause is None or cause is error:
            raise
        refused, reason, anyway = None if isinstance(cause, CaptureError) else cause, _reason(cause), False
    if refused is not None:
        refused.__context__ = None  # the frames of the capture would hold memory
        raise refused.with_traceback(None)
    if anyway:
        trial(*args, **kwargs)
    return None, reason


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        "The step cannot be captured as one graph: "
        + (lines[0].rstrip(".") if lines else type(error).__name__)
        + "."
    )


def _plan_ahead(model: torch.nn.Module, example: Any) -> None:
    """Capture and plan without changing anything: buffers and the random state are put back."""
    restore = _state_of(model)
    try:
        model(**example) if isinstance(example, dict) else model(*example)
    finally:
        restore()


def _state_of(model: torch.nn.Module) -> Callable[[], None]:
    """Remember the buffers and the random state; return what puts them back."""
    state = torch.default_generator.get_state()
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}

    def restore() -> None:
        torch.default_generator.set_state(state)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    return restore
