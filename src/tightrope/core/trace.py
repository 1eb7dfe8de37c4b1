"""Traces: what happened, or what a plan says will happen, in one schema.

Two clocks. Events are measured in nanoseconds from the start of the step. Buffers are measured in
ticks, one per allocation or release, so that lifetimes are exact whatever the time stamps say;
``ticks`` gives the nanosecond of every tick.

    bytes ^        +--buffer 1--+
          |   +----+--buffer 0--+---+      Buffer(bytes, start=tick, end=tick)
          +---+----+------------+---+-> tick 0, 1, 2, ...   ticks[k] = nanosecond
              [event 0 )[event 1 )         Event(start=ns, end=ns)

Tables point into each other by position: an event's ``module`` into ``modules`` (0 is the root), its
``line`` into ``lines``, its ``callers`` into ``callers``, a buffer's ``creator`` and ``readers`` into
``events``, its ``reason`` into ``reasons``. -1 means none.
"""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.plan import Reason
from tightrope.core.units import Bytes, Nanoseconds, Offset, OpId, StorageId


class EventPhase(StrEnum):
    """What an event was for; recomputation and paging are told apart from the phase they serve."""

    LOAD_DATA = "load_data"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    PAGE = "page"
    OPTIMIZER = "optimizer"
    OTHER = "other"
    COPY = "copy"


class Doubt(StrEnum):
    """Why the module of an event in somebody else's profile may be another one.

    ``order``: there are others like it, and it was taken because of the order in which they are defined.
    ``place``: it may be one beside it or around it.
    """

    NONE = "none"
    ORDER = "order"
    PLACE = "place"


class Category(StrEnum):
    """What a buffer is for: the kinds of storages, and what no graph tells."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    OUTPUT = "output"
    RANDOM_STATE = "random_state"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


Decision = Literal["", "kept", "recomputed", "paged", "fused", "temporary"]


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False, repr_omit_defaults=True):
    """One run of one op, half-open in time.

    Events of one thread may nest (an op that calls ops) and never cross; in `Trace.events` they are
    ordered by start, the outer one first.

    Attributes:
        start: nanoseconds since the start of the step.
        end: likewise.
        op: id in the graph, or -1.
        name: what ran, e.g. ``aten.mm.default``.
        module: position in `Trace.modules`.
        phase: see `EventPhase`.
        thread: 0 is the thread that ran the step.
        line: position in `Trace.lines`, or -1.
        doubt: see `Doubt`.
        callers: position in `Trace.callers`, or -1.
    """

    start: Nanoseconds
    end: Nanoseconds
    op: OpId
    name: str = ""
    module: int = 0
    phase: EventPhase = EventPhase.OTHER
    thread: int = 0
    line: int = -1
    doubt: Doubt = Doubt.NONE
    callers: int = -1

    @property
    def duration(self) -> Nanoseconds:
        """Time from start to end, nested events included."""
        return self.end - self.start


class Buffer(msgspec.Struct, frozen=True, array_like=True, gc=False, repr_omit_defaults=True):
    """One allocation: alive in ``[start, end)``, counted in allocation events of the step.

    Attributes:
        bytes: size as requested; it is charged rounded up to 64.
        start: tick of the allocation.
        end: tick of the release; `Trace.num_events` when it outlives the step.
        offset: address in the arena, or -1 when it has none.
        storage: in the graph, or -1 for a temporary of an op, or where no graph is known.
        creator: position in `Trace.events`, or -1.
        category: see `Category`.
        decision: what the plan does with its storage; empty where there is no plan.
        reason: position in `Trace.reasons`, or -1.
        copy: 0 for the first life of a storage, then 1, 2, ... for recomputed or paged-in ones.
        readers: positions in `Trace.events` of what reads it, ascending.
    """

    bytes: Bytes
    start: int
    end: int
    offset: Offset = -1
    storage: StorageId = -1
    creator: int = -1
    category: Category = Category.UNKNOWN
    decision: Decision = ""
    reason: int = -1
    copy: int = 0
    readers: tuple[int, ...] = ()

    @property
    def size(self) -> Bytes:
        """Bytes charged: ``bytes`` rounded up to 64."""
        return -(-self.bytes // 64) * 64


class Module(msgspec.Struct, frozen=True, array_like=True, gc=False, repr_omit_defaults=True):
    """One module of the tree; position 0 of `Trace.modules` is the root, parents come first.

    Attributes:
        path: e.g. ``transformer.h.3.mlp``; empty for the root.
        kind: class name, empty where it is not known.
        parent: position of the module around it, -1 for the root.
    """

    path: str
    kind: str = ""
    parent: int = -1


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """A number that changes over time, e.g. bytes on the heap as counted by an allocator.

    Attributes:
        name: of what is counted.
        unit: ``bytes`` or ``count``.
        times: nanoseconds since the start of the step, ascending.
        values: one per time; each holds until the next.
    """

    name: str
    unit: str
    times: tuple[Nanoseconds, ...]
    values: tuple[int, ...]


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of one category that exist before, during and after the step."""

    category: Category
    bytes: Bytes


