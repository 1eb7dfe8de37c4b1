"""`compile`: a byte budget for a model, in any training loop.

The model object stays what it is: same class, parameters, ``state_dict`` and hooks. Only its calls change, by
torch's own per-module compile slot. Each new input shape is captured and planned once.
"""

import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import torch

from tightrope.capture.api import check_model
from tightrope.capture.dynamo import Host, Runner
from tightrope.capture.failures import read_once
from tightrope.capture.program import Program
from tightrope.core import InfeasibleError, Machine, TightropeError, format_bytes
from tightrope.core.arguments import check_search
from tightrope.core.ledger import Ledger, Row
from tightrope.run.accounts import Accounts
from tightrope.run.asked import AS_EAGER, check_fallback, check_switches, check_verify, parse_budget
from tightrope.run.attempt import attempt
from tightrope.run.beside import Beside
from tightrope.run.buckets import Buckets
from tightrope.run.calls import Calls
from tightrope.run.eager import EagerTwin, Sampling
from tightrope.run.evicted import EvictedSteps, evicted_steps
from tightrope.run.example import check_example, plan_ahead
from tightrope.run.fastest import add_fastest
from tightrope.run.foresee import Foresight
from tightrope.run.on_gpu import accounts_for, refuse_other_device, refuse_uncaptured_on_gpu
from tightrope.run.paging import paging_of
from tightrope.run.plain import limited_alone, mode_left, try_plain
from tightrope.run.references import alive, weakly
from tightrope.run.refusal import no_percentage
from tightrope.run.replay import Replay, replay
from tightrope.run.room import HELD, RESERVE
from tightrope.run.runner import CompiledGraph
from tightrope.run.shapes import Shape, Shapes, check_shapes
from tightrope.run.sharded import WHY, InsideHooks, divided, refuse_divided
from tightrope.run.sizes_seen import SizesSeen
from tightrope.run.state import state_of
from tightrope.run.status import StatusLine, build_native
from tightrope.run.uncalled import expect_call, note_call
from tightrope.run.unit import Settings
from tightrope.run.untested import Loss, cannot_capture, loss_of
from tightrope.run.ways import Ways, only_plain, ways_of

Model = TypeVar("Model", bound=torch.nn.Module)
_Call: TypeAlias = Callable[..., Any]
_MAX_GRAPHS, _MAX_NEW = 64, 16
"""Graphs of one call, and calls in a row that need new ones: beyond, plans would hardly be used again."""


