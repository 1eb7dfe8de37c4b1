"""Run an executable on a machine's clocks: bytes, time, energy.

Idea        One clock for the processor and one per copy engine. A copy begins when it is issued or when
            its engine has finished what it was given before, whichever is later; a sync moves the
            processor's clock to the end of the copy.
Guarantee   These are the figures that a plan forecasts.
Complexity  Linear.
Gaps        A copy takes the tier's nominal rate whatever else runs.

    processor | run run run | run .. sync -> | run run |
    engine    |     |=== copy ===|=== copy ===|
              +----------------------------------------+--> ns
"""

from dataclasses import dataclass, field

from tightrope.core import (
    Alloc,
    Bytes,
    Copy,
    Executable,
    Fused,
    Instruction,
    Machine,
    Nanoseconds,
    Release,
    Run,
    Sync,
    Tier,
    TightropeError,
)
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER


@dataclass(frozen=True, slots=True)
class Figures:
    """What an executable takes.

    Attributes:
        persistent: bytes of the caller's space.
        peak: largest number of live bytes made by ops, in the arena and outside.
        arena: highest address, or the largest number of live bytes in the arena where none has one.
        outside: largest number of live bytes outside the arena.
        ns: time.
        joules: energy; 0 without a machine.
        tiers: bytes held in each slower tier, tier 1 first: the highest address, or the largest number of
            live bytes where none has one; empty without copies.
        times: start and end of every instruction. A copy lasts as long as its engine works on it.
    """

    persistent: Bytes
    peak: Bytes
    arena: Bytes
    outside: Bytes
    ns: Nanoseconds
    joules: float
    tiers: tuple[Bytes, ...]
    times: tuple[tuple[Nanoseconds, Nanoseconds], ...] = field(repr=False, default=())


def simulate(executable: Executable, machine: Machine | None = None) -> Figures:
    """Forecast bytes, time and energy.

    Args:
        executable: any.
        machine: rates of its tiers, and power; needed where something is copied.

    Raises:
        TightropeError: something is copied and the machine has no such tier.

    Example:
        >>> from tightrope.core import Compute, Free, Graph, Op, Schedule, Storage
        >>> from tightrope.lower import lower
        >>> graph = Graph((Op(0, "a", "a", creates=(0,), ns=7),), (Storage(0, 100),))
        >>> simulate(lower(graph, Schedule((Compute(0), Free(0))))).ns
        7
    """
    clocks = _Clocks(executable, machine)
    times = []
    for instruction in executable.instructions:
        times.append(clocks.take(instruction))
        clocks.count(instruction)
        for event in instruction.inside if isinstance(instruction, Run | Fused) else ():
            clocks.count(event)
    watts = 0.0 if machine is None else machine.watts
    return Figures(
        clocks.live[CALLER],
        clocks.peak,
        clocks.top if executable.placed else clocks.peaks[ARENA],
        clocks.peaks[HEAP],
        clocks.now,
        watts * clocks.computed * 1e-9 + clocks.joules,
        tuple(clocks.peaks[SLOWER:]) if clocks.copied else (),
        tuple(times),
    )


class _Clocks:
    """Clocks, and what every space holds."""

    def __init__(self, executable: Executable, machine: Machine | None) -> None:
        self.executable, self.machine = executable, machine
        self.now: Nanoseconds = 0
        self.computed: Nanoseconds = 0
        self.joules = 0.0
        self.copied = False
        self.live = [0] * len(executable.spaces)
        self.peaks = [0] * len(executable.spaces)
        self.peak = self.top = 0
        self.allocs: dict[int, Alloc] = {}
        self.engines: dict[int, Nanoseconds] = {}
        self.ready: dict[int, Nanoseconds] = {}

    def take(self, instruction: Instruction) -> tuple[Nanoseconds, Nanoseconds]:
        """Advance the clocks; return when the instruction begins and ends."""
        before = self.now
        match instruction:
            case Run(ns=ns) | Fused(ns=ns):
                self.computed += ns
                self.now += ns
            case Copy(source, target, engine):
                return self.copy(self.allocs[source], self.allocs[target], engine)
            case Sync(target):
                self.now = max(self.now, self.ready[target])
            case _:
                pass
        return before, self.now

    def copy(self, source: Alloc, target: Alloc, engine: int) -> tuple[Nanoseconds, Nanoseconds]:
        inwards = source.space >= SLOWER
        slow = self.tier((source if inwards else target).space)
        begin = max(self.now, self.engines.get(engine, 0))
        end = begin + slow.copy_ns(source.bytes, inwards=inwards)
        self.engines[engine] = self.ready[target.buffer] = end
        self.now = end if engine == 0 else self.now + slow.toll_ns(source.bytes)
        self.joules += slow.copy_joules(source.bytes, inwards=inwards)
        self.copied = True
        return begin, end

    def count(self, event: Instruction) -> None:
        """Book an allocation or a release."""
        if isinstance(event, Alloc):
            size = self.executable.charged(event)
            self.allocs[event.buffer] = event
            self.live[event.space] += size
            reached = event.offset + size if event.space >= SLOWER and event.offset >= 0 else 0
            self.peaks[event.space] = max(self.peaks[event.space], self.live[event.space], reached)
            self.peak = max(self.peak, self.live[ARENA] + self.live[HEAP])
            if event.space == ARENA and event.offset >= 0:
                self.top = max(self.top, event.offset + size)
        elif isinstance(event, Release):
            alloc = self.allocs[event.buffer]
            self.live[alloc.space] -= self.executable.charged(alloc)

    def tier(self, space: int) -> Tier:
        tier = self.executable.spaces[space].tier
        if self.machine is None or not 1 <= tier < len(self.machine.tiers):
            raise TightropeError(
                f"time and energy of copies to tier {tier} need the profile of {self.executable.machine!r}."
            )
        return self.machine.tiers[tier]
