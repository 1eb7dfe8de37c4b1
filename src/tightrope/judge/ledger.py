"""The book of allocations that a schedule makes.

Time counts allocations and releases, one tick each. Inside an op they follow the op's own list;
where a release and an allocation share a tick, the release comes first (lifetimes are half-open).
"""

from dataclasses import dataclass

from tightrope.core import ALIGNMENT, Bytes, Graph, Op, StorageId, round_up


@dataclass(frozen=True, slots=True)
class Interval:
    """One allocation of a schedule, alive in the ticks ``[start, end)``.

    Attributes:
        size: bytes charged, rounded up to the alignment.
        start: tick at which it is allocated.
        end: tick at which it is released; the number of ticks where it outlives the schedule.
        storage: what it holds, -1 for a temporary of an op.
        alignment: its address is a multiple of this.
        outside: served outside the arena.
    """

    size: Bytes
    start: int
    end: int
    storage: StorageId = -1
    alignment: Bytes = ALIGNMENT
    outside: bool = False


class Ledger:
    """Allocations so far, bytes live now, and the live bytes after every tick."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opened: list[Interval] = []
        self.ends: list[int] = []
        self.profile: list[Bytes] = []
        self.live = self.outside = self.outside_peak = 0

    def allocate(self, size: Bytes, storage: StorageId) -> int:
        """Open an allocation and return its position in allocation order."""
        if storage >= 0:
            made = self.graph.storages[storage]
            interval = Interval(made.size, len(self.profile), -1, storage, made.alignment, made.outside)
        else:
            interval = Interval(round_up(size), len(self.profile), -1)
        self.opened.append(interval)
        self.ends.append(-1)
        self._charge(interval, interval.size)
        return len(self.opened) - 1

    def release(self, position: int) -> None:
        """Close the allocation at ``position``."""
        self.ends[position] = len(self.profile)
        self._charge(self.opened[position], -self.opened[position].size)

    def run(self, op: Op) -> dict[StorageId, int]:
        """Book the allocations of one run of ``op``; return where each created storage stands."""
        allocations = self.graph.allocations(op)
        created: dict[StorageId, int] = {}
        open_now: dict[int, int] = {}
        for begins, number in op_events(self.graph, op):
            if not begins:
                self.release(open_now[number])
                continue
            open_now[number] = self.allocate(allocations[number].bytes, allocations[number].storage)
            if allocations[number].storage >= 0:
                created[allocations[number].storage] = open_now[number]
        return created

    def intervals(self) -> tuple[Interval, ...]:
        """List all allocations in the order in which they began."""
        ticks = len(self.profile)
        return tuple(
            Interval(i.size, i.start, end if end >= 0 else ticks, i.storage, i.alignment, i.outside)
            for i, end in zip(self.opened, self.ends, strict=True)
        )

    def _charge(self, interval: Interval, change: Bytes) -> None:
        self.live += change
        self.profile.append(self.live)
        if interval.outside:
            self.outside += change
            self.outside_peak = max(self.outside_peak, self.outside)


def op_events(graph: Graph, op: Op) -> list[tuple[bool, int]]:
    """List what happens inside one run of ``op``: (whether it begins, number of the allocation)."""
    ticks: list[tuple[int, bool, int]] = []
    for number, allocation in enumerate(graph.allocations(op)):
        ticks.append((allocation.start, True, number))
        if allocation.end >= 0:
            ticks.append((allocation.end, False, number))
    return [(begins, number) for _, begins, number in sorted(ticks)]


def op_need(graph: Graph, op: Op) -> Bytes:
    """Largest number of bytes that one run of ``op`` holds of its own allocations."""
    ledger = Ledger(graph)
    ledger.run(op)
    return max(ledger.profile, default=0)
