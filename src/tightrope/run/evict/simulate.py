"""Eviction on a recorded log: the same arena and policies, ops that take their logged time and no memory.

Idea       Every op makes its inputs resident (depth first, pinned), places its results, and evicts by the
           policy where nothing fits. What runs again is counted in logged ns, so noise decides nothing.
Source     The loop of DTR (ICLR 2021, simulator) and Coop (NeurIPS 2023), on addresses.
Guarantee  Deterministic. The arena is never exceeded; a log that does not fit raises `InfeasibleError`.
Complexity Per op that runs: its storages; per eviction: the pieces of the arena.
Gaps       Temporaries of kernels are one storage per op; the arena holds nothing that kernels keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tightrope.core import InfeasibleError
from tightrope.core.units import Bytes, Nanoseconds, StorageId, format_bytes, round_up
from tightrope.formats.eviction_log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope.run.evict.core import Decision, EvictionArena, Statistics
from tightrope.run.evict.forecast import Forecaster
from tightrope.run.evict.policies import CANDIDATES, COOP, Policy

MOST_AGAIN = 5
"""A run is given up when recomputation takes this many times the time of the ops themselves."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What running a log under a policy took.

    Attributes:
        operator_ns: of the ops, each run once.
        again_ns: of what ran again, per step.
        again_ops: how many ops ran again.
        statistics: of the arena.
        decisions: of the arena, where they were asked for.
    """

    operator_ns: Nanoseconds
    again_ns: tuple[Nanoseconds, ...]
    again_ops: int
    statistics: Statistics
    decisions: tuple[Decision, ...] = ()

    @property
    def overhead(self) -> float:
        """Recomputed time over the time of the ops."""
        return sum(self.again_ns) / self.operator_ns if self.operator_ns else 0.0


def live_peak(log: EvictionLog) -> Bytes:
    """Compute the largest sum of bytes that are live at once without eviction: what 100 % stands for."""
    live = peak = 0
    for event in log.events:
        match event:
            case LoggedOp():
                live += sum(round_up(max(1, log.sizes[one])) for one in event.creates)
                peak = max(peak, live + (round_up(event.temporary) if event.temporary else 0))
            case Released(storage) if not log.outside[storage]:
                live -= round_up(max(1, log.sizes[storage]))
    return peak


def simulate(log: EvictionLog, size: Bytes, policy: Policy, *, decisions: bool = False) -> Simulated:
    """Run a log in an arena.

    Args:
        log: what runs.
        size: bytes of the arena.
        policy: who is evicted.
        decisions: whether to keep them.

    Raises:
        InfeasibleError: something fits nowhere although everything that may go was evicted, or what runs
            again takes `MOST_AGAIN` times the time of the log.
    """
    run = _Run(log, size, policy, decisions=decisions)
    begin = 0
    for at, event in enumerate(log.events):
        if policy.name == "planned" and isinstance(event, StepEnd):
            repeats = run.forecaster is not None and (len(run.steps) == 0 or run.forecaster.repeats())
            chosen = rehearse(_one_step(log, log.events[begin : at + 1]), size) if repeats else COOP
            begin = at + 1
            run.plan(chosen)
        match event:
            case LoggedOp():
                run.op(event)
            case Released(storage):
                run.release(storage)
            case StepEnd():
                run.end_step()
    if run.again_ns:
        run.end_step()
    kept = run.arena.decisions() if decisions else ()
    return Simulated(log.operator_ns, tuple(run.steps), run.again_ops, run.arena.statistics(), kept)


def rehearse(step: EvictionLog, size: Bytes) -> Policy:
    """Find which candidate recomputes least where a step follows itself; `COOP` wins ties.

    Args:
        step: one step.
        size: bytes of the arena.
    """
    twice = _repeated(step)
    best, least = COOP, None
    for candidate in CANDIDATES:
        try:
            again = simulate(twice, size, candidate).again_ns[1]
        except InfeasibleError:
            continue
        if least is None or again < least:
            best, least = candidate, again
    return best


def _one_step(log: EvictionLog, events: Sequence[LogEvent]) -> EvictionLog:
    """Cut one step out: what it does not make is outside, and what it leaves is let go at its end."""
    ids: dict[StorageId, StorageId] = {}
    outside: list[bool] = []
    made: list[LogEvent] = []

    def renamed(storages: Sequence[StorageId], *, new: bool) -> tuple[StorageId, ...]:
        for one in storages:
            if one not in ids:
                ids[one] = len(ids)
                outside.append(not new)
        return tuple(ids[one] for one in storages)

    live: set[StorageId] = set()
    for event in events:
        match event:
            case LoggedOp():
                reads, creates = renamed(event.reads, new=False), renamed(event.creates, new=True)
                changed = renamed(event.mutates, new=False)
                live.update(creates)
                ns = event.ns
                again = event.recomputable
                made.append(LoggedOp(event.target, ns, reads, creates, changed, event.temporary, again))
            case Released(storage) if storage in ids and not outside[ids[storage]]:
                live.discard(ids[storage])
                made.append(Released(ids[storage]))
    sizes = tuple(log.sizes[one] for one in ids)
    made += [Released(one) for one in sorted(live)]
    return EvictionLog(log.name, sizes, tuple(outside), (*made, StepEnd()))


def _repeated(step: EvictionLog) -> EvictionLog:
    """Let a step follow itself, on the same storages outside."""
    count = len(step.sizes)
    new = [one for one in range(count) if not step.outside[one]]
    ids = list(range(count))
    for at, one in enumerate(new):
        ids[one] = count + at
    second: list[LogEvent] = []
    for event in step.events:
        match event:
            case LoggedOp():
                reads, creates, changed = (
                    tuple(ids[one] for one in row) for row in (event.reads, event.creates, event.mutates)
                )
                second.append(replace(event, reads=reads, creates=creates, mutates=changed))
            case Released(storage):
                second.append(Released(ids[storage]))
            case StepEnd():
                second.append(event)
    sizes = (*step.sizes, *(step.sizes[one] for one in new))
    outside = (*step.outside, *(False for _ in new))
    return EvictionLog(step.name, sizes, outside, (*step.events, *second))


@dataclass(slots=True, eq=False)
class _Producer:
    """How storages are made: an op, the ids that it reads, the ids of its results.

    Attributes:
        op: what runs.
        inputs: ids; for an op in place the old version is among them.
        outputs: ids.
        old: the id whose bytes an op in place changes, or -1.
    """

    op: LoggedOp
    inputs: list[int]
    outputs: list[int]
    old: int = -1


@dataclass(slots=True, eq=False)
class _Frame:
    """A producer that waits for its inputs.

    Attributes:
        producer: what runs when all of them are pinned.
        target: the id that is wanted; -1 for an op that runs for the first time.
        pinned: inputs that are pinned.
        tries: how often it had to start over as its inputs were evicted again.
    """

    producer: _Producer
    target: int
    pinned: set[int] = field(default_factory=set)
    tries: int = 0


class _Run:
    """The state of a simulated run."""

    def __init__(self, log: EvictionLog, size: Bytes, policy: Policy, *, decisions: bool) -> None:
        self.log, self.policy, self.size = log, policy, size
        self.arena = EvictionArena(size, policy, log=decisions, simulated=True)
        self.ids: dict[StorageId, int] = {}
        self.producers: dict[int, _Producer] = {}
        self.readers: dict[int, list[_Producer]] = {}
        self.held: set[int] = set()
        self.pins: dict[int, int] = {}
        self.stack: list[_Frame] = []
        self.steps: list[Nanoseconds] = []
        self.again_ns = self.again_ops = 0
        self.forecaster: Forecaster | None = None
        if policy.forecasts:
            self.forecaster = Forecaster(self.arena, lambda: self.plan(COOP))
        self.limit = MOST_AGAIN * max(1, log.operator_ns)

    # --- events

    def plan(self, policy: Policy) -> None:
        """Go on under another policy."""
        self.policy = policy
        self.arena.set_policy(policy)

    def op(self, op: LoggedOp) -> None:
        arena = self.arena
        inputs = [self._id(one) for one in op.reads]
        saved: list[int] = []
        for one in [self.ids[one] for one in op.mutates]:
            while risk := arena.at_risk(one):
                self._execute(self._frame(risk[0]))
                self._pin(risk[0])  # what is restored for the next one must not cost this one
                saved.append(risk[0])
        self._execute(_Frame(_Producer(op, inputs, []), -1))
        for one in saved:
            self._unpin(one)
        if self.forecaster is not None:
            reads = [self.ids[one] for one in (*op.reads, *op.mutates)]
            sizes = tuple(self.log.sizes[one] for one in (*op.reads, *op.creates))
            self.forecaster.op((op.target, sizes), reads, [self.ids[one] for one in op.creates])
            if any(self.log.outside[one] for one in op.mutates) and not op.creates:
                self.forecaster.settled()

    def release(self, storage: StorageId) -> None:
        one = self.ids.pop(storage, -1)
        if one >= 0:
            self.held.discard(one)
            if self.forecaster is not None:
                self.forecaster.released(one)
            self.arena.release(one)
            self._forget()

    def end_step(self) -> None:
        self.steps.append(self.again_ns - sum(self.steps))
        self.arena.take_victims()
        if self.forecaster is not None:
            self.forecaster.end_step()

    # --- making inputs resident

    def _execute(self, frame: _Frame) -> None:
        """Run a frame, and before it whatever makes its inputs resident."""
        base = len(self.stack)
        self.stack.append(frame)
        while len(self.stack) > base:
            top = self.stack[-1]
            missing = self._pin_resident(top)
            if missing >= 0:
                self.stack.append(self._frame(missing))
                continue
            (self._run_first if top.target < 0 else self._run_again)(top)
            for one in top.pinned:
                self._unpin(one)
            self.stack.pop()
        self._forget()

    def _frame(self, target: int) -> _Frame:
        return _Frame(self.producers[target], target)

    def _pin_resident(self, frame: _Frame) -> int:
        """Pin every input that is resident; return the first that is not, or -1."""
        missing = -1
        for one in frame.producer.inputs:
            if one in frame.pinned:
                continue
            if self.arena.resident(one):
                self._pin(one)
                frame.pinned.add(one)
            elif missing < 0:
                missing = one
        return missing

    def _pin(self, one: int) -> None:
        self.pins[one] = self.pins.get(one, 0) + 1
        self.arena.pin(one)

    def _unpin(self, one: int) -> None:
        self.pins[one] -= 1
        self.arena.unpin(one)

    # --- running

    def _run_first(self, frame: _Frame) -> None:
        op, arena = frame.producer.op, self.arena
        inputs = frame.producer.inputs
        copied = [] if self.policy.in_place else [one for one in op.mutates if not self.log.outside[one]]
        sizes = [self.log.sizes[one] for one in (*op.creates, *copied)]
        fresh = self._allocate(op, sizes, again=False)
        arena.advance(op.ns)
        for one in inputs:
            arena.touch(one)
        changed = [self.ids[one] for one in op.mutates]
        results = fresh[: len(op.creates)]
        self._made(op, results, [one for one in inputs if one not in changed] if op.creates else inputs)
        self.ids.update(zip(op.creates, results, strict=True))
        for one, copy in zip(copied, fresh[len(op.creates) :], strict=True):
            self._made(op, [copy], inputs)
            frame.pinned.discard(self.ids[one])
            self._unpin(self.ids[one])
            self.release(one)
            self.ids[one] = copy
        for storage in op.mutates:
            if storage not in copied:
                self._changed(op, self.ids[storage], [one for one in inputs if one not in changed])

    def _made(self, op: LoggedOp, results: list[int], parents: list[int]) -> None:
        producer = _Producer(op, parents, results)
        for one in results:
            self.held.add(one)
            if op.recomputable:
                self.arena.produced(one, op.ns, parents)
                self.producers[one] = producer
            else:
                self.arena.settle(one)
        if op.recomputable and results:
            for one in parents:
                self.readers.setdefault(one, []).append(producer)

    def _changed(self, op: LoggedOp, one: int, others: list[int]) -> None:
        """Record an op in place; whoever read the old version refers to its record from now on."""
        old = self.arena.mutated(one, op.ns, others)
        if not op.recomputable:
            self.arena.settle(one)
        readers = self.readers.pop(one, [])
        former = self.producers.pop(one, None)
        if old < 0:
            return
        for producer in readers:
            producer.inputs[:] = [old if other == one else other for other in producer.inputs]
        if former is not None:
            former.outputs[:] = [old if other == one else other for other in former.outputs]
            if former.old == one:
                former.old = old
            self.producers[old] = former
        self.readers[old] = readers
        producer = _Producer(op, [old, *others], [one], old)
        self.producers[one] = producer
        for other in producer.inputs:
            self.readers.setdefault(other, []).append(producer)

    def _run_again(self, frame: _Frame) -> None:
        producer, arena = frame.producer, self.arena
        op, old = producer.op, producer.old
        self.again_ns += op.ns
        self.again_ops += 1
        if self.again_ns > self.limit:
            self._refuse(op, f"what runs again took {MOST_AGAIN} times the time of the log")
        in_place = old >= 0 and self.pins[old] == 1
        sizes = [] if in_place else [self.log.sizes[one] for one in self._results(producer)]
        fresh = self._allocate(op, sizes, again=True)
        arena.advance(op.ns, again=True)
        for one in producer.inputs:
            arena.touch(one)
        if in_place:
            arena.restored(frame.target, old)
            return
        for one, made in zip(producer.outputs, fresh, strict=True):
            if self._wanted(one, producer, frame.target):
                arena.restored(one, made)
            else:
                arena.release(made)

    def _results(self, producer: _Producer) -> tuple[StorageId, ...]:
        """List the storages of the log that a producer fills: all that its op creates, or the one changed."""
        return producer.op.creates or producer.op.mutates[: len(producer.outputs)]

    def _wanted(self, one: int, producer: _Producer, target: int) -> bool:
        if self.producers.get(one) is not producer or self.arena.resident(one):
            return False
        return one == target or one in self.held or any(one in f.producer.inputs for f in self.stack)

    def _allocate(self, op: LoggedOp, sizes: list[Bytes], *, again: bool) -> list[int]:
        temporary = [op.temporary] if op.temporary else []
        together = sum(round_up(max(1, size)) for size in (*temporary, *sizes))
        self.arena.begin_op(op.ns, together, unrecomputable=not op.recomputable, again=again)
        placed = [self._place(op, size) for size in (*temporary, *sizes)]
        for one in placed[: len(temporary)]:
            self.arena.release(one)
        return placed[len(temporary) :]

    def _place(self, op: LoggedOp, size: Bytes) -> int:
        one = self.arena.place(size)
        if self.policy.soft_pins:
            for frame in self.stack[:-1]:
                if one >= 0:
                    break
                if frame.pinned:
                    frame.tries += 1
                    if frame.tries > 8:
                        continue
                    for pinned in frame.pinned:
                        self._unpin(pinned)
                    frame.pinned.clear()
                    one = self.arena.place(size)
        if one < 0:
            self._refuse(op, f"{format_bytes(size)} fit nowhere")
        return one

    def _refuse(self, op: LoggedOp, why: str) -> None:
        pieces = self.arena.pieces()
        walls = sum(piece.bytes for piece in pieces if piece.owner >= 0 and piece.wall)
        raise InfeasibleError(
            f"{self.log.name}: {op.target}: {why} in an arena of {format_bytes(self.size)} under the policy "
            f"{self.policy.name}; {format_bytes(walls)} are pinned. Give it more bytes.",
            asked=self.size,
            op=op.target,
        )

    def _forget(self) -> None:
        for one in self.arena.take_forgotten():
            producer = self.producers.pop(one, None)
            self.readers.pop(one, None)
            self.pins.pop(one, None)
            if producer is not None:
                producer.outputs[:] = [-1 if other == one else other for other in producer.outputs]
                for other in producer.inputs:
                    readers = self.readers.get(other)
                    if (
                        readers is not None
                        and producer in readers
                        and not any(self.producers.get(result) is producer for result in producer.outputs)
                    ):
                        readers.remove(producer)

    def _id(self, storage: StorageId) -> int:
        if storage not in self.ids:
            self.ids[storage] = self.arena.outside(self.log.sizes[storage])
            self.held.add(self.ids[storage])
        return self.ids[storage]
