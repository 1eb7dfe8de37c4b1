"""The allocation timeline that a schedule will produce.

Time counts allocations and releases, one tick each. Inside an op they follow ``graph.allocations``;
where a release and an allocation share a tick there, the release comes first. Storages in ``drop``
are released right after the op, a `Free` is one tick. A page-in allocates, the wait after a page-out
releases; copies in slower tiers are not in it.
"""

from collections.abc import Sequence
from itertools import accumulate

from tightrope.core import (
    Buffer,
    Bytes,
    Compute,
    Free,
    Graph,
    Op,
    PageIn,
    PageOut,
    Schedule,
    StorageId,
    TightropeError,
    Trace,
    Wait,
    round_up,
)


def timeline(graph: Graph, schedule: Schedule) -> Trace:
    """Forecast every allocation of a schedule.

    Storages of the caller are not in it; storages outside the arena are.

    Returns:
        Buffers in allocation order, alive in ``[start, end)`` ticks; those that outlive the schedule
        end at ``num_events``. Offsets are -1, and so is ``storage`` for temporaries.

    Raises:
        TightropeError: a step frees what is not live or makes a second live copy.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 100),))
        >>> timeline(graph, Schedule((Compute(0), Free(0)))).buffers
        (Buffer(bytes=100, start=0, end=1, storage=0),)
    """
    tape = _Tape(graph)
    for step in schedule.steps:
        match step:
            case Compute(op, drop):
                tape.compute(graph.op(op), drop)
            case Free(storage, 0):
                tape.release(storage)
            case PageOut(storage):
                tape.leaving.add(storage)
            case PageIn(storage):
                tape.arrive(storage)
            case Wait(storage) if storage in tape.leaving:
                tape.leaving.discard(storage)
                tape.release(storage)
            case Wait() | Free():
                pass
    return tape.trace()


def buffer_sizes(graph: Graph, trace: Trace) -> tuple[Bytes, ...]:
    """List the bytes charged for each buffer of a timeline."""
    return tuple(
        graph.storages[buffer.storage].size if buffer.storage >= 0 else round_up(buffer.bytes)
        for buffer in trace.buffers
    )


def peak_bytes(graph: Graph, trace: Trace) -> Bytes:
    """Find the largest number of bytes charged at once, each storage at its own alignment."""
    return largest_sum(trace, buffer_sizes(graph, trace))


def largest_sum(trace: Trace, sizes: Sequence[Bytes]) -> Bytes:
    """Find the largest sum at one tick of ``sizes``, one per buffer of a timeline."""
    change = [0] * (trace.num_events + 1)
    for buffer, size in zip(trace.buffers, sizes, strict=True):
        change[buffer.start] += size
        change[buffer.end] -= size
    return max(accumulate(change))


def outside_sizes(graph: Graph, trace: Trace) -> tuple[Bytes, ...]:
    """List the bytes that each buffer of a timeline takes outside the arena, 0 for those inside."""
    return tuple(
        size if buffer.storage >= 0 and graph.storages[buffer.storage].outside else 0
        for buffer, size in zip(trace.buffers, buffer_sizes(graph, trace), strict=True)
    )


class _Tape:
    """Buffers so far, and which of them hold the live storages."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tick = 0
        self.rows: list[tuple[Bytes, int, StorageId]] = []
        self.ends: list[int] = []
        self.live: dict[StorageId, int] = {}
        self.leaving: set[StorageId] = set()
        self.events: dict[int, tuple[tuple[bool, int], ...]] = {}

    def compute(self, op: Op, drop: tuple[StorageId, ...]) -> None:
        allocations = self.graph.allocations(op)
        opened: dict[int, int] = {}
        made: dict[StorageId, int] = {}
        for begins, number in self._events(op):
            if begins:
                allocation = allocations[number]
                opened[number] = len(self.rows)
                if allocation.storage >= 0:
                    made[allocation.storage] = len(self.rows)
                self.rows.append(
                    (self._bytes(allocation.bytes, allocation.storage), self.tick, allocation.storage)
                )
                self.ends.append(-1)
            else:
                self.ends[opened[number]] = self.tick
            self.tick += 1
        for storage in drop:
            self._end(made.pop(storage))
        for storage, row in made.items():
            if storage in self.live:
                raise TightropeError(
                    f"op {op.id} {op.describe()} makes a second live copy of storage {storage}."
                )
            self.live[storage] = row

    def arrive(self, storage: StorageId) -> None:
        if storage in self.live:
            raise TightropeError(f"a page-in makes a second live copy of storage {storage}.")
        self.live[storage] = len(self.rows)
        self.rows.append((self._bytes(self.graph.storages[storage].bytes, storage), self.tick, storage))
        self.ends.append(-1)
        self.tick += 1

    def release(self, storage: StorageId) -> None:
        if storage not in self.live:
            raise TightropeError(f"the schedule frees storage {storage}, which is not live.")
        self._end(self.live.pop(storage))

    def trace(self) -> Trace:
        buffers = tuple(
            Buffer(size, start, end if end >= 0 else self.tick, -1, storage)
            for (size, start, storage), end in zip(self.rows, self.ends, strict=True)
        )
        return Trace("forecast", buffers, num_events=self.tick)

    def _end(self, row: int) -> None:
        self.ends[row] = self.tick
        self.tick += 1

    def _bytes(self, asked: Bytes, storage: StorageId) -> Bytes:
        wide = storage >= 0 and self.graph.storages[storage].alignment > 64
        return self.graph.storages[storage].size if wide else asked

    def _events(self, op: Op) -> tuple[tuple[bool, int], ...]:
        if op.id not in self.events:
            ticks: list[tuple[int, bool, int]] = []
            for number, allocation in enumerate(self.graph.allocations(op)):
                ticks.append((allocation.start, True, number))
                if allocation.end >= 0:
                    ticks.append((allocation.end, False, number))
            self.events[op.id] = tuple((begins, number) for _, begins, number in sorted(ticks))
        return self.events[op.id]
