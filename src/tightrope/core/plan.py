"""Schedules, plans, certificates: what a planner promises.

A schedule is a sequence of steps over a graph. Every storage has at most one live copy: running an
op again is allowed only when the copies of what it creates are gone, except for those in ``drop``,
which are released as soon as the op returns and leave an older copy alone.

    address ^
            |      +--B--+        offsets are given per allocation event of the schedule,
            | +-A--+     |        in the order in which the events happen
            +-+----+-----+-> step
"""

from typing import Literal

import msgspec

from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.machine import Limits
from tightrope.core.units import Bytes, Nanoseconds, Offset, OpId, StorageId


class Compute(msgspec.Struct, frozen=True, tag="compute", array_like=True):
    """Run an op; its created storages appear, those in ``drop`` vanish when it returns."""

    op: OpId
    drop: tuple[StorageId, ...] = ()


class Free(msgspec.Struct, frozen=True, tag="free", array_like=True):
    """Release the live copy of a storage."""

    storage: StorageId


class PageOut(msgspec.Struct, frozen=True, tag="page_out", array_like=True):
    """Start copying a storage to a slower tier; its fast copy is released by the matching `Wait`."""

    storage: StorageId
    tier: int = 1


class PageIn(msgspec.Struct, frozen=True, tag="page_in", array_like=True):
    """Start copying a storage back from a slower tier; it may be read after the matching `Wait`."""

    storage: StorageId
    tier: int = 1


class Wait(msgspec.Struct, frozen=True, tag="wait", array_like=True):
    """Wait until the last copy of a storage has finished."""

    storage: StorageId


Step = Compute | Free | PageOut | PageIn | Wait


class Schedule(msgspec.Struct, frozen=True, dict=True):
    """A sequence of steps; see the module text."""

    steps: tuple[Step, ...]

    def computes(self) -> tuple[OpId, ...]:
        """List the ops in the order in which they run, with repeats."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))


class Forecast(msgspec.Struct, frozen=True):
    """What the plan says the run will do.

    Attributes:
        persistent: bytes that the caller holds during the whole step.
        peak: largest number of live bytes made by the step (temporaries included, rounded up per
            allocation), above ``persistent``.
        arena: bytes reserved for planned addresses.
        outside: largest number of live bytes made by the step outside the arena.
        ns: time of the schedule.
        base_ns: time of running every op once.
        joules: energy, 0 where the machine does not tell.
    """

    persistent: Bytes
    peak: Bytes
    arena: Bytes
    outside: Bytes = 0
    ns: Nanoseconds = 0
    base_ns: Nanoseconds = 0
    joules: float = 0.0

    @property
    def total(self) -> Bytes:
        """Bytes promised: persistent + arena + outside."""
        return self.persistent + self.arena + self.outside

    @property
    def tdi_percent(self) -> float:
        """Total duration increase over running each op once, in percent."""
        return 100.0 * (self.ns - self.base_ns) / self.base_ns if self.base_ns else 0.0


class Certificate(msgspec.Struct, frozen=True):
    """What is proved about a plan, with the numbers to re-derive it.

    Attributes:
        lower_bound: total bytes below which no schedule with the base order exists.
        witness: op that needs ``lower_bound``.
        method: name of the bound.
        ns_bound: proved lower bound on the schedule's time at this budget (0 = none).
        proved: whether the schedule's time equals the bound.
        seed: random seed of the search.
        versions: what made it.
    """

    lower_bound: Bytes = 0
    witness: OpId = -1
    method: str = "single-op floor"
    ns_bound: Nanoseconds = 0
    proved: bool = False
    seed: int = 0
    versions: tuple[tuple[str, str], ...] = ()


class Reason(msgspec.Struct, frozen=True):
    """Why a storage was kept, recomputed or paged.

    Attributes:
        storage: which.
        decision: ``kept``, ``recomputed`` or ``paged``.
        bytes: its size.
        ns: what recomputing (or paging) it costs once.
        copies: how many times it exists in the schedule.
        text: one sentence for a person.
    """

    storage: StorageId
    decision: Literal["kept", "recomputed", "paged"]
    bytes: Bytes
    ns: Nanoseconds
    copies: int
    text: str


class Plan(msgspec.Struct, frozen=True, dict=True):
    """A schedule with offsets, forecast, certificate and reasons.

    Attributes:
        fingerprint: of the graph that it was made for.
        schedule: what runs, in order.
        offsets: one per allocation event of the schedule, in order; -1 = outside the arena.
        budget: total bytes asked for.
        limits: all limits asked for.
        machine: name of the machine profile.
        forecast: bytes and time.
        certificate: proved statements.
        reasons: one per storage made by an op.
        planner: which planner found it.
        schema: version of this layout.
    """

    fingerprint: str
    schedule: Schedule
    offsets: tuple[Offset, ...]
    budget: Bytes
    forecast: Forecast
    certificate: Certificate = Certificate()
    reasons: tuple[Reason, ...] = ()
    limits: Limits = Limits()
    machine: str = "host"
    planner: str = "given"
    schema: Literal[1] = SCHEMA_VERSION
