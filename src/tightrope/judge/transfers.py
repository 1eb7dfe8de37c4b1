"""Follow copies between memory tiers, and the clocks.

Idea        Keep one clock for the processor and one per copy engine. A copy begins when it is issued
            or when its engine has finished what it was given before, whichever is later; a sync moves
            the processor's clock to the end of the copy.
Guarantee   A walk that passes copies in only what a finished copy left in a slower tier, keeps every
            slower tier within its capacity and no two pages in one place, and leaves neither a copy in
            flight nor one behind. Transfers of one engine never overlap.
Complexity  Pages that are held at once, per copy.
Gaps        A copy takes the tier's nominal rate whatever else runs; the contention between
            computing and copying is not modelled.

    processor | run run run | run .. sync -> | run run |
    engine    |     |=== page out ===|=== page in ===|
              +----------------------------------------+--> ns
"""

from dataclasses import dataclass
from typing import NamedTuple

from tightrope.core import (
    Alloc,
    Bytes,
    Copy,
    Graph,
    JudgeError,
    Machine,
    Nanoseconds,
    StorageId,
    Tier,
    round_up,
)
from tightrope.core.executable import ARENA, SLOWER


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy between tiers.

    Attributes:
        storage: what is copied.
        tier: the slower tier.
        inwards: whether it goes to tier 0.
        start: when it begins, ns since the executable began.
        end: when it is complete.
    """

    storage: StorageId
    tier: int
    inwards: bool
    start: Nanoseconds
    end: Nanoseconds


class _Page(NamedTuple):
    """Where a buffer lies in a slower tier: ``[offset, end)``."""

    tier: int
    offset: Bytes
    end: Bytes


class Transfers:
    """Copies in slower tiers, copies in flight, and the clocks.

    Attributes:
        now: the processor's clock.
        done: every copy so far, in the order of issue.
        flying: target buffer -> source buffer and transfer, of copies that no sync has ended yet.
        contents: version of the storage that each slower buffer holds, once its copy is complete.
        pages: where each live slower buffer lies.
        peak: bytes reserved in each slower tier: the highest address, or the most live bytes without any.
    """

    def __init__(self, graph: Graph, machine: Machine | None, *, placed: bool) -> None:
        self.graph, self.machine, self.placed = graph, machine, placed
        slower = () if machine is None else machine.tiers[1:]
        self.now: Nanoseconds = 0
        self.done: list[Transfer] = []
        self.flying: dict[int, tuple[int, Transfer]] = {}
        self.contents: dict[int, int] = {}
        self.pages: dict[int, _Page] = {}
        self.used: list[Bytes] = [0] * len(slower)
        self.peak: list[Bytes] = [0] * len(slower)
        self._engine_free: dict[int, Nanoseconds] = {}

    def reserve(self, alloc: Alloc) -> None:
        """Open a buffer in a slower tier.

        Raises:
            JudgeError: there is no such tier, it is full, or another page lies there.
        """
        tier = alloc.space - SLOWER + 1
        slow = self._tier(tier)
        size = round_up(alloc.bytes, slow.alignment)
        self.used[tier - 1] += size
        reached = max(self.used[tier - 1], alloc.offset + size if alloc.offset >= 0 else 0)
        self.peak[tier - 1] = max(self.peak[tier - 1], reached)
        if reached > slow.bytes:
            raise JudgeError(f"tier {tier} ({slow.name}) would hold {reached} of its {slow.bytes} bytes")
        self._place(alloc, tier, slow, size)

    def _place(self, alloc: Alloc, tier: int, slow: Tier, size: Bytes) -> None:
        if (alloc.offset >= 0) != self.placed or (self.placed and alloc.offset % slow.alignment):
            raise JudgeError(f"tier {tier} ({slow.name}) has no address {alloc.offset} for a page")
        for other in self.pages.values() if self.placed else ():
            if other.tier == tier and alloc.offset < other.end and other.offset < alloc.offset + size:
                raise JudgeError(
                    f"tier {tier} ({slow.name}) holds another page at [{other.offset}, {other.end}), where "
                    f"buffer {alloc.buffer} would lie at {alloc.offset}"
                )
        self.pages[alloc.buffer] = _Page(tier, alloc.offset, alloc.offset + size)

    def release(self, alloc: Alloc) -> None:
        """Close a buffer in a slower tier."""
        tier = alloc.space - SLOWER + 1
        self.used[tier - 1] -= round_up(alloc.bytes, self._tier(tier).alignment)
        self.pages.pop(alloc.buffer, None)
        self.contents.pop(alloc.buffer, None)

    def begin(self, copy: Copy, source: Alloc, target: Alloc) -> None:
        """Start a copy between buffers of one storage.

        Raises:
            JudgeError: the buffers are not one in each tier, nothing complete is there to be copied
                inwards, one of them is being copied, or the engine is not the tier's.
        """
        inwards = source.space >= SLOWER
        if source.storage != target.storage or {source.space == ARENA, target.space == ARENA} != {
            True,
            False,
        }:
            raise JudgeError(
                f"copies buffer {source.buffer} to buffer {target.buffer}, which hold other things"
            )
        tier = (source if inwards else target).space - SLOWER + 1
        slow = self._tier(tier)
        if inwards and source.buffer not in self.contents:
            raise JudgeError(f"tier {tier} ({slow.name}) holds no finished copy of storage {source.storage}")
        if any({source.buffer, target.buffer} & {t, s} for t, (s, _) in self.flying.items()):
            raise JudgeError(f"a copy of storage {source.storage} is in flight already")
        engine = 0 if not slow.engines else 2 * tier - 1 + (inwards and slow.engines == 2)
        if copy.engine != engine:
            raise JudgeError(
                f"engine {copy.engine} copies; tier {tier} ({slow.name}) has engine {engine} for it"
            )
        start = max(self.now, self._engine_free.get(engine, 0))
        size = self.graph.storages[source.storage].bytes
        end = start + slow.copy_ns(size, inwards=inwards)
        self._engine_free[engine] = end
        self.now = end if engine == 0 else self.now + slow.toll_ns(size)
        transfer = Transfer(source.storage, tier, inwards, start, end)
        self.done.append(transfer)
        if not inwards:
            self.contents.pop(target.buffer, None)
        self.flying[target.buffer] = (source.buffer, transfer)

    def end(self, target: int) -> tuple[int, Transfer]:
        """End the copy in flight into a buffer; return where it came from.

        Raises:
            JudgeError: no copy into it is in flight.
        """
        if target not in self.flying:
            raise JudgeError("no copy into it is in flight")
        source, transfer = self.flying.pop(target)
        self.now = max(self.now, transfer.end)
        return source, transfer

    def moving(self, buffer: int, *, inwards_only: bool) -> Transfer | None:
        """Find the copy in flight that a buffer takes part in."""
        for target, (source, transfer) in self.flying.items():
            if buffer in (target, source) and (transfer.inwards or not inwards_only):
                return transfer
        return None

    def joules(self, computing: Nanoseconds) -> float:
        """Energy of computing for so long and of all copies; 0 without a machine."""
        if self.machine is None:
            return 0.0
        copies = (
            self.machine.tiers[t.tier].copy_joules(self.graph.storages[t.storage].bytes, inwards=t.inwards)
            for t in self.done
        )
        return self.machine.watts * computing * 1e-9 + sum(copies)

    def _tier(self, tier: int) -> Tier:
        if self.machine is None:
            raise JudgeError("copies between tiers cannot be judged without the machine's profile")
        if not 1 <= tier < len(self.machine.tiers):
            raise JudgeError(
                f"there is no slower tier {tier}: machine {self.machine.name!r} has "
                f"{len(self.machine.tiers)} tiers"
            )
        return self.machine.tiers[tier]
