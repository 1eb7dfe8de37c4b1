"""What is live while the judge walks an executable: buffers, what they hold, and the bytes at every tick."""

from typing import NoReturn

from tightrope.core import (
    Alloc,
    Bytes,
    Executable,
    Graph,
    JudgeError,
    Machine,
    Nanoseconds,
    Op,
    StorageId,
)
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER
from tightrope.judge.transfers import Transfers
from tightrope.judge.versions import base_versions


class Books:
    """State of one walk, kept instruction by instruction."""

    def __init__(self, graph: Graph, executable: Executable, machine: Machine | None) -> None:
        self.graph, self.executable = graph, executable
        self.moves = Transfers(graph, machine, placed=executable.placed)
        self.versions = base_versions(graph)
        self.allocs: list[Alloc] = []
        self.open: dict[int, int] = {}  # live buffer -> position of the last instruction that touched it
        self.live: dict[StorageId, int] = {}  # storage -> its live buffer in fast memory
        self.version: dict[int, int] = {}
        self.holds: dict[int, StorageId] = {}  # live buffer -> storage in it, -1 = a temporary
        self.began: dict[int, int] = {}  # buffer -> part
        self.copies = [0] * len(graph.storages)
        self.caller: dict[StorageId, int] = {s.id: 0 for s in graph.storages if s.external and not s.home}
        self.homes: dict[
            StorageId, int
        ] = {}  # storage -> the buffer that the caller holds it in, in its home
        self.values = [0] * len(graph.storages)  # values inside fused stretches
        self.unread: list[int] = []  # made by the last run beside a live copy: not to be kept
        self.rows: list[tuple[Alloc, int, Bytes]] = []
        self.ends: dict[int, int] = {}
        self.row_of: dict[int, int] = {}
        self.profile: list[Bytes] = []
        self.held = self.outside = self.outside_peak = 0
        self.announced: set[int] = set()  # buffers that the caller got, or got back, in the present part
        self.next_base = self.part = 0
        self.inside = self.over = False
        self.computing: Nanoseconds = 0
        self.position = self.last = self.released = -1
        self.base_of = {op.variant: op for op in graph.ops if op.variant >= 0}
        self.op: Op | None = None  # that runs now

    def _open(self, alloc: Alloc) -> None:
        if alloc.buffer != len(self.allocs):
            self._fail(f"allocates buffer {alloc.buffer}; the next one is {len(self.allocs)}")
        if alloc.storage >= len(self.graph.storages):
            self._fail(f"allocates storage {alloc.storage}; the graph has {len(self.graph.storages)}")
        if alloc.storage >= 0 and alloc.bytes != self.graph.storages[alloc.storage].bytes:
            self._fail(
                f"allocates {alloc.bytes} bytes for {self._name(alloc.storage)} of "
                f"{self.graph.storages[alloc.storage].bytes}"
            )
        if alloc.offset != -1 and ARENA != alloc.space < SLOWER:
            self._fail(f"gives buffer {alloc.buffer} an address in space {alloc.space}, which has none")
        self.allocs.append(alloc)
        self.open[alloc.buffer] = self.position
        self.holds[alloc.buffer], self.began[alloc.buffer] = alloc.storage, self.part
        if alloc.space in (ARENA, HEAP):
            self.row_of[alloc.buffer] = len(self.rows)
            size = self.executable.charged(alloc)
            if alloc.storage >= 0:
                self.copies[alloc.storage] += 1
            self.rows.append((alloc, len(self.profile), size))
            self._charge(alloc, size)

    def _close(self, buffer: int) -> None:
        alloc = self.allocs[buffer]
        del self.open[buffer]
        row = self.row_of.get(buffer, -1)
        if row >= 0:
            self.ends[row] = len(self.profile)
            self._charge(alloc, -self.rows[row][2])
        elif alloc.space >= SLOWER:
            self.moves.release(alloc)

    def _charge(self, alloc: Alloc, size: Bytes) -> None:
        self.held += size
        self.profile.append(self.held)
        if alloc.space == HEAP:
            self.outside += size
            self.outside_peak = max(self.outside_peak, self.outside)

    def _alloc(self, alloc: Alloc) -> None:
        if alloc.space == CALLER:
            if self.inside or alloc.storage not in self.caller or alloc.storage in self.live:
                self._fail(f"the caller cannot bring storage {alloc.storage} here")
            self._open(alloc)
            self.live[alloc.storage] = alloc.buffer
            self.version[alloc.buffer] = 0
            return
        if alloc.storage >= 0 and not self.inside and self._home_space(alloc.storage) == alloc.space:
            if alloc.storage in self.homes:
                self._fail(f"the caller cannot bring storage {alloc.storage} here")
            self._checked(lambda: self.moves.reserve(alloc))
            self._open(alloc)
            self.homes[alloc.storage] = alloc.buffer
            self.moves.contents[alloc.buffer] = 0
            return
        if not self.inside or alloc.storage < 0:
            self._fail("allocates what no kernel makes and no copy fills")
        if not (alloc.space == ARENA or SLOWER <= alloc.space < len(self.executable.spaces)):
            self._fail(f"allocates in space {alloc.space}, where copies between tiers do not go")
        if (
            self.graph.storages[alloc.storage].external
            and (alloc.space != ARENA or not self.graph.storages[alloc.storage].home)
        ) or self.graph.storages[alloc.storage].outside:
            self._fail(f"moves {self._name(alloc.storage)}, which belongs to the caller, between tiers")
        if alloc.space == ARENA:
            if alloc.storage in self.live:
                self._fail(f"pages in a second live copy of {self._name(alloc.storage)}")
            self.live[alloc.storage] = alloc.buffer
        else:
            self._checked(lambda: self.moves.reserve(alloc))
        self._open(alloc)

    def _home_space(self, storage: StorageId) -> int:
        """The space of the slower tier that the caller holds a storage in; `CALLER` where it is none."""
        found = self.graph.storages[storage]
        return SLOWER + found.home - 1 if found.external and found.home else CALLER

    def _release(self, buffer: int) -> None:
        if buffer not in self.open:
            self._fail(f"releases buffer {buffer}, which is not live")
        alloc, storage = self.allocs[buffer], self.holds[buffer]
        what = self._name(storage) if storage >= 0 else f"buffer {buffer}"
        if alloc.space == CALLER or self.homes.get(storage) == buffer:
            self._fail(f"releases {what}, which belongs to the caller")
        if buffer in self.announced:
            self._fail(f"releases {what}, which was announced")
        if self.moves.moving(buffer, inwards_only=False):
            self._fail(f"releases {what} while a copy of it is in flight")
        if self.open[buffer] != self.last or buffer < self.released:
            self._fail(f"releases {what} at another place than right after its last use, in ascending order")
        self.released = buffer
        dropped = buffer in self.unread
        if dropped:
            self.unread.remove(buffer)
        elif alloc.space < SLOWER and self.graph.storages[storage].resident_at_end:
            self._fail(f"releases {what}, which must stay to the end")
        if alloc.space < SLOWER and not dropped:
            del self.live[storage]
        self._close(buffer)

    def _spend(self, ns: Nanoseconds) -> None:
        self.computing += ns
        self.moves.now += ns

    def _name(self, storage: StorageId) -> str:
        label = self.graph.storages[storage].label
        return f"storage {storage}" + (f" ({label})" if label else "")

    def _checked(self, check: object) -> None:
        try:
            check()  # type: ignore[operator]
        except JudgeError as error:
            self._fail(str(error))

    def _fail(self, what: str) -> NoReturn:
        at = f"instruction {self.position}" if self.position >= 0 else "end"
        at += f", op {self.op.id} {self.op.describe()}" if self.op is not None else ""
        raise JudgeError(f"executable, {at}: {what}.")
