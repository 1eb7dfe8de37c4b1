"""Which road a call of a model takes: one graph, a sequence of graphs, level E, or level 0.

Idea        A model that is one graph is planned whole. One that is not runs at level E, or at level 0 where
            the budget is known to be enough without recomputation: a sequence of graphs keeps all that one
            graph leaves to the next, and each new size of a graph wants another plan. That sequence is for
            what level E does not do: `fully_shard`, GPUs, fused or paged plans, comparisons with eager, and
            models of which some calls are one graph. A planned model goes on at level E where no plan fits a
            step that eviction is likely to hold, and where a model of the same step runs at level E.
Guarantee   Whichever road is taken, values are eager's as far as that road promises, and bytes are within
            the budget.
Gaps        The road is chosen by what can be done, not by a forecast of its time.
"""

import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from tightrope.capture import _torch
from tightrope.capture._compiled import compile_with, telling
from tightrope.capture._eager import STANDING, innermost_mode, mode_in_the_way, num_modes, said_of
from tightrope.capture.dynamo import Host, make_backend
from tightrope.capture.failures import fails_anyway, read_once, reason_of, untraceable
from tightrope.core import CaptureError, InfeasibleError, format_bytes
from tightrope.run.base.never_called import note_call
from tightrope.run.base.sharded import InsideHooks
from tightrope.run.base.state import state_of
from tightrope.run.base.weak import alive
from tightrope.run.evict.level_e import against_eviction, block_is_open, end_if_done
from tightrope.run.ledger.refusal import is_for_eviction
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.compiled import CompiledModel

_Call: TypeAlias = Callable[..., Any]


class Entries(NamedTuple):
    """The ways of one model.

    Attributes:
        whole: as one graph.
        many: as one graph for many sizes.
        pieces: as a sequence of graphs.
        plain: as it is.
        inside: a forward that is given first, inside of hooks that run as they are, as a sequence of graphs.
        forget: makes Dynamo drop what it compiled.
    """

    whole: _Call
    many: _Call
    pieces: _Call
    plain: _Call
    inside: _Call
    forget: Callable[[], None]


def only_plain(model: torch.nn.Module) -> Entries:
    """Make the ways of a model that is not captured: as it is, whichever is taken."""

    def one_call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return Entries(one_call, one_call, one_call, one_call, one_call, lambda: None)


def entries_of(model: torch.nn.Module, host: Host, begin: Callable[[], None]) -> Entries:
    """Make the ways of a model.

    Args:
        model: called in these ways.
        host: given captured graphs.
        begin: called before the whole model is traced.
    """
    backend = partial(make_backend, host, name=type(model).__name__)

    def one_call(*args: Any, **kwargs: Any) -> Any:
        # a frame of ours: Dynamo refuses to start in a frame of torch.nn, such as Linear's
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def one_forward(forward: _Call, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    forgets = _torch.own_code(one_call), _torch.own_code(one_forward)

    def forget() -> None:
        for each in forgets:
            each()

    foreseeing = backend(foresee=True)
    return Entries(
        whole=compile_with(one_call, foreseeing, begin=begin),
        many=compile_with(one_call, foreseeing, dynamic=True, begin=begin),
        pieces=compile_with(one_call, backend(), whole=False),
        plain=one_call,
        inside=compile_with(one_forward, backend(), whole=False),
        forget=forget,
    )


_KINDS: Final = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)))


def are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether all arguments are numbers, strings and tensors with sizes, which any call may get."""
    for one in (*args, *kwargs.values()):
        kind = type(one)
        if kind not in _KINDS or (kind is torch.Tensor and one.is_nested):
            return False
    return True


def attempt(
    run: _Call, args: Any, kwargs: Any, trial: _Call, traced: Callable[[bool], None] | None = None
) -> tuple[Any, str]:
    """Call what Dynamo compiles; where that cannot be captured, return the reason and nothing else.

    A call that fails without capture too raises its own error: ``trial`` finds out. A call in pieces is
    told by ``traced`` when the trace of one begins and ends.
    """
    if not are_plain(args, kwargs) and (reason := untraceable(args, kwargs)):
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


_TOLD: Final["weakref.WeakSet[CompiledModel]"] = weakref.WeakSet()


def mode_left() -> Any:
    """End a block of level E in which nothing is under way; return a mode that is still in the way."""
    if innermost_mode() is None:  # a block is one
        return None
    end_if_done()
    return mode_in_the_way()


def limited_alone(
    mode: Any, compiled: CompiledModel, plain: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a model as it is, within the budget, inside of a mode that keeps torch from capturing.

    It is said once. A budget in percent is held to from the first planned call on.
    """
    if compiled not in _TOLD:
        _TOLD.add(compiled)
        why = "level E (a call in the open block of another model)" if block_is_open() else said_of(mode)
        warnings.warn(f"tightrope: {why}: it runs without a plan, within the limit.", stacklevel=4)
    if isinstance(compiled.settings.budget, int):
        compiled.accounts.hold_if_possible(compiled, compiled.settings.budget, 0, name=compiled.name)
    return plain(*args, **kwargs)


