"""The trace that a plan promises.

Events follow the plan's own clock: ops one after another, copies between tiers on a thread of their
own. Ticks inside an op are spread evenly over its time; which tick comes first is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tightrope.core import (
    Alloc,
    BudgetPoint,
    Buffer,
    Bytes,
    Category,
    Copy,
    Event,
    EventPhase,
    Executable,
    FingerprintError,
    Fused,
    Graph,
    Held,
    JudgeError,
    Machine,
    Nanoseconds,
    Op,
    OpId,
    Plan,
    PlanFileError,
    Release,
    Return,
    Run,
    StorageId,
    Summary,
    Trace,
)
from tightrope.core.executable import ARENA, HEAP
from tightrope.lower import lower, problems, simulate, timeline
from tightrope.plan import whole_bytes
from tightrope.record.tables import Lines, ModuleTree, attribute, categories, reason_rows

COPY_THREAD = 1
"""Thread number of copies between memory tiers in a forecast."""


def forecast(
    graph: Graph,
    plan: Plan,
    *,
    machine: Machine | None = None,
    others: tuple[Plan, ...] = (),
    classes: dict[str, str] | None = None,
) -> Trace:
    """Simulate a plan: what runs when, what every allocation is for, where it lies and why.

    Guarantees: buffers are those of `tightrope.lower.timeline`; the peak and
    the end of the last event are the plan's own figures.

    Args:
        graph: the one that the plan was made for.
        plan: what to simulate.
        machine: needed by plans that page, for the times of copies.
        others: plans of the same graph for other budgets; they are judged and become `Summary.curve`.
        classes: class names of modules by path.

    Raises:
        FingerprintError: a plan was made for another graph.
        JudgeError: one of ``others`` does not hold for the graph.
        TightropeError: the plan cannot be lowered, or pages without a machine.

    Example:
        >>> from tightrope.core import Storage
        >>> from tightrope.plan import solve
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,), ns=7, module="net.act"),), (Storage(0, 64),))
        >>> trace = forecast(graph, solve(graph, budget=64, planner="given"))
        >>> trace.events[0].end, trace.modules[trace.events[0].module].path, trace.peak
        (7, 'net.act', 64)
    """
    for one in (plan, *others):
        if one.fingerprint != graph.fingerprint:
            raise FingerprintError(
                f"the plan was made for graph {one.fingerprint[:12]}, this one is {graph.fingerprint[:12]}: "
                "give the graph that was planned."
            )
    for one in others:
        if wrong := problems(graph, one, machine):
            raise JudgeError(f"the plan for {one.budget} bytes does not hold for its graph: {wrong[0]}")
    executable = lower(graph, plan, machine)
    tape = _EventTape(graph, ModuleTree(classes), attribute(graph, classes))
    tape.run(executable, machine)
    rows = timeline(executable)
    assert rows.num_events == len(tape.ticks)
    return Trace(
        "forecast",
        describe(graph, plan, rows.buffers, tape.creators, tape.readers),
        tuple(tape.events),
        rows.num_events,
        ticks=tuple(tape.ticks),
        modules=tape.tree.rows(),
        lines=tape.lines.rows(),
        callers=tape.lines.stacks(),
        reasons=plan.reasons,
        held=held(graph),
        summary=summary(graph, plan, others),
    )


def describe(
    graph: Graph,
    plan: Plan,
    buffers: tuple[Buffer, ...],
    creators: list[int],
    readers: list[list[int]],
) -> tuple[Buffer, ...]:
    """Say of every allocation of a plan what it is for, where it lies and why.

    Args:
        graph: of the plan.
        plan: its offsets and reasons.
        buffers: allocations in order, with storages.
        creators: event that makes each of them.
        readers: events that read each of them.

    Raises:
        PlanFileError: a plan with offsets for another number of allocations.
    """
    if plan.placed and plan.offsets and len(plan.offsets) != len(buffers):
        raise PlanFileError(
            f"the plan has {len(plan.offsets)} offsets and its schedule makes {len(buffers)} allocations: "
            "tightrope judge says what else is wrong with it."
        )
    reasons, kinds = reason_rows(plan.reasons), categories(graph)
    copies: dict[StorageId, int] = {}
    found = []
    for position, buffer in enumerate(buffers):
        offset = plan.offsets[position] if plan.placed and plan.offsets else -1
        storage = buffer.storage
        if storage < 0:
            found.append(
                Buffer(
                    buffer.bytes,
                    buffer.start,
                    buffer.end,
                    offset,
                    -1,
                    creators[position],
                    Category.TEMPORARY,
                    "temporary",
                )
            )
            continue
        reason = reasons.get(storage, -1)
        copies[storage] = copy = copies.get(storage, -1) + 1
        found.append(
            Buffer(
                buffer.bytes,
                buffer.start,
                buffer.end,
                offset,
                storage,
                creators[position],
                kinds[storage],
                plan.reasons[reason].decision if reason >= 0 else "",
                reason,
                copy,
                tuple(readers[position]),
            )
        )
    return tuple(found)


def held(graph: Graph) -> tuple[Held, ...]:
    """Bytes that count during the whole step, by category; they add up to ``persistent``.

    What kernels take behind the allocator counts with the temporaries.
    """
    sums: dict[str, Bytes] = {Category.TEMPORARY.value: graph.hidden}
    for storage in graph.storages:
        if storage.external:
            sums[storage.kind.value] = sums.get(storage.kind.value, 0) + storage.size
    return tuple(Held(Category(kind), size) for kind, size in sorted(sums.items()) if size)


def summary(graph: Graph, plan: Plan, others: tuple[Plan, ...] = ()) -> Summary:
    """Collect the figures of a plan, and of plans for other budgets."""
    said = plan.forecast
    points = [_point(one) for one in (plan, *others)] if others else []
    return Summary(
        name=graph.name,
        producer="plan",
        fingerprint=plan.fingerprint,
        budget=plan.budget,
        persistent=said.persistent,
        arena=said.arena,
        outside=said.outside,
        ns=said.ns,
        base_ns=said.base_ns,
        lower_bound=plan.certificate.lower_bound,
        planner=plan.planner,
        curve=tuple(sorted(points, key=lambda point: point.budget)),
        whole=whole_bytes(graph),
        proved=plan.certificate.proved,
        ns_bound=plan.certificate.ns_bound,
        stretches=len(plan.stretches),
    )


def _point(plan: Plan) -> BudgetPoint:
    chosen = {
        decision: tuple(reason.storage for reason in plan.reasons if reason.decision == decision)
        for decision in ("recomputed", "paged")
    }
    said = plan.forecast
    proof = plan.certificate
    return BudgetPoint(
        plan.budget, said.total, said.ns, chosen["recomputed"], chosen["paged"], proof.proved, proof.ns_bound
    )  # fmt: skip


def stretch_text(ops: Sequence[Op]) -> tuple[str, str, tuple[str, ...]]:
    """Name a fused stretch, its ops' source lines, each once, and who called them where all agree."""
    name = f"fused: {ops[0].target} and {len(ops) - 1} more"
    callers = {op.callers for op in ops}
    sources = ", ".join(dict.fromkeys(op.source for op in ops if op.source))
    return name, sources, callers.pop() if len(callers) == 1 else ()


