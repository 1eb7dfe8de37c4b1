"""What belongs to one compiled model: its budget, its captured graphs, and the level that it runs at."""

import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch

from tightrope.capture.dynamo import Runner
from tightrope.capture.program import Program
from tightrope.core import InfeasibleError, TightropeError, format_bytes
from tightrope.core.ledger import Ledger, Row
from tightrope.run.base.arguments import AS_EAGER
from tightrope.run.base.shapes import Shapes
from tightrope.run.base.sharded import WHY, InsideHooks, divided, refuse_divided
from tightrope.run.base.status import StatusLine, build_native
from tightrope.run.base.weak import alive, weakly
from tightrope.run.evict.level_e import EvictedSteps, against_eviction, wants_eviction
from tightrope.run.ledger.accounts import UNKNOWN, Accounts
from tightrope.run.ledger.first_steps import MeasuredSteps
from tightrope.run.ledger.hidden import HiddenBytes
from tightrope.run.ledger.optimizer import Foresight
from tightrope.run.ledger.refusal import if_dropping, no_percentage
from tightrope.run.ledger.room import HELD, RESERVE
from tightrope.run.session.buckets import Buckets
from tightrope.run.session.calls import Calls
from tightrope.run.session.fused import add_fastest
from tightrope.run.session.on_gpu import accounts_for, refuse_other_device, refuse_uncaptured_on_gpu
from tightrope.run.session.replay import Replay, replay
from tightrope.run.session.runner import CompiledGraph
from tightrope.run.session.unit import Settings
from tightrope.run.verify.eager import EagerTwin

_MANY: Final = 3