def try_plain(
    model: "weakref.ref[torch.nn.Module]",
    compiled: CompiledModel,
    plain: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call a model as it is, within the budget: running out says nothing about the call.

    Buffers and random states are put back, unless the call fails: then they are as it left them.
    """
    owner, budget = model(), compiled.settings.budget
    assert owner is not None
    if isinstance(budget, int) and not compiled.accounts.hold_if_possible(compiled, budget, RESERVE):
        return  # it cannot run, and is refused when the first graph is planned
    try:
        with torch.no_grad():
            restore = state_of(owner, args, kwargs)
            with suppress(torch.OutOfMemoryError):
                plain(*args, **kwargs)
            restore()
    except BaseException:
        compiled.refused()
        raise


_MAX_GRAPHS, _MAX_NEW = 64, 8
"""Graphs of one call, and calls in a row that need new ones: beyond, plans would hardly be used again.

Of eight random draws none is equal to another in half of the cases where there are forty to draw from.
"""
_NOTHING_CHECKED: Final = ("first", None)
"""What ``verify`` is where nothing is compared with other runs."""


class Levels:
    """The calls of one model.

    Args:
        model: as it is.
        compiled: what belongs to it.
        ways: in which Dynamo compiles its calls.
    """

    def __init__(self, model: "weakref.ref[torch.nn.Module]", compiled: CompiledModel, ways: Entries) -> None:
        self._model, self._compiled, self._ways = model, compiled, ways
        self._hooks: InsideHooks | None = None
        self._called = False
        self._trial = partial(try_plain, model, compiled, ways.plain)
        this = weakref.ref(self)
        compiled.calls.prospects.evicts = lambda: (levels := this()) is not None and levels._may_evict()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run instead of the model's own call."""
        compiled, plain = self._compiled, self._ways.plain
        if torch.compiler.is_compiling():  # part of a larger model that is being captured
            return plain(*args, **kwargs)
        if not self._called:
            self._called = True
            note_call(compiled)
        if compiled.measured is not None:
            if not compiled.measured.are_over():
                return compiled.measured.run(plain, args, kwargs)
            compiled.settle(self._model)
        if compiled.level == "L1" and (compiled.unable or not are_plain(args, kwargs)):
            reason = compiled.unable or read_once(args, kwargs)
            if reason:
                return self._without_graphs(reason, args, kwargs)
        if compiled.level == "L0" or compiled.evicted is not None:
            return compiled.unplanned(plain, args, kwargs)
        mode = mode_left() if num_modes() or STANDING else None
        if (compiled.calls.shares_steps or (mode and block_is_open())) and self._may_change():
            compiled.evict_from_now(self._model, "A model of the same training step runs at level E.")
            return self.call(*args, **kwargs)
        if mode is not None:
            return limited_alone(mode, compiled, plain, args, kwargs)
        if compiled.in_pieces or not compiled.calls.steady.left:  # else a trace marks, should one come
            compiled.accounts.mark()
        try:
            if compiled.twin is None:
                return self._planned(*args, **kwargs)
            return compiled.twin.around(self._planned, args, kwargs, lambda: compiled.calls.recent)
        except (InfeasibleError, torch.OutOfMemoryError) as error:
            if not (isinstance(error, InfeasibleError) and is_for_eviction(error) and self._may_change()):
                compiled.refused()
                raise
            reason = f"No plan fits {format_bytes(error.asked)}."
            if error.smallest_found:
                reason = f"{reason} The smallest that was found needs {format_bytes(error.smallest_found)}."
        compiled.evict_from_now(self._model, reason)
        return self.call(*args, **kwargs)

    def _may_change(self) -> bool:
        """Tell whether the model may go to level E with the training step that begins now."""
        calls = self._compiled.calls
        return torch.is_grad_enabled() and not calls.waiting and calls.budget > 0 and self._may_evict()

    def _may_evict(self) -> bool:
        """Tell whether level E may run what no plan fits for."""
        settings = self._compiled.settings
        return settings.fallback in ("auto", "evict") and not (self._compiled.in_pieces or self._needs_graphs)

    def _without_graphs(self, reason: str, args: Any, kwargs: Any) -> Any:
        self._compiled.leave_graphs(self._model, reason)
        return self.call(*args, **kwargs)

    def _planned(self, *args: Any, **kwargs: Any) -> Any:
        compiled = self._compiled
        if not compiled.num_graphs and not compiled.in_pieces:
            self._hooks = compiled.divide(self._model(), self._ways.inside)
        if not compiled.in_pieces:
            if compiled.num_new > _MAX_NEW and not self._needs_graphs:
                compiled.rehearse(self._model, args, kwargs)
                return self._without_graphs(
                    f"Its last {compiled.num_new} calls were each another graph.", args, kwargs
                )
            if compiled.many_sizes:
                result, reason = self._for_many(args, kwargs)
                if not reason:
                    return result
                compiled.one_size(reason)
            known = compiled.num_graphs
            result, reason = attempt(self._ways.whole, args, kwargs, self._trial)
            if not reason:
                if compiled.num_graphs != known or compiled.num_new:
                    self._count(known)
                return result
            if not self._wants_pieces:
                if isinstance(compiled.settings.budget, int):
                    compiled.rehearse(self._model, args, kwargs)
                return self._without_graphs(reason, args, kwargs)
            compiled.break_up(reason)
        return self._in_pieces(args, kwargs)

    @property
    def _wants_pieces(self) -> bool:
        """Whether a model that is not one graph becomes a sequence of graphs."""
        compiled, settings = self._compiled, self._compiled.settings
        if not isinstance(settings.budget, int) or settings.fallback == "evict":
            return False
        if compiled.num_graphs or settings.fallback in ("pieces", "replay"):
            return True
        return self._needs_graphs

    @property
    def _needs_graphs(self) -> bool:
        """Whether level E cannot do what is wanted."""
        compiled, settings = self._compiled, self._compiled.settings
        more = settings.fuse or settings.pages or settings.verify not in _NOTHING_CHECKED
        return bool(more or against_eviction(self._model, compiled.accounts))

    def _count(self, known: int) -> int:
        """Note how many calls in a row were new graphs; return how many this call was."""
        new = self._compiled.num_graphs - known
        self._compiled.num_new = self._compiled.num_new + 1 if new else 0
        return new

    def _for_many(self, args: Any, kwargs: Any) -> tuple[Any, str]:
        """Capture for all sizes, or for these alone as long as enough is known of their bucket."""
        buckets = self._compiled.buckets
        with buckets.calling(alive(self._model), args, kwargs) as alone:
            if alone:
                result, reason = attempt(self._ways.whole, args, kwargs, self._trial)
                if not reason:
                    return result, reason
                buckets.for_all()
            return attempt(self._ways.many, args, kwargs, self._trial)

    def _in_pieces(self, args: Any, kwargs: Any) -> Any:
        compiled, model = self._compiled, self._model
        known, restore = compiled.num_graphs, state_of(alive(model), args, kwargs)
        if not compiled.calls.num_forwards and self._hooks is None:
            compiled.rehearse(model, args, kwargs)
        run = self._hooks or self._ways.pieces
        result, reason = attempt(run, args, kwargs, self._trial, compiled.hidden.traced)
        if not reason and not compiled.num_graphs:
            reason = f"No part of it can be captured: {compiled.broken}"
        if not reason:
            compiled.say_in_pieces()
            if self._count(known) > _MAX_GRAPHS or compiled.num_new > _MAX_NEW:
                compiled.rehearse(model, args, kwargs)
                compiled.drop(model, f"Its calls need ever more graphs, {compiled.num_graphs} so far.")
            return result
        del result
        restore()
        return self._without_graphs(reason, args, kwargs)