class BudgetPoint(msgspec.Struct, frozen=True, array_like=True):
    """What a plan for another budget would do.

    Attributes:
        budget: total bytes asked for.
        total: total bytes taken.
        ns: time of the schedule.
        recomputed: storages that it recomputes, ascending.
        paged: storages that it pages, ascending.
        proved: whether no plan within this budget is faster.
        ns_bound: time below which no plan within this budget exists (proved); 0 where not known.
    """

    budget: Bytes
    total: Bytes
    ns: Nanoseconds
    recomputed: tuple[StorageId, ...] = ()
    paged: tuple[StorageId, ...] = ()
    proved: bool = False
    ns_bound: Nanoseconds = 0


class Summary(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Figures of the plan behind a trace, and how the trace was made; 0 and empty where not known.

    Attributes:
        name: of the model.
        producer: ``plan`` (forecast), ``run`` (of a plan), ``eager`` or ``profile`` (of others).
        fingerprint: of the graph.
        budget: total bytes asked for.
        persistent: bytes that the caller holds during the whole step.
        arena: bytes reserved for planned addresses.
        outside: largest number of live bytes of the step outside the arena.
        ns: time of the schedule, as planned.
        base_ns: time of running every op once, as planned.
        lower_bound: total bytes below which no plan exists (proved).
        planner: which planner found it.
        curve: plans for other budgets, ascending by budget.
        match: of a profile, how well it goes with the model that names its modules: 0 to 1. From
            `SURE_MATCH` on, modules are proved and no event is in doubt.
        order_doubts: events of a profile whose doubt is ``order``.
        place_doubts: events of a profile whose doubt is ``place``.
        whole: total bytes that the given order needs: what a budget of 100 % stands for.
        proved: whether no plan within the budget is faster.
        ns_bound: time below which no plan within the budget exists (proved); 0 where not known.
        stretches: how many of its stretches run fused: what is proved of plans op by op is not of it.
    """

    name: str = ""
    producer: Literal["plan", "run", "eager", "profile"] = "plan"
    fingerprint: str = ""
    budget: Bytes = 0
    persistent: Bytes = 0
    arena: Bytes = 0
    outside: Bytes = 0
    ns: Nanoseconds = 0
    base_ns: Nanoseconds = 0
    lower_bound: Bytes = 0
    planner: str = ""
    curve: tuple[BudgetPoint, ...] = ()
    match: float | None = None
    order_doubts: int = 0
    place_doubts: int = 0
    whole: Bytes = 0
    proved: bool = False
    ns_bound: Nanoseconds = 0
    stretches: int = 0

    def warning(self) -> str:
        """Say what to know before reading the figures: a match that is poor; else nothing."""
        if self.match is None or self.match >= POOR_MATCH:
            return ""
        return (
            f"the profile and the model that names its modules match poorly ({100 * self.match:.0f} %): the "
            "modules may be those of another model"
        )


def doubts(in_order: int, in_place: int) -> str:
    """Say how many events may belong to another module, and why; nothing where none may.

    Example:
        >>> doubts(0, 2)
        'of the events, 2 may belong to a module beside or around the one named'
    """
    found = []
    if in_order:
        found.append(f"{in_order} are told from others like them by the order of definition alone")
    if in_place:
        found.append(f"{in_place} may belong to a module beside or around the one named")
    return "of the events, " + " and ".join(found) if found else ""


SURE_MATCH: Final = 0.99
"""From it on the modules of a profile are proved."""
POOR_MATCH: Final = 0.95
"""Below it a profile may be of another model: tests of tightrope-trace tell nets as each other."""
ROOT = Module("")


class Trace(msgspec.Struct, frozen=True):
    """Events and buffers of one step.

    Attributes:
        source: ``forecast`` (from a plan) or ``observed`` (from a run).
        buffers: allocations in the order in which they began.
        events: op runs, may be empty.
        num_events: length of the allocation timeline (allocations and releases).
        ticks: nanosecond of every tick of the allocation timeline; empty where not known.
        modules: the module tree, root first.
        lines: source lines, as ``file.py:123``.
        reasons: what the plan says about storages.
        counters: numbers over time.
        held: bytes outside the timeline (parameters and so on), by category.
        summary: figures of the plan.
        callers: call stacks around a line: those that called it, nearest first, as positions in ``lines``.
        repeats: of each step that was recorded before this one and ran the same, the own times of its
            events; see `tightrope.core.repeats`.
    """

    source: Literal["forecast", "observed"]
    buffers: tuple[Buffer, ...]
    events: tuple[Event, ...] = ()
    num_events: int = 0
    ticks: tuple[Nanoseconds, ...] = ()
    modules: tuple[Module, ...] = (ROOT,)
    lines: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    counters: tuple[Counter, ...] = ()
    held: tuple[Held, ...] = ()
    summary: Summary = Summary()
    callers: tuple[tuple[int, ...], ...] = ()
    repeats: tuple[tuple[Nanoseconds, ...], ...] = ()
    schema: Literal[2] = SCHEMA_VERSION

    def profile(self) -> list[Bytes]:
        """Live bytes after each allocation event (sizes rounded up to 64 bytes)."""
        change = [0] * (self.num_events + 1)
        for buffer in self.buffers:
            change[buffer.start] += buffer.size
            if buffer.end < self.num_events:
                change[buffer.end] -= buffer.size
        total, profile = 0, []
        for delta in change[: self.num_events]:
            total += delta
            profile.append(total)
        return profile

    @property
    def peak(self) -> Bytes:
        """Largest number of live bytes."""
        return max(self.profile(), default=0)

    @property
    def peak_tick(self) -> int:
        """First tick after which the live bytes are largest; -1 without an allocation."""
        profile = self.profile()
        return profile.index(max(profile)) if profile else -1

    @property
    def ns(self) -> Nanoseconds:
        """Step time: from the start of the first event to the end of the last one."""
        first = min((event.start for event in self.events), default=0)
        return max((event.end for event in self.events), default=0) - first

    @property
    def operator_ns(self) -> Nanoseconds:
        """Operator time: the sum of all self times, of all threads; gaps between ops do not count."""
        return sum(self.self_times())

    def self_times(self) -> list[Nanoseconds]:
        """Time of every event without the events nested in it, on the same thread.

        The sum over all events of a thread is the time in which that thread ran an event.
        """
        own = [event.end - event.start for event in self.events]
        open_now: dict[int, list[int]] = {}
        for position, event in enumerate(self.events):
            stack = open_now.setdefault(event.thread, [])
            while stack and self.events[stack[-1]].end <= event.start:
                stack.pop()
            if stack:
                own[stack[-1]] -= event.end - event.start
            stack.append(position)
        return own