class SizesSeen:
    """The sizes of the inputs that a model was captured with.

    Example:
        >>> seen = SizesSeen()
        >>> [bool(seen.hint([torch.ones(rows, 4)])) for rows in (1, 2, 2, 3, 4)]
        [False, False, False, True, False]
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[Any, ...], set[tuple[torch.Size, ...]]] = {}
        self._told = False

    def hint(self, given: Sequence[Any]) -> str:
        """Note the inputs of a capture; at the third sizes of like inputs return a line, once."""
        tensors = [
            one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)
        ]
        sizes = self._sizes.setdefault(tuple((one.dtype, one.dim()) for one in tensors), set())
        sizes.add(tuple(one.shape for one in tensors))
        if self._told or len(sizes) < _MANY:
            return ""
        self._told = True
        return (
            f"inputs came in {_MANY} sizes, and each was captured and planned by itself. If more follow, "
            'compile(..., shapes="bucket") captures once for all sizes'
        )


_Call: TypeAlias = Callable[..., Any]
_DIFFERENT: Final = 3
"""Level 0 is left after so many steps that were not as recorded, if more than one in four was."""
_MORE: Final = 1.02
"""A step that needs no more than so many times what was needed before leaves a percentage as it is."""


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
        measured: the first steps, while what a percentage is of is measured.
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
        self.measured: MeasuredSteps | None = None
        self._share: Callable[[int], int] | None = None
        self._differed: object = None
        self._num_differ, self._unplaced = 0, ""
        self._if_steps_differ: weakref.ref[torch.nn.Module] | None = None
        self.in_hooks: Callable[[], InsideHooks | None] = lambda: None
        self.forget: Callable[[], None] = lambda: None
        build_native(status)
        self.accounts: Accounts = accounts_for(parameters := list(parameters), settings, others)
        self.before_run: Callable[[tuple[CompiledModel, int], list[Any]], None] | None = None
        self.hidden = HiddenBytes(self.accounts)
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
        self.hidden.close()
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

    def hold(self) -> None:
        """Hold the process to the budget, as far as it is known; where more is held, once a plan fits."""
        before, now = self.accounts.budget_of(self), self.calls.budget
        if 0 < before < now:
            self._say_rose(before, now)
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
        self.hidden.look(self.num_graphs, self.calls.budget)
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

    def leave_graphs(self, model: "weakref.ref[torch.nn.Module]", reason: str) -> None:
        """Plan no graph of the model from now on, because of ``reason``.

        A budget in percent is of what the first steps take, which run unlimited; bytes hold at once.

        Raises:
            TightropeError: level E is not possible, and nothing else can tell what a percentage is of.
        """
        share = self.settings.budget
        if (
            isinstance(share, int)
            or self.settings.fallback == "replay"
            or against_eviction(model, self.accounts)
        ):
            self.drop(model, reason)
            return
        gc.collect()  # frames of a failed capture hold what the call made
        self.calls.prospects.close()
        self.accounts.hold(self, UNKNOWN, name=self.name)  # else budgets of other models limit these steps
        self.measured, self.broken = MeasuredSteps(self.accounts), reason
        self.status.say(f"{share} of what the first training steps take, which run unlimited. {reason}")

    def settle(self, model: "weakref.ref[torch.nn.Module]") -> None:
        """Hold the model to its percentage of what the first step took."""
        assert self.measured is not None
        share, whole = self.settings.budget, max(self.measured.whole(), self.calls.prospects.whole)
        assert not isinstance(share, int)
        self._share = share
        self.settings, self.measured = replace(self.settings, budget=share(whole), fallback="evict"), None
        prospects = self.calls.prospects
        prospects.budget, prospects.whole = share(whole), whole
        self.drop(model, self.broken)

    def evict_from_now(self, model: "weakref.ref[torch.nn.Module]", reason: str) -> None:
        """Run at level E from now on, because of ``reason``; a percentage is measured if no step ran."""
        share, prospects = self.settings.budget, self.calls.prospects
        if not (isinstance(share, int) or self.calls.num_steps):
            self.leave_graphs(model, reason)
            return
        if not isinstance(share, int):
            self._share, self.settings = share, replace(self.settings, budget=prospects.budget)
        gc.collect()  # frames of a call that was refused hold what it made
        self._end_planning(prospects.budget)
        self.why = reason
        self._evict(model)

    def rise(self) -> None:
        """Raise a budget in percent where a step at level E held more than those before."""
        before, evicted, prospects = self.settings.budget, self.evicted, self.calls.prospects
        if self._share is None or evicted is None or evicted.unplanned <= prospects.whole * _MORE:
            return
        assert isinstance(before, int)
        prospects.whole = evicted.unplanned
        prospects.budget = evicted.budget = self._share(prospects.whole)
        evicted.given = prospects.asked, prospects.whole
        self.settings = replace(self.settings, budget=prospects.budget)
        self._say_rose(before, prospects.budget)
        self.accounts.hold(self, prospects.budget, name=self.name)

    def _say_rose(self, before: int, now: int) -> None:
        whole = format_bytes(self.calls.prospects.whole)
        self.status.say(
            f"budget {self.calls.prospects.asked} rose from {format_bytes(before)} to "
            f"{format_bytes(now)}: the unplanned step needs {whole} now"
        )

    def drop(self, model: "weakref.ref[torch.nn.Module]", reason: str) -> None:
        """Fall back to level E where more than the budget may be needed, else to level 0, and say why."""
        budget = self.settings.budget
        if not isinstance(budget, int):
            raise no_percentage(reason, self.accounts.enough.keeping, self.accounts.charged())
        refuse_uncaptured_on_gpu(self.accounts.device, reason)
        gc.collect()  # frames of a failed capture hold what the call made
        held, enough = self.accounts.charged(), self.accounts.enough.keeping
        if budget < held < enough:
            named = self.accounts.to_try(held)[1]
            ledger = Ledger(budget, (Row(HELD, held),), named.keeping)
            notes = if_dropping(ledger, named.dropping, named.keeping)
            raise ledger.explain(Row("the step", 0), bound=held, notes=notes)
        self._end_planning(budget)
        wanted = wants_eviction(
            self.accounts, budget, self.settings.fallback, by_values=self.calls.prospects.by_values
        )
        against = against_eviction(model, self.accounts) if wanted else ""
        self.why = f"{reason} {against}".strip()
        if wanted and not against:
            self._evict(model)
            return
        self.replay, self.level = replay(budget=budget), "L0"
        if self.settings.fallback == "auto" and not (wanted or against_eviction(model, self.accounts)):
            self._if_steps_differ = model
        warnings.warn(
            f"tightrope: level L0 (planned addresses and a hard limit, no recomputation). {self.why}",
            stacklevel=5,
        )

    def _end_planning(self, budget: int) -> None:
        self.calls.close()
        self.calls.prospects.close()
        self.hidden.close()
        self.hidden = HiddenBytes(self.accounts)
        self.run_plain()
        self.in_pieces = False
        self.accounts.hold(self, budget, name=self.name)

    def _evict(self, model: "weakref.ref[torch.nn.Module]") -> None:
        """Run at level E from now on, and say why."""
        budget, prospects, module = self.settings.budget, self.calls.prospects, alive(model)
        assert isinstance(budget, int)
        own = [*module.parameters(), *module.buffers()]
        rise = weakly(weakref.ref(self), CompiledModel.rise)
        given = prospects.asked, prospects.whole
        self.evicted = EvictedSteps(budget, own, self.accounts, self.hidden, given, rise)
        self.level, what = "E", "a hard limit, kept by eviction and recomputation, without a plan"
        warnings.warn(f"tightrope: level E ({what}). {self.why}", stacklevel=6)

    def _steps_differ(self, replayed: Replay) -> str:
        """Say whether steps at level 0 are too often others than the recorded one."""
        if replayed.divergence is not self._differed:
            self._differed, self._num_differ = replayed.divergence, self._num_differ + 1
        often = self._num_differ >= _DIFFERENT and self._num_differ * (1 + _DIFFERENT) > replayed.steps
        return "Steps differ in what they allocate" if often else ""

    def _leave_replay(self, why: str) -> None:
        """Give up planned addresses: what is not as recorded lies on the heap besides."""
        replayed, model, self.replay, self._if_steps_differ = self.replay, self._if_steps_differ, None, None
        assert replayed is not None
        assert model is not None
        replayed.close()
        self.why = f"{self.why} {why}"
        self._evict(model)

    def unplanned(self, plain: _Call, args: Any, kwargs: Any) -> Any:
        """Make a call at level E, or begin a step of the L0 recorder with it."""
        if others := Calls.under_way():
            for calls in others if torch.is_grad_enabled() else ():
                calls.shares_steps = True
            if self._if_steps_differ is not None:
                self._leave_replay("A planned model is called in the same step, so level 0 was left.")
        if self.evicted is not None:
            return self.evicted.run(plain, args, kwargs)
        if others:  # a plan and a recording cannot be followed at once
            self._say_limited()
            return plain(*args, **kwargs)
        assert self.replay is not None
        self.accounts.open_step(None)
        if self._if_steps_differ is not None and (why := self._unplaced or self._steps_differ(self.replay)):
            self._leave_replay(f"{why}, so level 0 was left.")
            return self.unplanned(plain, args, kwargs)
        self.replay.__enter__()
        self._inside_step = True
        self.accounts.open_step(weakly(weakref.ref(self), CompiledModel.end_step))
        return plain(*args, **kwargs)

    def _say_limited(self) -> None:
        """Say once that calls at level 0 have no planned addresses."""
        why = "A planned model is called in the same step, so nothing is recorded: the limit alone holds."
        if why not in self.why:
            self.why = f"{self.why} {why}"
            warnings.warn(f"tightrope: level L0. {why}", stacklevel=6)

    def end_step(self) -> None:
        """Tell the L0 recorder that the open training step, if any, is over.

        Raises:
            InfeasibleError: its addresses do not fit, and level E cannot go on.
        """
        if self._inside_step and self.replay is not None:
            self._inside_step = False
            try:
                self.replay.__exit__(None, None, None)
            except InfeasibleError:
                if self._if_steps_differ is None:
                    raise
                self._unplaced = "Planned addresses do not fit"


_BY_BACKEND: Final[list[tuple["weakref.ref[CompiledModel]", list["weakref.ref[torch.Tensor]"]]]] = []
"""What ``torch.compile(model, backend="tightrope")`` compiled, and the parameters that its graphs train."""


def note_graph(compiled: CompiledModel, parameters: Iterable[torch.Tensor]) -> None:
    """Remember whose parameters a graph trains that came by way of ``torch.compile``'s backend."""
    _BY_BACKEND[:] = [pair for pair in _BY_BACKEND if pair[0]() is not None]
    _BY_BACKEND.append((weakref.ref(compiled), [weakref.ref(parameter) for parameter in parameters]))


def graphs_of(model: torch.nn.Module) -> list[CompiledModel]:
    """Find what belongs to each graph of a model that ``torch.compile`` handed to the backend by name."""
    mine = {id(parameter) for parameter in model.parameters()}
    pairs = [(reference(), parameters) for reference, parameters in _BY_BACKEND]
    return [
        graph
        for graph, parameters in pairs
        if graph is not None and any(id(parameter()) in mine for parameter in parameters)
    ]
