"""What a run of a plan did: every op with its time, every allocation with the op that made it.

The executable is emitted once more with a probe around every kernel, so nothing is matched by name:
a probe knows its op, and asks the allocator how many allocations it has seen. Probes keep no tensor
and allocate nothing through torch, so the allocations are those of the plan.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from tightrope.core import (
    Alloc,
    Buffer,
    Bytes,
    Counter,
    Event,
    FingerprintError,
    Fused,
    Graph,
    JudgeError,
    Nanoseconds,
    OpId,
    PageIn,
    PageOut,
    Plan,
    Run,
    StorageId,
    TightropeError,
    Trace,
)
from tightrope.core.plugins import absent, installed, loaded
from tightrope.core.provenance import CHECKS, Provenance
from tightrope.core.trace import EventPhase
from tightrope.core.trace_check import MAX_REPEATS
from tightrope.lower import problems
from tightrope.native.hook.allocator import Allocator, MemoryEvent
from tightrope.price.kernels import Kernel
from tightrope.record.forecast import describe, held, stretch_text, summary
from tightrope.record.tables import Lines, ModuleTree, attribute
from tightrope.run.compile import compiled_of
from tightrope.run.execute.emit import Code, PartCode
from tightrope.run.execute.prepared import prepare
from tightrope.run.session.calls import Calls
from tightrope.run.session.unit import Unit
from tightrope.run.step import TrainingStep


class _PlannedRun(NamedTuple):
    """One run of an op or of a fused stretch: its time, and allocation events before and after.

    Attributes:
        ops: in order.
        made: storage of each allocation that it makes, -1 for temporaries.
    """

    ops: tuple[OpId, ...]
    made: tuple[StorageId, ...]
    start: Nanoseconds
    end: Nanoseconds
    first: int
    last: int
    live: Bytes


@dataclass
class Recording:
    """Filled by `record_run`; ask for ``trace`` after its ``with`` block.

    Attributes:
        graph: what ran.
        plan: how.
        classes: class names of modules by path.
    """

    graph: Graph
    plan: Plan
    classes: dict[str, str]
    _native: Allocator
    _runs: list[_PlannedRun] = field(default_factory=list)
    _earlier: deque[tuple[_PlannedRun, ...]] = field(default_factory=lambda: deque(maxlen=MAX_REPEATS))
    _events: tuple[MemoryEvent, ...] = ()
    _base: Bytes = 0
    _active: bool = False
    _done: bool = False

    @property
    def trace(self) -> Trace:
        """The last training step that ran inside the block, with the times of those before it.

        Raises:
            TightropeError: no whole step ran.
        """
        if not self._done:
            raise TightropeError(
                "no whole training step ran while it was recorded: run forward and backward."
            )
        return _observed(self)

    def begin(self) -> None:
        """Start to record, anew if a step was recorded before."""
        if self._active:
            self._native.end_record()
        elif self._done:
            self._earlier.append(tuple(self._runs))
        self._runs.clear()
        self._done, self._active = False, True
        self._base = self._native.stats().live
        self._native.begin_record()

    def end(self, *, whole: bool) -> None:
        """Stop; ``whole`` tells whether the step came to its end."""
        if self._active:
            self._events = self._native.end_record().events
            self._active, self._done = False, whole

    def probe(self, run: Run | Fused, kernel: Kernel) -> Kernel:
        """Put the probe around the kernel of a run, or the function of a stretch."""
        ops = tuple(one.op for one in run.runs) if isinstance(run, Fused) else (run.op,)
        made = tuple(event.storage for event in run.inside if isinstance(event, Alloc))
        return partial(self._call, ops, made, kernel)

    def watch(self, code: Code) -> Code:
        """Begin with the first part, end with the last one."""
        last = len(code.parts) - 1

        def watched(number: int, part: PartCode) -> PartCode:
            def run(kept: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
                if number == 0:
                    self.begin()
                try:
                    result = part(kept, given)
                except BaseException:
                    self.end(whole=False)
                    raise
                if number == last:
                    self.end(whole=True)
                return result

            return run

        return replace(code, parts=tuple(watched(number, part) for number, part in enumerate(code.parts)))

    def _call(
        self,
        ops: tuple[OpId, ...],
        made: tuple[StorageId, ...],
        target: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not self._active:
            return target(*args, **kwargs)
        first, start = self._native.num_events(), time.perf_counter_ns()
        result = target(*args, **kwargs)
        end, stats = time.perf_counter_ns(), self._native.stats()
        self._runs.append(
            _PlannedRun(ops, made, start, end, first, self._native.num_events(), stats.live - self._base)
        )
        return result


@contextmanager
def record_run(
    planned: torch.nn.Module | TrainingStep, *, plan: Plan | None = None, graph: Graph | None = None
) -> Iterator[Recording]:
    """Record training steps of a compiled model, or of a `tightrope.step`, as they run their plan.

    The step allocates what it allocates without a recording, at the same addresses; it takes a few
    microseconds more per op. Run one step before: the first one is planned and verified.

    Args:
        planned: made by `tightrope.compile` or `tightrope.step`.
        plan: run this one inside the block; default: the one that the model chose.
        graph: that ``plan`` was made for; it is judged against it. Needed with ``plan``.

    Raises:
        TightropeError: nothing ran yet, the level is L0, or the model became several graphs.
        FingerprintError: ``plan`` was made for another graph than the one that runs.
        JudgeError: ``plan`` does not hold for ``graph``.
        IntegrityError: the code that ``plan`` was made from is not the code that is here.
        NativeError: there is no allocator to ask.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> with record_run(model) as recording:
        ...     model(torch.ones(2, 8)).sum().backward()
        >>> recording.trace.source, [event.name for event in recording.trace.events][0]
        ('observed', 'aten.addmm.default')
    """
    calls, unit, classes = _unit(planned)
    native, prepared = calls.accounts.allocator, unit.prepared
    if prepared is None or native is None or calls.note:
        raise TightropeError(
            f"this step has no planned addresses to record: {calls.note or calls.accounts.note}."
        )
    if prepared.lease is not None:
        raise TightropeError("a step that pages cannot be recorded yet: compile without page_to.")
    recording = Recording(unit.graph, prepared.plan, classes, native)
    if plan is not None:
        recording.graph, recording.plan = _given(plan, graph, unit.graph), plan
    probed = prepare(
        unit.graph, recording.plan, native, cause="recorded", wrap=recording.probe, watch=recording.watch
    )
    probed.proof.checked = prepared.proof.checked
    restore = unit.substitute(probed)
    try:
        yield recording
    finally:
        recording.end(whole=False)
        restore()


def _given(plan: Plan, graph: Graph | None, here: Graph) -> Graph:
    """Check that a plan may run in place of the chosen one; the graph that it was made for."""
    if graph is None:
        raise TightropeError("a plan is judged before it runs: give the graph that it was made for.")
    if not plan.fingerprint == graph.fingerprint == here.fingerprint:
        raise FingerprintError(
            f"the plan was made for graph {plan.fingerprint[:12]}, and this model is graph "
            f"{here.fingerprint[:12]}. Plan this model, with such inputs, on this version of torch."
        )
    if not plan.placed or any(isinstance(step, PageIn | PageOut) for step in plan.schedule.steps):
        raise TightropeError(
            "only plans with addresses that do not page can run here: plan without --machine."
        )
    if plan.provenance is not None:
        demand_code_of(plan)
    if wrong := problems(graph, plan):
        raise JudgeError(f"the plan does not hold for its graph: {wrong[0]}")
    for planned, op in zip(graph.all_ops(), here.all_ops(), strict=True):
        if graph.allocations(planned) != here.allocations(op):
            raise TightropeError(
                f"{op.target} allocates otherwise here than where the plan was made: capture and plan here."
            )
    return graph


def demand_code_of(plan: Plan, *, captured: Provenance | None = None) -> None:
    """Refuse a plan whose code is not the code that is here.

    Args:
        plan: with a provenance.
        captured: the provenance of a capture of its call in this process.

    Raises:
        IntegrityError: names the first file, its owner, and what was expected and found.
        TightropeError: nothing is installed that compares them, or it does not load.
    """
    entries = installed(CHECKS).get("provenance", ())
    if not entries:
        raise absent("comparing the code of a plan with the code that is here", "verify")
    for entry in entries:
        loaded("the check of code", (entry,))(plan, captured=captured).demand()


def _unit(planned: torch.nn.Module | TrainingStep) -> tuple[Calls, Unit, dict[str, str]]:
    if isinstance(planned, TrainingStep):
        calls = planned.last.calls if planned.last is not None else None
        model = planned.model
    else:
        calls, model = compiled_of(planned).calls, planned
    if calls is None or not calls.recent:
        raise TightropeError("no training step has run yet: run one, then record the next.")
    if len(calls.recent) > 1:
        calls.patterns.together = True
        calls.steady.drop()
        never = calls.patterns.why_apart()
        raise TightropeError(
            "the calls of this step were planned one by one so far, and a recording needs one plan"
            + (f": {never}. Raise the budget, or " if never else ". Run another step, which makes it, or ")
            + "record it with record_eager, which needs none."
        )
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    return calls, calls.unit(calls.recent[0].turns), classes


def _observed(recording: Recording) -> Trace:
    graph, plan = recording.graph, recording.plan
    runs = recording._runs
    start = runs[0].start if runs else 0
    times = [(run.start - start, run.end - start) for run in runs]
    rows = _ticks(recording, times)
    readers, storages = _links(graph, runs, rows)
    buffers = tuple(
        Buffer(row.bytes, row.start, row.end, -1, storage)
        for row, storage in zip(rows.buffers, storages, strict=True)
    )
    tree, lines = ModuleTree(recording.classes), Lines()
    where = attribute(graph, recording.classes)
    base_of = {op.variant: op.id for op in graph.ops if op.variant >= 0}
    seen: set[OpId] = set()
    events = []
    for run, (begin, end) in zip(runs, times, strict=True):
        bases = [base_of.get(op, op) for op in run.ops]
        ops, (module, phase) = [graph.op(op) for op in run.ops], where[bases[0]]
        phase = EventPhase.RECOMPUTE if bases[0] in seen else phase
        seen.update(bases)
        alone = ops[0].target, ops[0].source, ops[0].callers
        name, source, callers = stretch_text(ops) if len(ops) > 1 else alone
        line, stack = lines.at(source), lines.stack(callers)
        events.append(Event(begin, end, run.ops[0], name, tree.at(module), phase, 0, line, callers=stack))
    served = len(buffers) == len(plan.offsets)
    described = describe(
        graph,
        plan if served else msgspec.structs.replace(plan, offsets=(), placed=False),
        buffers,
        rows.creators,
        readers,
    )
    live = Counter(
        "live bytes of the step, as the allocator counts them",
        "bytes",
        tuple(end for _, end in times),
        tuple(run.live for run in runs),
    )
    return Trace(
        "observed",
        described,
        tuple(events),
        rows.num_ticks,
        ticks=rows.times,
        modules=tree.rows(),
        lines=lines.rows(),
        callers=lines.stacks(),
        reasons=plan.reasons,
        counters=(live,),
        held=held(graph),
        summary=msgspec.structs.replace(summary(graph, plan), producer="run"),
        repeats=tuple(tuple(run.end - run.start for run in step) for step in recording._earlier),
    )


@dataclass
class _EventRows:
    """Allocations made inside ops: ticks are renumbered without those of user code."""

    buffers: list[Buffer]
    creators: list[int]
    times: tuple[Nanoseconds, ...]
    num_ticks: int


def _ticks(recording: Recording, times: list[tuple[Nanoseconds, Nanoseconds]]) -> _EventRows:
    """Keep the allocations of ops and their releases; everything else belongs to user code."""
    starts: dict[int, int] = {}
    found: list[tuple[Bytes, int, int]] = []
    creators: list[int] = []
    ends: dict[int, int] = {}
    clock: list[Nanoseconds] = []
    runs, number = recording._runs, 0
    for tick, event in enumerate(recording._events):
        while number < len(runs) and runs[number].last <= tick:
            number += 1
        inside = number < len(runs) and runs[number].first <= tick
        if event.kind == "alloc" and inside:
            starts[event.allocation] = len(found)
            found.append((event.bytes, len(clock), -1))
            creators.append(number)
        elif event.kind == "free" and event.allocation in starts:
            ends[starts[event.allocation]] = len(clock)
        else:
            continue
        clock.append(_moment(runs, times, number, tick, inside=inside))
    last = len(clock)
    buffers = [Buffer(size, begin, ends.get(k, last)) for k, (size, begin, _) in enumerate(found)]
    return _EventRows(buffers, creators, tuple(clock), last)


def _moment(
    runs: list[_PlannedRun],
    times: list[tuple[Nanoseconds, Nanoseconds]],
    number: int,
    tick: int,
    *,
    inside: bool,
) -> Nanoseconds:
    """Spread the ticks of an op evenly over its time; ticks between ops come right after the one before."""
    if not inside:
        return times[number - 1][1] if number else 0
    run, (start, end) = runs[number], times[number]
    return start + (tick - run.first + 1) * (end - start) // (run.last - run.first + 1)


def _links(
    graph: Graph, runs: list[_PlannedRun], rows: _EventRows
) -> tuple[list[list[int]], list[StorageId]]:
    """Which storage each allocation became, and which events read it.

    The allocations that an op made are its own list, in order; where their number differs, they are
    temporaries as far as anybody knows.
    """
    made: dict[int, list[int]] = {}
    for position, creator in enumerate(rows.creators):
        made.setdefault(creator, []).append(position)
    storages: list[StorageId] = [-1] * len(rows.buffers)
    readers: list[list[int]] = [[] for _ in rows.buffers]
    live: dict[StorageId, int] = {}
    for number, run in enumerate(runs):
        for op in map(graph.op, run.ops):
            for storage in op.reads:
                if storage in live and readers[live[storage]][-1:] != [number]:
                    readers[live[storage]].append(number)
            alone = len(run.ops) == 1
            if alone and op.over in live and op.creates[0] not in run.made:  # its result is written there
                live[op.creates[0]] = live.pop(op.over)
        positions = made.get(number, [])
        if len(run.made) != len(positions):
            continue
        for storage, position in zip(run.made, positions, strict=True):
            storages[position] = storage
            if storage >= 0:
                live[storage] = position
    return readers, storages