class CompiledModel:
    """What belongs to one compiled model: its calls, and its level.

    Attributes:
        level: ``L1`` (planned); ``E`` (eviction) or ``L0`` (planned addresses only), the reason in ``why``.
        in_pieces: whether the model became several graphs.
        broken: why the model is not one graph.
        unable: why nothing is captured on this torch.
        many_sizes: whether a call is captured once for all sizes.
        buckets: which graph serves a call that was captured so.
        num_new: calls in a row that needed new graphs, where there are several.
        calls: captured graphs and what runs them.
        replay: the L0 recorder, when that level is used.
        evicted: the blocks of eviction, when level E is used.
        before_run: called with (this, number of the graph) and its arguments right before a forward runs.
        twin: the model as it is, where plans are compared with it.
        forget: makes Dynamo drop what it compiled for the model.
        name: what refusals of memory call the model.
        in_hooks: finds what calls the model where ``fully_shard`` divided it, and is the model's own.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        settings: Settings,
        status: StatusLine,
        *,
        shapes: Shapes = None,
        others: Iterable[Any] = (),
    ) -> None:
        self.level, self.why, self.broken, self.unable, self.name, self.many_sizes = "L1", *[""] * 4, False
        self.settings, self.status, self.num_graphs, self.num_new = settings, status, 0, 0
        self.in_pieces = self._inside_step = self._lifted = False
        self._seen = SizesSeen()
        self._may_bucket = not (settings.fuse or settings.pages)
        self.replay: Replay | None = None
        self.evicted: EvictedSteps | None = None
        self.in_hooks: Callable[[], InsideHooks | None] = lambda: None
        self.forget: Callable[[], None] = lambda: None
        build_native(status)
        self.accounts: Accounts = accounts_for(parameters := list(parameters), settings, others)
        self.before_run: Callable[[tuple[CompiledModel, int], list[Any]], None] | None = None
        self.beside = Beside(self.accounts)
        self.twin: EagerTwin | None = None
        self.calls = Calls(settings, self.accounts, status, Foresight(parameters, self.accounts.allocator))
        self.buckets = Buckets(shapes, self.calls)
        this = weakref.ref(self)
        self.calls.when_fits = weakly(this, CompiledModel.hold_again)
        self.calls.prospects.raised = weakly(this, CompiledModel.hold)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and "calls" in self.__dict__:  # modules are empty then, or it was refused
            self.close()

    def close(self) -> None:
        """Lift the budget and give back what no step is using."""
        self.accounts.release(self)
        with suppress(TightropeError):  # nobody is left to hear that the last step did not fit
            self.end_step()
        if self.replay is not None:
            self.replay.close()
        if self.evicted is not None:
            self.evicted.leave()
        self.beside.close()
        self.calls.close()
        self.run_plain()
        self.forget()

    def run_plain(self) -> None:
        """Let parts of the model run as they are."""
        if (hooks := self.in_hooks()) is not None:
            hooks.release()

    def host(self, program: Program, real: Sequence[Any]) -> Runner:
        """Take a captured graph in."""
        refuse_other_device(program.graph, self.accounts.device)
        self.accounts.survey()
        alone, resizable = self.buckets.captures_alone, program.resizable is not None
        if many := alone or resizable:
            number = self.buckets.add_alone(program, real) if alone else self.buckets.add(program)
        else:
            number = add_fastest(self.calls, program, real)
        self.num_graphs += 1
        if not many and self._may_bucket and (hint := self._seen.hint(real)):
            self.status.say(hint)
        self.hold()
        graph = CompiledGraph(weakref.ref(self), number, many=many)
        return graph if self.twin is None else self.twin.watching(graph, program)

    def served(self, number: int, args: list[Any], *, many: bool) -> tuple[Calls, int]:
        """Find the captured graph for a call of one, or of ``many`` sizes, that is about to run."""
        number = self.buckets.serve(number, args) if many else number
        if self.before_run is not None:
            self.before_run((self, number), args)
        return self.calls, number

    def compared(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a call, beside the model as it is where that was asked for."""
        return self.twin.around(run, args, kwargs, self.calls) if self.twin else run(*args, **kwargs)

    def hold(self) -> None:
        """Hold the process to the budget, as far as it is known; where more is held, once a plan fits."""
        before, now = self.accounts.budget_of(self), self.calls.budget
        if 0 < before < now:
            whole = format_bytes(self.calls.prospects.whole)
            self.status.say(
                f"budget {self.calls.prospects.asked} rose from {format_bytes(before)} to "
                f"{format_bytes(now)}: the unplanned step needs {whole} now"
            )
        if now:
            self._lifted = not self.accounts.hold_if_possible(self, now, 0, name=self.name)

    def divide(self, model: torch.nn.Module | None, inside: _Call) -> InsideHooks | None:
        """Look whether ``fully_shard`` divided the model; then forwards run ``inside`` of its hooks."""
        if model is None or not divided(model):
            return None
        if self.settings.verify in AS_EAGER:
            refuse_divided(model, f'verify="{self.settings.verify}"', 'Use verify="graph".')
        if callable(self.settings.budget):
            refuse_divided(model, "a budget in percent", "Give bytes: those of one process.")
        if self.many_sizes:
            self.one_size(WHY)
        self.calls.prospects.future.follow(model.parameters())
        hooks = InsideHooks(model, inside)
        self.in_hooks = weakref.ref(hooks)
        self.break_up(WHY)
        return hooks

    def break_up(self, reason: str) -> None:
        """Try a sequence of graphs, because of ``reason``.

        A budget that leaves no room for a capture is refused when the first graph is planned.
        """
        assert isinstance(self.settings.budget, int)
        self.broken, self.in_pieces, self._may_bucket = reason, True, False
        self.calls.prospects.in_pieces = True
        self.accounts.hold_if_possible(self, self.settings.budget, RESERVE)

    def say_in_pieces(self) -> None:
        """Tell the user, once, that the model runs in pieces, and why; watch what is between them."""
        self.beside.look(self.num_graphs, self.calls.budget)
        if not self.why:
            self.why = f"planned as a sequence of graphs: {self.broken}"
            warnings.warn(
                "tightrope: level L1 in pieces (each graph is planned; what runs between them is limited, "
                f"not planned). {self.broken}",
                stacklevel=6,
            )

    def one_size(self, reason: str) -> None:
        """Capture and plan each shape by itself from now on, because of ``reason``."""
        self.many_sizes = self._may_bucket = False
        self.buckets.off = f"shapes= has no effect, each is planned by itself: {reason}"
        warnings.warn(f"tightrope: {self.buckets.off}", stacklevel=6)

    def refused(self) -> None:
        """Lift the budget of a model of which no step ever fitted, until it is called again."""
        if not self.calls.num_forwards:
            self.accounts.release(self)
            self._lifted = True

    def hold_again(self) -> None:
        """Hold the process to the budget once more if a refusal lifted it."""
        if self._lifted:
            self._lifted = False
            self.accounts.hold(self, self.calls.budget, name=self.name)

    def rehearse(self, model: "weakref.ref[torch.nn.Module]", args: Any, kwargs: Any) -> None:
        """Learn from a call on shapes alone which budget is enough."""
        self.calls.prospects.rehearse(alive(model), args, kwargs)

    def drop(self, model: "weakref.ref[torch.nn.Module]", reason: str) -> None:
        """Fall back to level E where more than the budget may be needed, else to level 0, and say why."""
        budget = self.settings.budget
        if not isinstance(budget, int):
            raise no_percentage(reason, self.accounts.enough, self.accounts.charged())
        refuse_uncaptured_on_gpu(self.accounts.device, reason)
        gc.collect()  # frames of a failed capture hold what the call made
        held, enough = self.accounts.charged(), self.accounts.enough
        if budget < held < enough:
            raise Ledger(budget, (Row(HELD, held),), enough).explain(Row("the step", 0), bound=held)
        self.calls.close()
        self.calls.prospects.close()
        self.beside.close()
        self.run_plain()
        self.accounts.hold(self, budget, name=self.name)
        self.evicted, against = evicted_steps(model, self.accounts, budget, self.settings.fallback)
        self.why, self.in_pieces = f"{reason} {against}".strip(), False
        if self.evicted is not None:
            self.level, what = "E", "a hard limit, kept by eviction and recomputation, without a plan"
        else:
            self.replay = replay(budget=budget)
            self.level, what = "L0", "planned addresses and a hard limit, no recomputation"
        warnings.warn(f"tightrope: level {self.level} ({what}). {self.why}", stacklevel=5)

    def unplanned(self, plain: _Call, args: Any, kwargs: Any) -> Any:
        """Make a call at level E, or begin a step of the L0 recorder with it."""
        if self.evicted is not None:
            return self.evicted.run(plain, args, kwargs)
        assert self.replay is not None
        self.accounts.open_step(None)
        self.replay.__enter__()
        self._inside_step = True
        self.accounts.open_step(weakly(weakref.ref(self), CompiledModel.end_step))
        return plain(*args, **kwargs)

    def end_step(self) -> None:
        """Tell the L0 recorder that the open training step, if any, is over."""
        if self._inside_step and self.replay is not None:
            self._inside_step = False
            self.replay.__exit__(None, None, None)


