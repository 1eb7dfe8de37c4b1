"""The planner's view of a graph: what each op needs, reads and makes, and when it may run again.

A *pair* ``(t, u)`` says: run op ``u`` again (or its variant, where it has one) just before the first
run of op ``t``. A plan is a set of pairs. Storages that end the step allocated, or that live outside
the arena, are *pinned*: their first copy stays until its last reader, later copies are dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tightrope.core import (
    Allocation,
    Bytes,
    Compute,
    Graph,
    Nanoseconds,
    Op,
    OpId,
    Schedule,
    StepIndex,
    Storage,
    StorageId,
    TightropeError,
    round_up,
)

Pair: TypeAlias = tuple[StepIndex, OpId]


@dataclass(frozen=True, slots=True)
class Model:
    """Flat tables over ops (first runs and re-runs) and storages.

    Attributes:
        need: bytes that the first run of each op allocates at its peak, inside the arena.
        again_need: the same for its re-run.
        again_ns: time of its re-run.
        window: first and last stage before which the op may run again; empty when last < first.
        away: stages ``[start, end)`` of the window that belong to other calls of the model, where it may
            not; see `tightrope.core.Part`.
        reads: op-made storages that the first run reads.
        again_reads: op-made storages that the re-run reads.
        again_creates: storages that a re-run makes anew, pinned ones left out.
        producer: op that makes each storage, -1 for the caller's.
        size: arena bytes of each storage, 0 for those outside.
        pinned: whether the first copy stays until its last reader.
        at_end: whether the storage is still needed after the last op.
        over: storage that the first run of each op may write its result over, -1 = none: where this is the
            last reader of a copy made in the same part, the run takes the storage's bytes less.
        again_over: the same for its re-run.
        part: that each op belongs to.
    """

    need: tuple[Bytes, ...]
    again_need: tuple[Bytes, ...]
    again_ns: tuple[Nanoseconds, ...]
    window: tuple[tuple[StepIndex, StepIndex], ...]
    away: tuple[tuple[StepIndex, StepIndex], ...]
    reads: tuple[tuple[StorageId, ...], ...]
    again_reads: tuple[tuple[StorageId, ...], ...]
    again_creates: tuple[tuple[StorageId, ...], ...]
    producer: tuple[OpId, ...]
    size: tuple[Bytes, ...]
    pinned: tuple[bool, ...]
    at_end: tuple[bool, ...]
    over: tuple[StorageId, ...]
    again_over: tuple[StorageId, ...]
    part: tuple[int, ...]

    def allowed(self, pair: Pair) -> bool:
        """Tell whether op ``pair[1]`` may run again just before op ``pair[0]``."""
        first, last = self.window[pair[1]]
        start, end = self.away[pair[1]]
        return first <= pair[0] <= last and not start <= pair[0] < end

    def cost(self, pairs: Iterable[Pair]) -> Nanoseconds:
        """Sum the time of the re-runs."""
        return sum(self.again_ns[op] for _, op in pairs)

    def lasting(self, stage: StepIndex) -> Bytes:
        """Sum the storages that first runs before ``stage`` make and that stay to the end."""
        ends = zip(self.size, self.at_end, self.producer, strict=True)
        return sum(size for size, at_end, producer in ends if at_end and producer < stage)


def charged(graph: Graph, allocation: Allocation) -> Bytes:
    """Bytes that an allocation takes: what it asks for, rounded up to its alignment."""
    return round_up(allocation.bytes, graph.alignment)


def event_peak(graph: Graph, allocations: Iterable[Allocation]) -> Bytes:
    """Largest number of bytes that one run holds of its own allocations."""
    change: dict[int, Bytes] = {}
    for allocation in allocations:
        size = charged(graph, allocation)
        change[allocation.start] = change.get(allocation.start, 0) + size
        if allocation.end >= 0:
            change[allocation.end] = change.get(allocation.end, 0) - size
    live = peak = 0
    for tick in sorted(change):
        live += change[tick]
        peak = max(peak, live)
    return peak


def least_need(graph: Graph, op: Op) -> Bytes:
    """Bytes that one run holds of its own; its first result written over an input where it may be."""
    written = op.creates[0] if op.over >= 0 else -1
    return event_peak(graph, (a for a in graph.allocations(op) if a.storage < 0 or a.storage != written))


def again(graph: Graph, op: OpId) -> Op:
    """Look up what runs when base op ``op`` is recomputed: its variant, or itself."""
    base = graph.ops[op]
    return graph.op(base.variant) if base.variant >= 0 else base


def producers(graph: Graph) -> tuple[OpId, ...]:
    """Find the base op that makes each storage, -1 for storages of the caller."""
    made = [-1] * len(graph.storages)
    for op in graph.ops:
        for storage in op.creates:
            made[storage] = op.id
    return tuple(made)


def build(graph: Graph) -> Model:
    """Read a graph into tables.

    Raises:
        TightropeError: an op reads a storage that neither the caller nor an earlier op makes.
    """
    producer = producers(graph)
    for op in graph.ops:
        for storage in op.reads:
            if not graph.storages[storage].external and not 0 <= producer[storage] < op.id:
                raise TightropeError(
                    f"op {op.id} {op.describe()} reads storage {storage}, which nothing made before it; "
                    "the graph is not in base order. Capture it again."
                )
    reruns = tuple(again(graph, op.id) for op in graph.ops)
    pinned = tuple(storage.resident_at_end or storage.outside for storage in graph.storages)
    return Model(
        need=tuple(_need(graph, op) for op in graph.ops),
        again_need=tuple(_need(graph, op) for op in reruns),
        again_ns=tuple(op.ns for op in reruns),
        window=_windows(graph, reruns, producer),
        away=tuple(graph.elsewhere(op.id) for op in graph.ops),
        reads=tuple(tuple(s for s in op.reads if producer[s] >= 0) for op in graph.ops),
        again_reads=tuple(tuple(s for s in op.reads if producer[s] >= 0) for op in reruns),
        again_creates=tuple(tuple(s for s in op.creates if not pinned[s]) for op in reruns),
        producer=producer,
        size=tuple(_size(storage) for storage in graph.storages),
        pinned=pinned,
        at_end=tuple(s.resident_at_end and producer[s.id] >= 0 for s in graph.storages),
        over=tuple(op.over for op in graph.ops),
        again_over=tuple(op.over for op in reruns),
        part=tuple(graph.part_of(op.id) for op in graph.ops),
    )


def _need(graph: Graph, op: Op) -> Bytes:
    inside = (a for a in graph.allocations(op) if a.storage < 0 or not graph.storages[a.storage].outside)
    return event_peak(graph, inside)


def _size(storage: Storage) -> Bytes:
    return 0 if storage.external or storage.outside else storage.size


def _windows(
    graph: Graph, reruns: tuple[Op, ...], producer: tuple[OpId, ...]
) -> tuple[tuple[StepIndex, StepIndex], ...]:
    """Bound the stages of each re-run: its inputs exist, and nothing that it touches has changed since."""
    changed: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.mutates:
            changed.setdefault(storage, []).append(op.id)
    windows: list[tuple[StepIndex, StepIndex]] = []
    for op, rerun in zip(graph.ops, reruns, strict=True):
        touched = {*op.creates, *rerun.reads, *rerun.creates}
        later = [at for storage in touched for at in changed.get(storage, ()) if at > op.id]
        earliest = max((op.id, *(producer[storage] for storage in rerun.reads))) + 1
        latest = min((len(graph.ops) - 1, *later)) if op.recomputable else -1
        windows.append((earliest, latest))
    return tuple(windows)


def pairs_of(graph: Graph, schedule: Schedule) -> tuple[Pair, ...]:
    """Read the set of pairs back from a schedule that keeps the base order.

    Raises:
        TightropeError: the schedule runs an op again after the last first run, or not through its variant.
    """
    base_of = {op.variant: op.id for op in graph.ops if op.variant >= 0}
    pairs: list[Pair] = []
    waiting: list[OpId] = []
    seen = 0
    for step in schedule.steps:
        if not isinstance(step, Compute):
            continue
        if step.op == seen and seen < len(graph.ops):
            pairs.extend((seen, op) for op in sorted(set(waiting)))
            waiting.clear()
            seen += 1
        else:
            waiting.append(base_of.get(step.op, step.op))
    if waiting or seen != len(graph.ops):
        raise TightropeError(
            f"the schedule runs {seen} of {len(graph.ops)} ops in base order; it is not a plan of pairs."
        )
    return tuple(pairs)


def made_by(model: Model) -> tuple[tuple[StorageId, ...], ...]:
    """List, per op, the storages that its first run makes."""
    created: list[list[StorageId]] = [[] for _ in model.need]
    for storage, op in enumerate(model.producer):
        if op >= 0:
            created[op].append(storage)
    return tuple(map(tuple, created))
