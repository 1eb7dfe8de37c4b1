"""Dynamic Tensor Rematerialization, played offline over the base order.

Idea        Run the ops in order with a bounded number of bytes. Where an op does not fit, evict the
            storage with the least score until it does; where an op reads what is gone, run its producer
            again first, recursively. What is read no more is released at once, and may come back too.
            The score is (own time + time of the evicted neighbourhood) / (bytes * staleness).
Source      Kirisame et al., Dynamic Tensor Rematerialization (ICLR 2021): its scores, its union-find of
            evicted neighbours, its eager eviction; no sampling and no lower size limit
Guarantee   Where it finishes, the live bytes fit; no lookahead, so it may fail where a plan exists,
            and may fail with more bytes where it succeeded with fewer.
Complexity  O(storages) per eviction with eq-classes, O(storages * ops) with exact neighbourhoods
Gaps        Inputs of a recomputation are locked until it ends, as in the original. A storage whose
            producer may not run again is held until nothing can want it.
"""

from dataclasses import dataclass
from typing import Literal

from tightrope.core import Bytes, Graph, Limits, Machine, OpId, Schedule, StepIndex, StorageId
from tightrope.plan.engine import live_limit
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand_in_order
from tightrope_planners.peers.neighbours import Classes, evicted_time
from tightrope_planners.peers.recovery import recovery

DtrScore = Literal["eq", "full", "local", "lru", "size"]


@dataclass(frozen=True, slots=True)
class DtrKnobs:
    """Knobs of the replay.

    Attributes:
        score: ``eq`` = neighbourhood by union-find, ``full`` = exact, ``local`` = own time only,
            ``lru`` = 1 / staleness, ``size`` = 1 / bytes.
        patience: recomputation time at which it is given up, in times of running all that may run again once.
    """

    score: DtrScore = "eq"
    patience: float = 3.0


@dataclass(frozen=True, slots=True)
class DtrRun:
    """Re-runs in the order in which they happen, and whether the ops were done within the limit."""

    pairs: tuple[Pair, ...]
    finished: bool


def dtr(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Play the eviction rule; where it fails, the schedule up to there, then nothing is evicted."""
    del machine, options
    return expand_in_order(graph, dtr_runs(build(graph), live_limit(graph, limits)).pairs)


def dtr_runs(model: Model, limit: Bytes, *, knobs: DtrKnobs | None = None) -> DtrRun:
    """Run the base order within ``limit`` live bytes.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 100),))
        >>> dtr_runs(build(graph), 128)
        DtrRun(pairs=(), finished=True)
    """
    runtime = _Runtime(model, limit, knobs or DtrKnobs())
    for stage in range(len(model.need)):
        runtime.stage(stage)
        if not runtime.finished:
            break
    return DtrRun(tuple(runtime.runs), runtime.finished)


class _Runtime:
    """What is resident, locked and evicted while the ops run."""

    def __init__(self, model: Model, limit: Bytes, knobs: DtrKnobs) -> None:
        self.model, self.limit, self.knobs = model, limit, knobs
        facts = recovery(model)
        self.returns = facts.returns
        self.release = [
            self._last_read(storage) if facts.returns[storage] else facts.wanted[storage]
            for storage in range(len(model.producer))
        ]
        self.classes = Classes(model, facts.returns)
        self.resident: set[StorageId] = set()
        self.bytes: Bytes = 0
        self.locks = [0] * len(model.producer)
        self.used = [0] * len(model.producer)
        self.clock = 0
        self.now: StepIndex = 0
        self.spent = 0
        self.patience = knobs.patience * (1 + sum(model.again_ns))
        self.runs: list[Pair] = []
        self.finished = True

    def _last_read(self, storage: StorageId) -> StepIndex:
        op = self.model.producer[storage]
        return max((t for t, reads in enumerate(self.model.reads) if storage in reads), default=op)

    def stage(self, stage: StepIndex) -> None:
        """Run one op of the base order, and what it needs before."""
        self.now = stage
        reads = self.model.reads[stage]
        self._lock(reads)
        for storage in reads:
            self._bring(storage)
        self._make_room(self.model.need[stage])
        self._appear(stage, self._made(stage), self.model.again_ns[stage], reads)
        self._unlock(reads)
        self._drop_released(tuple(self.resident), ended=True)

    def _made(self, op: OpId) -> tuple[StorageId, ...]:
        return self.classes.created[op]

    def _bring(self, storage: StorageId) -> None:
        """Run again what a storage needs, depth first, its inputs locked; then its producer.

        A stack of our own, because chains may be deeper than Python's.
        """
        if storage in self.resident:
            return
        waiting: list[tuple[OpId, bool]] = [(self.model.producer[storage], False)]
        while waiting and self.finished:
            op, ready = waiting.pop()
            reads = self.model.again_reads[op]
            if not ready and self.resident.issuperset(self.model.again_creates[op]):
                continue  # another reader had it made meanwhile
            if not ready:
                self._lock(reads)
                waiting.append((op, True))
                missing = dict.fromkeys(self.model.producer[s] for s in reads if s not in self.resident)
                waiting += [(producer, False) for producer in reversed(missing)]
                continue
            if not self.resident.issuperset(self.model.again_creates[op]):
                self._again(op, reads)
            self._unlock(reads)
            self._drop_released(reads)

    def _again(self, op: OpId, reads: tuple[StorageId, ...]) -> None:
        self._make_room(self.model.again_need[op])
        self.runs.append((self.now, op))
        self.spent += self.model.again_ns[op]
        self.finished = self.finished and self.spent <= self.patience
        self._appear(op, self.model.again_creates[op], self.model.again_ns[op], reads)

    def _appear(self, op: OpId, made: tuple[StorageId, ...], ns: int, reads: tuple[StorageId, ...]) -> None:
        self.clock += max(ns, 1)
        for storage in (*made, *reads):
            self.used[storage] = self.clock
        for storage in made:
            if storage not in self.resident:
                self.resident.add(storage)
                self.bytes += self.model.size[storage]
                self.classes.restore(storage)

    def _lock(self, storages: tuple[StorageId, ...]) -> None:
        for storage in storages:
            self.locks[storage] += 1

    def _unlock(self, storages: tuple[StorageId, ...]) -> None:
        for storage in storages:
            self.locks[storage] -= 1

    def _drop_released(self, storages: tuple[StorageId, ...], *, ended: bool = False) -> None:
        """Release what is read no more; until a stage ended, a re-run may still read what never returns."""
        for storage in storages:
            free = storage in self.resident and not self.locks[storage] and (ended or self.returns[storage])
            if free and self.release[storage] <= self.now:
                self._evict(storage)

    def _evict(self, storage: StorageId) -> None:
        self.resident.discard(storage)
        self.bytes -= self.model.size[storage]
        self.classes.evict(storage)

    def _make_room(self, need: Bytes) -> None:
        while self.finished and self.bytes + need > self.limit:
            candidates = [
                s for s in self.resident if self.returns[s] and not self.locks[s] and self.model.size[s]
            ]
            if not candidates:
                self.finished = False
                break
            self._evict(min(candidates, key=lambda storage: (self._score(storage), storage)))

    def _score(self, storage: StorageId) -> float:
        size, age = self.model.size[storage], self.clock - self.used[storage] + 1
        own = self.model.again_ns[self.model.producer[storage]]
        match self.knobs.score:
            case "lru":
                return 1 / age
            case "size":
                return 1 / size
            case "local":
                return own / (size * age)
            case "full":
                return (own + evicted_time(self.classes, storage)) / (size * age)
            case "eq":
                return (own + self.classes.neighbourhood(storage)) / (size * age)