_COMPILED: "weakref.WeakKeyDictionary[torch.nn.Module, CompiledModel]" = weakref.WeakKeyDictionary()
_WRAPPED: Final = ("module", "_orig_mod")
"""Where wrappers keep the model: DistributedDataParallel and its like, and `torch.compile`."""


def compiled_of(model: torch.nn.Module) -> CompiledModel:
    """Find what belongs to a model that `compile` compiled, which a wrapper may hold.

    Raises:
        TightropeError: the model was not compiled by `compile`.
    """
    inner: torch.nn.Module | None = model
    while inner is not None:
        if inner in _COMPILED:
            return _COMPILED[inner]
        inner = next((inner._modules[name] for name in _WRAPPED if name in inner._modules), None)
    raise TightropeError(
        f"this {type(model).__name__} was not compiled: call tightrope.compile(model, budget=...) first. "
        'After torch.compile(model, backend="tightrope"), run a training step first.'
    )


def compile(
    model: Model,
    *,
    budget: str | int,
    example: Any = None,
    verify: str | None = "first",
    fuse: bool = False,
    machine: Machine | None = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: bool | None = None,
    overwrite: bool = True,
    page_to: str | Path | None = None,
    shapes: "str | Sequence[Shape] | None" = None,
    fallback: str = "auto",
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
        verify: ``"first"`` checks every plan in its first run, value by value where something is computed
            again; ``"graph"`` also compares with the captured graph without a plan, ``"eager"`` the first two
            runs and every 97th with the model as it is, ``"always"`` every run; None checks nothing.
        fuse: run stretches of the plan as loops, compiled, where that is faster; equal within a tolerance.
        machine: profile to check the budget against; default: this machine.
        seed: of the plan search.
        seconds: of plan search; default: until the default effort is spent.
        progress: show progress on standard error; default: on a terminal, elsewhere one line per plan, with
            the reason and the seconds; False = nothing.
        overwrite: let ops write results over inputs that nothing needs any more: fewer bytes, same bits.
        page_to: folder on a disk to which activations may be paged, where that is faster than computing
            them again; a second tier of ``machine`` limits the bytes there and says how fast it is.
        shapes: where inputs change their sizes: ``"bucket"``, or a list of the largest shapes to expect, such
            as ``[(8, 64), (8, 128)]`` of the first tensor or ``{"input_ids": (8, 64)}`` by name. A call is
            captured once for all sizes, and only the largest of each bucket is planned; nothing is padded.
        fallback: what a model that cannot be planned runs under, with a warning: ``"replay"`` = level L0,
            ``"evict"`` = level E, as soon as the model is not one graph, ``"auto"`` = L0 where the budget is
            known to be enough without recomputation, else E.

    Returns:
        ``model``.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: at the first call (or now, with ``example``): no plan fits.
        ShapeError: in a call that is larger than every shape of the list, with the price of admitting it.
        VerificationError: in the first run of a plan: a value differs from what it was before.
        PagingError: in a step: a page cannot be written, or does not come back as it was.
        TightropeError: another argument is wrong.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
    """
    check_model(model)
    check_verify(verify, ("first", "graph", *AS_EAGER))
    check_switches(fuse, overwrite, verify)
    check_fallback(fallback)
    buckets = check_shapes(shapes, fuse=fuse, page_to=page_to)
    check_search(seed=seed, seconds=seconds, progress=progress)
    check_example(example)
    size = parse_budget(budget, machine)
    pages = paging_of(page_to, machine, fuse=fuse, seed=seed, seconds=seconds)
    settings = Settings(
        size, verify, seed, seconds, fuse=fuse, writes=overwrite, pages=pages, fallback=fallback
    )
    compiled = CompiledModel(model.parameters(), settings, StatusLine(shown=progress), shapes=buckets)
    compiled.many_sizes, compiled.name = shapes is not None, type(model).__name__
    _wrap(model, compiled)
    if example is not None:
        plan_ahead(model, example)
    return model


def _wrap(model: torch.nn.Module, compiled: CompiledModel) -> None:
    """Make calls of a model those of what belongs to it."""
    if (verify := compiled.settings.verify) in AS_EAGER:
        compiled.twin = EagerTwin(weakref.ref(model), compiled.accounts, Sampling(always=verify == "always"))
    compiled.unable = cannot_capture(compiled.status, plan_small)
    ways = (
        only_plain(model)
        if compiled.unable
        else ways_of(model, host_of(weakref.ref(compiled)), compiled.accounts.mark)
    )
    compiled.forget = ways.forget
    _take_over(model, compiled)
    model._compiled_call_impl = _entry(weakref.ref(model), compiled, ways)
    _COMPILED[model] = compiled
    expect_call(compiled, type(model).__name__, model.parameters())


def plan_small(model: torch.nn.Module, budget: int) -> tuple[Loss, Callable[[], str]]:
    """Plan the small model by which a torch is tried that was not tested."""
    compile(model, budget=budget, progress=False)
    return lambda given: loss_of(model(given)), lambda: compiled_of(model).level


def _take_over(model: torch.nn.Module, compiled: CompiledModel) -> None:
    """Let go of what a model was compiled to before, and hold the process to the new budget if it is held."""
    if model in _COMPILED:
        _COMPILED[model].close()
    gc.collect()  # models that nobody uses any more hold the process to their budgets until then
    compiled.accounts.search()
    if compiled.accounts.budget and isinstance(compiled.settings.budget, int):
        compiled.accounts.hold_if_possible(compiled, compiled.settings.budget, RESERVE)


def host_of(reference: "weakref.ref[CompiledModel]") -> Host:
    """Reach the compiled model without keeping it alive: Dynamo remembers every backend for ever."""

    def host(program: Program, real: Sequence[Any]) -> Runner:
        compiled = reference()
        assert compiled is not None
        return compiled.host(program, real)

    return host


def _entry(model: "weakref.ref[torch.nn.Module]", compiled: CompiledModel, ways: Ways) -> Callable[..., Any]:
    """Make what runs instead of the model's call: one graph, else several graphs, else level E or 0."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # part of a larger model that is being captured
            return ways.plain(*args, **kwargs)
        note_call(compiled)
        if compiled.level == "L1" and (reason := compiled.unable or read_once(args, kwargs)):
            compiled.drop(model, reason)  # a percentage raises
        if compiled.level == "L0" or compiled.evicted is not None:
            return compiled.unplanned(ways.plain, args, kwargs)
        if (mode := mode_left()) is not None:
            return limited_alone(mode, compiled, ways.plain, args, kwargs)
        if compiled.in_pieces or not compiled.calls.steady.left:  # else a trace marks, should one come
            compiled.accounts.mark()
        try:
            return compiled.compared(steps, args, kwargs)
        except (InfeasibleError, torch.OutOfMemoryError):
            compiled.refused()
            raise

    hooks: InsideHooks | None = None
    trial = partial(try_plain, model, compiled, ways.plain)

    def steps(*args: Any, **kwargs: Any) -> Any:
        nonlocal hooks
        if not compiled.num_graphs and not compiled.in_pieces:
            hooks = compiled.divide(model(), ways.inside)
        if not compiled.in_pieces:
            if compiled.many_sizes:
                result, reason = for_many(args, kwargs)
                if not reason:
                    return result
                compiled.one_size(reason)
            result, reason = attempt(ways.whole, args, kwargs, trial)
            if not reason:
                return result
            if percent := not isinstance(compiled.settings.budget, int):
                trial(*args, **kwargs)
                compiled.rehearse(model, args, kwargs)
            if percent or compiled.settings.fallback == "evict":
                compiled.drop(model, reason)  # a percentage raises
                return call(*args, **kwargs)
            compiled.break_up(reason)
        return in_pieces(*args, **kwargs)

    def for_many(args: Any, kwargs: Any) -> tuple[Any, str]:
        """Capture for all sizes, or for these alone as long as enough is known of their bucket."""
        with compiled.buckets.calling(alive(model), args, kwargs) as alone:
            if alone:
                result, reason = attempt(ways.whole, args, kwargs, trial)
                if not reason:
                    return result, reason
                compiled.buckets.for_all()
            return attempt(ways.many, args, kwargs, trial)

    def in_pieces(*args: Any, **kwargs: Any) -> Any:
        known, restore = compiled.num_graphs, state_of(alive(model), args, kwargs)
        if not compiled.calls.num_forwards and hooks is None:
            compiled.rehearse(model, args, kwargs)
        run = hooks or ways.pieces
        result, reason = attempt(run, args, kwargs, trial, compiled.beside.traced)
        if not reason and not compiled.num_graphs:
            reason = f"No part of it can be captured: {compiled.broken}"
        if not reason:
            compiled.say_in_pieces()
            compiled.num_new = compiled.num_new + 1 if (new := compiled.num_graphs - known) else 0
            if new > _MAX_GRAPHS or compiled.num_new > _MAX_NEW:
                compiled.rehearse(model, args, kwargs)
                compiled.drop(model, f"Its calls need ever more graphs, {compiled.num_graphs} so far.")
            return result
        del result
        restore()
        compiled.drop(model, reason)
        return call(*args, **kwargs)

    return call
