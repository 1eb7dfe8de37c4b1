"""What a schedule costs on a machine: time with waiting, energy, and bytes in slower tiers.

processor | op op op | op .. wait -> | op op |
engine    |     |== page out ==|== page in ==|
          +----------------------------------+--> ns
"""

from dataclasses import dataclass, field

from tightrope.core import (
    Bytes,
    Compute,
    Free,
    Graph,
    Machine,
    Nanoseconds,
    PageIn,
    PageOut,
    Schedule,
    Step,
    StorageId,
    Tier,
    TightropeError,
    Wait,
    round_up,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Time, energy (0 without a machine) and the largest bytes per slower tier (empty without paging)."""

    ns: Nanoseconds
    joules: float
    tiers: tuple[Bytes, ...] = ()


def clock(graph: Graph, schedule: Schedule, machine: Machine | None) -> Cost:
    """Forecast time, energy and slower tiers of a schedule.

    A copy begins when it is issued or when its engine is free, whichever is later.

    Args:
        graph: what the schedule runs.
        schedule: valid for ``graph``.
        machine: its tiers, copy engines and power; needed by a schedule that pages.

    Raises:
        TightropeError: the schedule pages and there is no machine with that tier.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,), ns=7),), (Storage(0, 64),))
        >>> clock(graph, Schedule((Compute(0), Free(0))), None).ns
        7
    """
    hands = _Hands(graph, machine)
    for step in schedule.steps:
        hands.run(step)
    watts = 0.0 if machine is None else machine.watts
    tiers = tuple(hands.peaks) if hands.paged else ()
    return Cost(hands.now, watts * hands.computed * 1e-9 + hands.joules, tiers)


def step_times(
    graph: Graph, schedule: Schedule, machine: Machine | None
) -> tuple[tuple[Nanoseconds, Nanoseconds], ...]:
    """Tell when each step of a schedule begins and ends, by the same clock.

    A copy lasts from where its engine takes it up until it is done, a wait as long as it holds the
    processor; frees take no time.

    Raises:
        TightropeError: the schedule pages and there is no machine with that tier.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,), ns=7),), (Storage(0, 64),))
        >>> step_times(graph, Schedule((Compute(0), Free(0))), None)
        ((0, 7), (7, 7))
    """
    hands = _Hands(graph, machine)
    return tuple(hands.run(step) for step in schedule.steps)


@dataclass
class _Hands:
    """The clocks, and what the slower tiers hold."""

    graph: Graph
    machine: Machine | None
    now: Nanoseconds = 0
    computed: Nanoseconds = 0
    joules: float = 0.0
    paged: bool = False
    ready: dict[StorageId, Nanoseconds] = field(default_factory=dict)
    engines: dict[tuple[int, bool], Nanoseconds] = field(default_factory=dict)
    held: dict[tuple[StorageId, int], Bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.peaks = [0] * (0 if self.machine is None else len(self.machine.tiers) - 1)
        self.used = list(self.peaks)

    def run(self, step: Step) -> tuple[Nanoseconds, Nanoseconds]:
        """Take one step; return when it begins and when it ends."""
        before = self.now
        match step:
            case Compute(op):
                self.computed += self.graph.op(op).ns
                self.now += self.graph.op(op).ns
            case PageOut(storage, tier):
                self.reserve(storage, tier)
                return self.copy(storage, tier, inwards=False)
            case PageIn(storage, tier):
                return self.copy(storage, tier, inwards=True)
            case Wait(storage):
                self.now = max(self.now, self.ready[storage])
            case Free(storage, tier) if tier:
                self.give_up(storage, tier)
            case Free():
                pass
        return before, self.now

    def reserve(self, storage: StorageId, tier: int) -> None:
        if (storage, tier) not in self.held:
            size = round_up(self.graph.storages[storage].bytes, self._tier(tier).alignment)
            self.held[storage, tier] = size
            self.used[tier - 1] += size
            self.peaks[tier - 1] = max(self.peaks[tier - 1], self.used[tier - 1])

    def give_up(self, storage: StorageId, tier: int) -> None:
        self.used[tier - 1] -= self.held.pop((storage, tier))

    def copy(self, storage: StorageId, tier: int, *, inwards: bool) -> tuple[Nanoseconds, Nanoseconds]:
        slow, size = self._tier(tier), self.graph.storages[storage].bytes
        engine = (tier, inwards and slow.engines == 2)
        begin = max(self.now, self.engines.get(engine, 0))
        end = begin + slow.copy_ns(size, inwards=inwards)
        self.engines[engine] = self.ready[storage] = end
        self.now = end if slow.engines == 0 else self.now
        self.joules += slow.copy_joules(size, inwards=inwards)
        self.paged = True
        return begin, end

    def _tier(self, tier: int) -> Tier:
        if self.machine is None or not 1 <= tier < len(self.machine.tiers):
            name = "no machine" if self.machine is None else f"machine {self.machine.name!r}"
            raise TightropeError(
                f"the schedule pages to tier {tier} and {name} has no such tier: give a machine profile "
                "with a slower tier."
            )
        return self.machine.tiers[tier]