@dataclass
class _EventTape:
    """Events and the time of every tick so far."""

    graph: Graph
    tree: ModuleTree
    where: dict[OpId, tuple[str, EventPhase]]
    lines: Lines = field(default_factory=Lines)
    events: list[Event] = field(default_factory=list)
    ticks: list[Nanoseconds] = field(default_factory=list)
    creators: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    live: dict[StorageId, int] = field(default_factory=dict)
    rows: dict[int, StorageId] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def run(self, executable: Executable, machine: Machine | None) -> None:
        base_of = {op.variant: op.id for op in self.graph.ops if op.variant >= 0}
        times = simulate(executable, machine).times
        allocs = {event.buffer: event for event in executable.flat() if isinstance(event, Alloc)}
        now = 0
        for instruction, (start, end) in zip(executable.instructions, times, strict=True):
            match instruction:
                case Run(op=op):
                    self.compute(self.graph.op(op), instruction.inside, start, end, base_of.get(op, op))
                    self.write(instruction)
                case Fused(runs):
                    self.fused(runs, instruction.inside, start, end, base_of)
                case Return(op) if op >= 0:
                    self.compute(self.graph.op(op), (), start, end, op)
                case Release():
                    self.event(instruction, now)
                case Alloc():
                    self.event(instruction, now, creator=len(self.events))
                case Copy(source, target):
                    inwards = allocs[target].space == ARENA
                    self.copy(allocs[source].storage, "page in" if inwards else "page out", start, end)
                case _:
                    pass
            now = start if isinstance(instruction, Copy) else end
        self.order()

    def compute(
        self,
        op: Op,
        inside: tuple[Alloc | Release, ...],
        start: Nanoseconds,
        end: Nanoseconds,
        base: OpId,
    ) -> None:
        number, line = len(self.events), self.lines.at(op.source)
        module, phase = self.where[op.id]
        phase = EventPhase.RECOMPUTE if base in self.seen else phase
        self.seen.add(base)
        callers = self.lines.stack(op.callers)
        self.events.append(
            Event(start, end, op.id, op.target, self.tree.at(module), phase, 0, line, callers=callers)
        )
        for storage in op.reads:
            if storage in self.live:
                self.readers[self.live[storage]].append(number)
        for tick, event in enumerate(inside):
            self.event(event, start + (tick + 1) * (end - start) // (len(inside) + 1), creator=number)

    def fused(
        self,
        runs: tuple[Run, ...],
        inside: tuple[Alloc | Release, ...],
        start: Nanoseconds,
        end: Nanoseconds,
        base_of: dict[OpId, OpId],
    ) -> None:
        """One event under its first op, with the lines of all; all of its ops read."""
        number, ops = len(self.events), [self.graph.op(run.op) for run in runs]
        self.compute(ops[0], inside, start, end, base_of.get(ops[0].id, ops[0].id))
        name, source, callers = stretch_text(ops)
        self.events[number] = replace(
            self.events[number], name=name, line=self.lines.at(source), callers=self.lines.stack(callers)
        )
        for op in ops[1:]:
            self.seen.add(base_of.get(op.id, op.id))
            for storage in set(op.reads) & set(self.live):
                row = self.live[storage]
                if self.creators[row] != number and number not in self.readers[row]:
                    self.readers[row].append(number)

    def write(self, run: Run) -> None:
        """Let a buffer go on as what a run wrote over its input."""
        op = self.graph.op(run.op)
        if op.over in self.live and op.creates[0] not in self.live:
            self.live[op.creates[0]] = self.live.pop(op.over)
            self.rows[run.results[0].view.base] = op.creates[0]

    def event(self, event: Alloc | Release, at: Nanoseconds, *, creator: int = -1) -> None:
        """Book an allocation in fast memory, or its release."""
        if isinstance(event, Alloc):
            if event.space not in (ARENA, HEAP):
                return
            self.rows[event.buffer] = event.storage
            if event.storage >= 0:
                self.live.setdefault(event.storage, len(self.creators))
            self.creators.append(creator)
            self.readers.append([])
        elif event.buffer in self.rows:
            storage = self.rows.pop(event.buffer)
            if storage not in self.rows.values():
                self.live.pop(storage, None)
        else:
            return
        self.ticks.append(at)

    def copy(self, storage: StorageId, name: str, start: Nanoseconds, end: Nanoseconds) -> None:
        if name == "page out" and storage in self.live:
            self.readers[self.live[storage]].append(len(self.events))
        module = self.tree.at(self.graph.storages[storage].module)
        self.events.append(Event(start, end, -1, name, module, EventPhase.PAGE, COPY_THREAD))

    def order(self) -> None:
        """Put events in order of their starts: a copy may wait for its engine."""
        order = sorted(range(len(self.events)), key=lambda number: self.events[number].start)
        now_at = {number: position for position, number in enumerate(order)}
        self.events = [self.events[number] for number in order]
        self.creators = [now_at[number] for number in self.creators]
        self.readers = [sorted(now_at[number] for number in row) for row in self.readers]
