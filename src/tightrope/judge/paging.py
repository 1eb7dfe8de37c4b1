"""Follow the copies of a schedule between memory tiers, and the clock.

Idea        Keep one clock for the processor and one per copy engine. A page-out or page-in begins
            when it is issued or when its engine has finished what it was given before, whichever is
            later; a wait moves the processor's clock to the end of the copy.
Guarantee   A walk that passes pages in only what a finished copy in that tier holds, never reads or
            changes what is still moving, keeps every slower tier within its capacity, and leaves
            neither a copy in flight nor one behind. Windows of one engine never overlap.
Complexity  Constant per step.
Gaps        A copy takes the tier's nominal rate whatever else runs; the contention between
            computing and copying is not modelled.

    processor | op op op | op .. wait -> | op op |
    engine    |     |== page out ==|== page in ==|
              +----------------------------------+--> ns
"""

from dataclasses import dataclass

from tightrope.core import Bytes, JudgeError, Machine, Nanoseconds, Storage, StorageId, Tier, round_up


@dataclass(frozen=True, slots=True)
class Window:
    """One copy between tiers.

    Attributes:
        storage: what is copied.
        tier: the slower tier.
        inwards: whether it goes to tier 0.
        start: when it begins, ns since the schedule began.
        end: when it is complete.
    """

    storage: StorageId
    tier: int
    inwards: bool
    start: Nanoseconds
    end: Nanoseconds


class Tiers:
    """Copies in slower tiers, copies in flight, and the clocks.

    Attributes:
        now: the processor's clock.
        windows: every copy so far, in the order of issue.
        flights: copies that no wait has ended yet.
        peak: largest number of bytes reserved in each slower tier.
    """

    def __init__(self, machine: Machine | None) -> None:
        self.machine = machine
        slower = () if machine is None else machine.tiers[1:]
        self.now: Nanoseconds = 0
        self.windows: list[Window] = []
        self.flights: dict[StorageId, Window] = {}
        self.used: list[Bytes] = [0] * len(slower)
        self.peak: list[Bytes] = [0] * len(slower)
        self._copies: dict[tuple[StorageId, int], int] = {}
        self._reserved: dict[tuple[StorageId, int], Bytes] = {}
        self._engine_free: dict[tuple[int, bool], Nanoseconds] = {}

    def begin_out(self, storage: Storage, tier: int) -> None:
        """Start a page-out; a copy that the tier holds already is written over.

        Raises:
            JudgeError: there is no such tier, or it is full.
        """
        slow = self._tier(tier)
        key = (storage.id, tier)
        self._copies.pop(key, None)
        if key not in self._reserved:
            self._reserved[key] = round_up(storage.bytes, slow.alignment)
            self.used[tier - 1] += self._reserved[key]
            self.peak[tier - 1] = max(self.peak[tier - 1], self.used[tier - 1])
        if self.used[tier - 1] > slow.bytes:
            raise JudgeError(
                f"tier {tier} ({slow.name}) would hold {self.used[tier - 1]} of its {slow.bytes} bytes"
            )
        self._begin(storage, tier, slow, inwards=False)

    def begin_in(self, storage: Storage, tier: int) -> None:
        """Start a page-in.

        Raises:
            JudgeError: there is no such tier, or it holds no finished copy.
        """
        slow = self._tier(tier)
        if (storage.id, tier) not in self._copies:
            raise JudgeError(f"tier {tier} ({slow.name}) holds no copy of it")
        self._begin(storage, tier, slow, inwards=True)

    def wait(self, storage: StorageId) -> Window:
        """End the copy in flight of a storage.

        Raises:
            JudgeError: no copy of it is in flight.
        """
        if storage not in self.flights:
            raise JudgeError("no copy of it is in flight")
        window = self.flights.pop(storage)
        self.now = max(self.now, window.end)
        return window

    def keep(self, storage: StorageId, tier: int, version: int) -> None:
        """Note that a finished page-out left this version in the tier."""
        self._copies[storage, tier] = version

    def version(self, storage: StorageId, tier: int) -> int:
        """Look up the version that the tier holds."""
        return self._copies[storage, tier]

    def release(self, storage: StorageId, tier: int) -> None:
        """Give up the copy in a slower tier.

        Raises:
            JudgeError: the tier holds no finished copy, or it is being read.
        """
        slow = self._tier(tier)
        if storage in self.flights and self.flights[storage].tier == tier:
            raise JudgeError(f"its copy in tier {tier} ({slow.name}) is in use by a copy in flight")
        if self._copies.pop((storage, tier), None) is None:
            raise JudgeError(f"tier {tier} ({slow.name}) holds no copy of it")
        self.used[tier - 1] -= self._reserved.pop((storage, tier))

    def left_over(self) -> tuple[StorageId, int] | None:
        """Find a (storage, tier) that still has a copy, or None."""
        return min(self._reserved, default=None)

    def joules(self, computing: Nanoseconds, sizes: tuple[Storage, ...]) -> float:
        """Energy of computing for so long and of all copies; 0 without a machine."""
        if self.machine is None:
            return 0.0
        copies = (
            self.machine.tiers[w.tier].copy_joules(sizes[w.storage].bytes, inwards=w.inwards)
            for w in self.windows
        )
        return self.machine.watts * computing * 1e-9 + sum(copies)

    def _begin(self, storage: Storage, tier: int, slow: Tier, *, inwards: bool) -> None:
        takes = slow.copy_ns(storage.bytes, inwards=inwards)
        engine = (tier, inwards and slow.engines == 2)
        start = max(self.now, self._engine_free.get(engine, 0))
        window = Window(storage.id, tier, inwards, start, start + takes)
        self._engine_free[engine] = window.end
        if slow.engines == 0:
            self.now = window.end
        self.windows.append(window)
        self.flights[storage.id] = window

    def _tier(self, tier: int) -> Tier:
        if self.machine is None:
            raise JudgeError("copies between tiers cannot be judged without the machine's profile")
        if not 1 <= tier < len(self.machine.tiers):
            raise JudgeError(
                f"there is no slower tier {tier}: machine {self.machine.name!r} has "
                f"{len(self.machine.tiers)} tiers"
            )
        return self.machine.tiers[tier]
