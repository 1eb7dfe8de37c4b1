"""A log that runs in an arena: ops take their logged time and no memory.

Idea       Every op makes its inputs resident (depth first, pinned), places its results, and evicts by the
           policy where nothing fits. What runs again is counted in logged ns, so noise decides nothing.
Source     The loop of DTR (ICLR 2021, simulator) and Coop (NeurIPS 2023), on addresses.
Guarantee  Deterministic. The arena is never exceeded; a log that does not fit raises `InfeasibleError`.
Complexity Per op that runs: its storages; per eviction: the pieces of the arena.
Gaps       Temporaries of kernels are one storage per op; the arena holds nothing that kernels keep.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tightrope.core import InfeasibleError
from tightrope.core.units import Bytes, Nanoseconds, StorageId, format_bytes, format_time, round_up
from tightrope.run.evict.policies import COOP, Policy
from tightrope_planners.evict.arena import OwnArena
from tightrope_planners.evict.follow import TINY, Follower, Lookahead, StepRecord
from tightrope_planners.evict.log import EvictionLog, LoggedOp, Released, StepEnd

MOST_AGAIN = 5
"""A run is given up when recomputation takes this many times the time of the ops themselves."""
HELD = "tightrope.held"
"""Target of what makes the storages that a step holds since before: no op of the step."""


@dataclass(slots=True, eq=False)
class LoggedProducer:
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
class WaitingOp:
    """A producer that waits for its inputs.

    Attributes:
        producer: what runs when all of them are pinned.
        target: the id that is wanted; -1 for an op that runs for the first time.
        pinned: inputs that are pinned.
        tries: how often it had to start over as its inputs were evicted again.
    """

    producer: LoggedProducer
    target: int
    pinned: set[int] = field(default_factory=set)
    tries: int = 0


class LogReplay:
    """The state of a simulated run."""

    def __init__(
        self,
        log: EvictionLog,
        size: Bytes,
        policy: Policy,
        *,
        decisions: bool = False,
        fixed: Lookahead | None = None,
        choose: Callable[[StepRecord], Lookahead | None] = lambda _: None,
    ) -> None:
        self.log, self.policy, self.size = log, policy, size
        self.arena = OwnArena(size, policy, log=decisions, simulated=True)
        self.ids: dict[StorageId, int] = {}
        self.storages: dict[int, StorageId] = {}
        self.producers: dict[int, LoggedProducer] = {}
        self.readers: dict[int, list[LoggedProducer]] = {}
        self.held: set[int] = set()
        self.pins: dict[int, int] = {}
        self.informed, self.seen = True, dict[Hashable, Nanoseconds]()
        self.kept: set[int] = set()  # of results of the op that runs again by a plan
        self.olds: dict[int, int] = {}  # of the last op in place on each
        self.stack: list[WaitingOp] = []
        self.steps: list[Nanoseconds] = []
        self.again_ns = self.again_ops = 0
        self.follower: Follower | None = None
        if policy.forecasts or fixed is not None:
            self.follower = Follower(
                *(self.arena, self.describe, self.make_again, self.arena.evict_idle, InfeasibleError),
                *(choose, self.plan, fixed),
            )
            if fixed is None:
                self.plan(COOP)
        self.limit = MOST_AGAIN * max(1, log.operator_ns)

    # --- events

    def play(self) -> None:
        """Run the log.

        Raises:
            InfeasibleError: something fits nowhere, or what runs again takes too long.
        """
        for event in self.log.events:
            match event:
                case LoggedOp():
                    self.op(event)
                case Released(storage):
                    self.release(storage)
                case StepEnd():
                    self.end_step()
        if self.again_ns > sum(self.steps):
            self.end_step()

    def plan(self, policy: Policy) -> None:
        """Go on under another policy."""
        self.policy = policy
        self.arena.set_policy(policy)

    def op(self, op: LoggedOp) -> None:
        """Run an op for the first time; what it reads is made resident before."""
        arena = self.arena
        follower = None if op.target == HELD else self.follower
        if follower is not None:
            sizes = tuple([self.log.sizes[one] for one in (*op.reads, *op.creates)])
            follower.before((op.target, sizes))
        inputs = [self._id(one) for one in op.reads]
        saved: list[int] = []
        for one in [self.ids[one] for one in op.mutates]:
            while risk := arena.at_risk(one):
                self._execute(self._frame(risk[0]))
                self._pin(risk[0])  # what is restored for the next one must not cost this one
                saved.append(risk[0])
        self._execute(WaitingOp(LoggedProducer(op, inputs, []), -1))
        for one in saved:
            self._unpin(one)
        if follower is not None:
            made = [self.ids[one] for one in op.creates]
            changed = [(self.ids[one], self.olds.get(self.ids[one], -1)) for one in op.mutates]
            taken = sum(round_up(max(1, self.log.sizes[one])) for one in op.creates)
            follower.after(
                op.target,
                op.ns,
                taken + (round_up(op.temporary) if op.temporary else 0),
                inputs,
                made,
                changed,
            )

    def describe(self, one: int) -> tuple[Bytes, bool]:
        """Tell the bytes of a storage, and whether it is outside the arena."""
        storage = self.storages[one]
        return self.log.sizes[storage], self.log.outside[storage]

    def make_again(self, ids: list[int]) -> None:
        """Make results of one op resident."""
        self.kept = set(ids)
        try:
            for one in ids:
                if not self.arena.resident(one):
                    self._execute(self._frame(one))
        finally:
            self.kept = set()

    def release(self, storage: StorageId) -> None:
        """Let go of a storage."""
        one = self.ids.pop(storage, -1)
        if one >= 0:
            self.held.discard(one)
            if self.follower is not None:
                self.follower.released(one)
            self.arena.release(one)
            self._forget()

    def end_step(self) -> None:
        """End a training step."""
        self.steps.append(self.again_ns - sum(self.steps))
        self.arena.take_victims()
        if self.follower is not None:
            self.follower.end_step()

    # --- making inputs resident

    def _execute(self, frame: WaitingOp) -> None:
        """Run a frame, and before it whatever makes its inputs resident."""
        base = len(self.stack)
        self.stack.append(frame)
        try:
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
        finally:
            for left in self.stack[base:]:
                for one in left.pinned:
                    self._unpin(one)
            del self.stack[base:]
        self._forget()

    def _frame(self, target: int) -> WaitingOp:
        return WaitingOp(self.producers[target], target)

    def _pin_resident(self, frame: WaitingOp) -> int:
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

    def _run_first(self, frame: WaitingOp) -> None:
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
        self.storages.update(zip(results, op.creates, strict=True))
        self._made(op, results, [one for one in inputs if one not in changed] if op.creates else inputs)
        self.ids.update(zip(op.creates, results, strict=True))
        for one, copy in zip(copied, fresh[len(op.creates) :], strict=True):
            self.storages[copy] = self.storages[self.ids[one]]
            self._made(op, [copy], inputs)
            frame.pinned.discard(self.ids[one])
            self._unpin(self.ids[one])
            self.release(one)
            self.ids[one] = copy
        for storage in op.mutates:
            if storage not in copied:
                self._changed(op, self.ids[storage], [one for one in inputs if one not in changed])

    def _made(self, op: LoggedOp, results: list[int], parents: list[int]) -> None:
        producer = LoggedProducer(op, parents, list(results))
        for at, one in enumerate(results):
            self.held.add(one)
            if op.recomputable and self.log.sizes[self.storages[one]] > TINY:
                self.arena.produced(one, op.ns, parents)
                self.producers[one] = producer
            else:
                self.arena.settle(one)
                producer.outputs[at] = -1
        if op.recomputable and results:
            for one in parents:
                self.readers.setdefault(one, []).append(producer)

    def _changed(self, op: LoggedOp, one: int, others: list[int]) -> None:
        """Record an op in place; whoever read the old version refers to its record from now on."""
        old = self.olds[one] = self.arena.mutated(one, op.ns, others)
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
        producer = LoggedProducer(op, [old, *others], [one], old)
        self.producers[one] = producer
        for other in producer.inputs:
            self.readers.setdefault(other, []).append(producer)

    def _run_again(self, frame: WaitingOp) -> None:
        producer, arena = frame.producer, self.arena
        op, old = producer.op, producer.old
        self.again_ns += op.ns
        self.again_ops += 1
        if self.again_ns > self.limit:
            self._refuse(op, f"what runs again took {format_time(self.again_ns)}")
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

    def _results(self, producer: LoggedProducer) -> tuple[StorageId, ...]:
        """List the storages of the log that a producer fills: all that its op creates, or the one changed."""
        return producer.op.creates or producer.op.mutates[: len(producer.outputs)]

    def _wanted(self, one: int, producer: LoggedProducer, target: int) -> bool:
        if self.producers.get(one) is not producer or self.arena.resident(one):
            return False
        return (
            one == target
            or one in self.held
            or one in self.kept
            or any(one in f.producer.inputs for f in self.stack)
        )

    def _allocate(self, op: LoggedOp, sizes: list[Bytes], *, again: bool) -> list[int]:
        temporary = [op.temporary] if op.temporary else []
        together = sum(round_up(max(1, size)) for size in (*temporary, *sizes))
        key = (op.target, tuple(self.log.sizes[one] for one in op.reads))
        known = op.ns if self.informed or again else self.seen.get(key, -1)
        self.seen[key] = op.ns
        size, largest = (together, max((*temporary, *sizes), default=0)) if known >= 0 else (0, 0)
        self.arena.begin_op(known, size, largest=largest, unrecomputable=not op.recomputable, again=again)
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
            self.olds.pop(one, None)
            if self.follower is not None:
                self.follower.forgotten(one)
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
            self.storages[self.ids[storage]] = storage
        return self.ids[storage]
