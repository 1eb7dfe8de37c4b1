"""Plans: a schedule with addresses, what it promises, and why.

A schedule is a sequence of steps over a graph. Every storage has at most one live copy: running an
op again is allowed only when the copies of what it creates are gone, except for those in ``drop``,
which are released as soon as the op returns and leave an older copy alone.

address ^
|      +--B--+        offsets are given per allocation event of the schedule,
| +-A--+     |        in the order in which the events happen
+-+----+-----+-> step
"""

import math
import re
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal

import msgspec

from tightrope.core.arguments import check_count, check_kind
from tightrope.core.certificate import Certificate
from tightrope.core.certificate_check import check_certificate
from tightrope.core.checking import MAX_ID, distinct, few, refuse, within
from tightrope.core.errors import FingerprintError, PlanFileError
from tightrope.core.files import dump, load, naming, read_file
from tightrope.core.graph import SCHEMA_VERSION, Allocation, Graph
from tightrope.core.machine import Limits
from tightrope.core.provenance import Provenance, check_provenance
from tightrope.core.units import Bytes, Nanoseconds, Offset, OpId, StorageId, format_bytes, format_time, shown
from tightrope.core.writing import write_whole


class Compute(msgspec.Struct, frozen=True, tag="compute", array_like=True):
    """Run an op; its created storages appear, those in ``drop`` vanish when it returns."""

    op: OpId
    drop: tuple[StorageId, ...] = ()


class Free(msgspec.Struct, frozen=True, tag="free", array_like=True, repr_omit_defaults=True):
    """Release the live copy of a storage, or with ``tier`` > 0 its copy in a slower tier."""

    storage: StorageId
    tier: int = 0


class PageOut(msgspec.Struct, frozen=True, tag="page_out", array_like=True):
    """Start copying a storage to a slower tier; its fast copy is released by the matching `Wait`.

    Until then the fast copy may be read, and not changed. The slow copy stays until it is freed.
    """

    storage: StorageId
    tier: int = 1


class PageIn(msgspec.Struct, frozen=True, tag="page_in", array_like=True):
    """Start copying a storage back from a slower tier; it may be read after the matching `Wait`.

    The fast copy takes its bytes from here on. The slow copy stays until it is freed.
    """

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


_HEX: Final = re.compile(r"[0-9a-f]{64}")
_MAX_OFFSETS: Final = 10_000_000


class Forecast(msgspec.Struct, frozen=True):
    """What the plan says the run will do.

    Attributes:
        persistent: bytes that count during the whole step: the caller's, and what kernels take elsewhere.
        peak: largest number of live bytes made by the step (temporaries included, rounded up per
            allocation), above ``persistent``.
        arena: bytes reserved for planned addresses.
        outside: largest number of live bytes made by the step outside the arena.
        ns: time of the schedule.
        base_ns: time of running every op once.
        joules: energy, 0 where the machine does not tell.
        tiers: largest number of bytes held in each slower tier, tier 1 first; empty without paging.
        quality: measured values of the metrics of `Limits.quality`, in their order; empty = not measured.
    """

    persistent: Bytes
    peak: Bytes
    arena: Bytes
    outside: Bytes = 0
    ns: Nanoseconds = 0
    base_ns: Nanoseconds = 0
    joules: float = 0.0
    tiers: tuple[Bytes, ...] = ()
    quality: tuple[float, ...] = ()

    @property
    def total(self) -> Bytes:
        """Bytes promised: persistent + arena + outside."""
        return self.persistent + self.arena + self.outside

    @property
    def tdi_percent(self) -> float:
        """Total duration increase over running each op once, in percent."""
        return 100.0 * (self.ns - self.base_ns) / self.base_ns if self.base_ns else 0.0


class Reason(msgspec.Struct, frozen=True):
    """Why a storage was kept, recomputed or paged.

    Attributes:
        storage: which.
        decision: ``kept``, ``recomputed``, ``paged``, or ``fused``: never in memory, inside stretches alone.
        bytes: its size.
        ns: what recomputing (or paging) it costs once.
        copies: how many times it exists in the schedule.
        text: one sentence for a person.
    """

    storage: StorageId
    decision: Literal["kept", "recomputed", "paged", "fused"]
    bytes: Bytes
    ns: Nanoseconds
    copies: int
    text: str


class PlanDiff(msgspec.Struct, frozen=True):
    """What changed from one plan to another; ``str`` of it is for people.

    Attributes:
        figures: (name, before, after) of every figure that differs, names as in ``Plan.figures``.
        decisions: (storage, before, after) where a storage is kept, recomputed or paged differently;
            ``absent`` where only one of the plans has a reason for it.
        num_moved: allocations with another address, when both run the same schedule; else -1.
    """

    figures: tuple[tuple[str, str, str], ...]
    decisions: tuple[tuple[StorageId, str, str], ...]
    num_moved: int

    def __str__(self) -> str:
        if not self.figures and not self.decisions and not self.num_moved:
            return "the plans agree"
        lines = [f"{name}: {before} -> {after}" for name, before, after in self.figures]
        lines += [f"storage {storage}: {before} -> {after}" for storage, before, after in self.decisions]
        moved = "the schedule differs" if self.num_moved < 0 else f"{self.num_moved} allocations moved"
        return "\n".join([*lines, moved])


class FusedStretch(msgspec.Struct, frozen=True):
    """Ops in a row that one compiled function computes.

    Attributes:
        first: number of the first among everything that the schedule runs, from 0.
        last: number behind the last.
        allocations: what the function allocates; each storage that outlives it once.
        ns: time of one call.
    """

    first: int
    last: int
    allocations: tuple[Allocation, ...]
    ns: Nanoseconds = 0


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
        placed: whether allocations have addresses; without, ``offsets`` is empty, and the arena is the
            largest number of live bytes that an arena would hold.
        stretches: ops that run fused, in order; ``offsets`` and ``forecast`` are those of what then runs.
        provenance: the code that the graph was captured from; None = not known.
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
    placed: bool = True
    stretches: tuple[FusedStretch, ...] = ()
    provenance: Provenance | None = None
    schema: Literal[2] = SCHEMA_VERSION

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file that `load` reads back to an equal plan.

        Raises:
            PlanFileError: the file cannot be written, or the plan has a value that no file may hold.
        """
        if not isinstance(path, str | Path):
            raise PlanFileError(f"path={shown(path)}: give the path of the file to write.")
        write_whole(path, dump_plan(self))

    @staticmethod
    def load(path: str | Path) -> "Plan":
        """Read a plan file; nothing in it is executed.

        Whether the plan is right for a graph is for `tightrope.lower.lowered` to say.

        Raises:
            PlanFileError: the file cannot be read or is not a plan of this version.

        Example:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "step.plan.json")
            >>> plan = Plan("0" * 64, Schedule(()), (), 64, Forecast(0, 0, 0))
            >>> plan.save(path)
            >>> Plan.load(path) == plan
            True
        """
        data = read_file(path)
        with naming(path):
            return load_plan(data)

    def figures(self) -> dict[str, str]:
        """List the figures of the plan for a person, by name."""
        decisions = [reason.decision for reason in self.reasons]
        forecast, more = self.forecast, f"{self.forecast.tdi_percent:.2f} % more"
        return {
            "graph": self.fingerprint[:12],
            "budget": f"{format_bytes(self.budget)} ({self.budget} B)",
            "total": f"{format_bytes(forecast.total)} = persistent {format_bytes(forecast.persistent)} "
            f"+ arena {format_bytes(forecast.arena)} + outside {format_bytes(forecast.outside)}",
            "peak": f"{format_bytes(forecast.peak)} live above persistent",
            "time": f"{format_time(forecast.ns)}, {more} than running each op once"
            if forecast.ns
            else "unknown: the ops of the graph have no times",
            "storages": ", ".join(
                f"{decisions.count(d)} {d}"
                for d in ("kept", "recomputed", "paged", "fused")
                if d in decisions or d != "fused"
            ),
            "proved": f"no plan needs less than {format_bytes(self.certificate.lower_bound)}"
            + ("; none is faster" if self.certificate.proved and self.forecast.ns else ""),
            "planner": self.planner,
            **({"quality": self._quality()} if self.limits.quality is not None else {}),
        }

    def _quality(self) -> str:
        limit, values = self.limits.quality, self.forecast.quality
        assert limit is not None
        if not values:
            return f"limited by {', '.join(limit.metrics)}, not measured"
        inside = "inside" if limit.allows(values) else "outside"
        named = zip(limit.metrics, values, strict=True)
        return f"{', '.join(f'{name} {value:.4g}' for name, value in named)}: {inside} of the limit"

    def diff(self, other: "Plan") -> PlanDiff:
        """Compare with a later plan.

        Returns:
            Figures and decisions that differ, and how many allocations have another address.

        Example:
            >>> before = Plan("0" * 64, Schedule(()), (), 1024, Forecast(0, 0, 0))
            >>> print(before.diff(msgspec.structs.replace(before, budget=2048)))
            budget: 1.00 KiB (1024 B) -> 2.00 KiB (2048 B)
            0 allocations moved
        """
        check_kind("other", other, Plan, "a plan, such as Plan.load(path) reads")
        mine, theirs = self.figures(), other.figures()
        was: dict[StorageId, str] = {reason.storage: reason.decision for reason in self.reasons}
        now: dict[StorageId, str] = {reason.storage: reason.decision for reason in other.reasons}
        pairs = ((s, was.get(s, "absent"), now.get(s, "absent")) for s in sorted({*was, *now}))
        same = self.schedule == other.schedule
        return PlanDiff(
            figures=tuple((name, mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]),
            decisions=tuple(pair for pair in pairs if pair[1] != pair[2]),
            num_moved=sum(a != b for a, b in zip_longest(self.offsets, other.offsets)) if same else -1,
        )

    def explain(self, graph: Graph | None = None, *, top: int = 20) -> str:
        """Say in lines of text what the plan does and why, for the ``top`` largest storages.

        Args:
            graph: the one that the plan was made for, for names of tensors, modules and ops.
            top: number of storages to list.

        Raises:
            FingerprintError: the plan was made for another graph.

        Example:
            >>> plan = Plan("0" * 64, Schedule(()), (), 1024, Forecast(0, 0, 0))
            >>> plan.explain().splitlines()[1]
            'budget    1.00 KiB (1024 B)'
        """
        if graph is not None:
            check_kind("graph", graph, Graph, "the tightrope.Graph that was planned, or None")
        check_count("top", top)
        if graph is not None and graph.fingerprint != self.fingerprint:
            raise FingerprintError(
                f"the plan was made for graph {self.fingerprint[:12]}, this one is {graph.fingerprint[:12]}: "
                "give the graph that was planned, or none."
            )
        figures = self.figures()
        witness = self.certificate.witness
        if graph is not None and graph.name:
            figures["graph"] += f", {graph.name[:300]!r}"
        if graph is not None and 0 <= witness < len(graph.ops):
            figures["proved"] += f"; set by {graph.ops[witness].describe()}"
        lines = [f"{name:<10}{text}" for name, text in figures.items()]
        largest = sorted(self.reasons, key=lambda reason: (-reason.bytes, reason.storage))[:top]
        for reason in largest:
            name = f"storage {reason.storage}"
            if graph is not None and reason.storage < len(graph.storages):
                storage = graph.storages[reason.storage]
                name += f" {storage.label} {storage.module}".rstrip()
            lines.append(f"{format_bytes(reason.bytes):>10}  {name}: {reason.text}")
        return "\n".join(lines)


def dump_plan(plan: Plan) -> bytes:
    """Write a plan as indented JSON that `load_plan` reads back to an equal plan.

    Raises:
        PlanFileError: the plan has a value that no file may hold.
    """
    return dump(plan, check_plan)


def load_plan(data: bytes) -> Plan:
    """Read a plan.

    The result is well formed by itself; whether it is right for a graph is for
    `tightrope.lower.lowered` to say.

    Raises:
        PlanFileError: the data is not a plan of this version; names the field and quotes the value.
    """
    return load(data, Plan, check_plan)


def check_plan(plan: Plan) -> None:
    """Check that a plan is well formed by itself, without its graph.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    if not _HEX.fullmatch(plan.fingerprint):
        refuse("plan: $.fingerprint", plan.fingerprint, "64 hexadecimal digits")
    _check_steps(plan)
    few(plan.offsets, "plan: $.offsets", most=_MAX_OFFSETS)
    for position, offset in enumerate(plan.offsets):
        within(offset, f"plan: $.offsets[{position}]", low=-1)
    within(plan.budget, "plan: $.budget")
    for name in ("persistent", "peak", "arena", "outside", "ns", "base_ns"):
        within(getattr(plan.forecast, name), f"plan: $.forecast.{name}")
    if not plan.placed and plan.offsets:
        refuse("plan: $.offsets", plan.offsets, "empty, because the plan is not placed")
    check_certificate(plan.certificate)
    _check_reasons(plan)
    _check_stretches(plan)
    if plan.provenance is not None:
        check_provenance(plan.provenance, "plan: $.provenance")
    for field, amounts in (("forecast.tiers", plan.forecast.tiers), ("limits.bytes", plan.limits.bytes)):
        for position, limit in enumerate(amounts):
            within(limit, f"plan: $.{field}[{position}]")
    for where, amount in (
        ("forecast.joules", plan.forecast.joules),
        ("limits.seconds", plan.limits.seconds),
        ("limits.joules", plan.limits.joules),
    ):
        if amount is not None and not 0 <= amount < math.inf:
            refuse(f"plan: $.{where}", amount, "a finite number that is not negative")
    _check_quality(plan)


def _check_quality(plan: Plan) -> None:
    limit, values = plan.limits.quality, plan.forecast.quality
    num = 0 if limit is None else len(limit.metrics)
    if limit is not None:
        if not num or len(set(limit.metrics)) < num:
            refuse("plan: $.limits.quality.metrics", limit.metrics, "names, each once")
        if len(limit.rising) != num:
            refuse("plan: $.limits.quality.rising", limit.rising, f"one for each of the {num} metrics")
    corners = () if limit is None else limit.corners
    few(corners, "plan: $.limits.quality.corners")
    for where, one in (
        *((f"limits.quality.corners[{k}]", corner) for k, corner in enumerate(corners)),
        *((("forecast.quality", values),) if values else ()),
    ):
        if len(one) != num or not all(map(math.isfinite, one)):
            refuse(f"plan: $.{where}", one, f"{num} finite numbers, one for each metric of the limit")


def _check_steps(plan: Plan) -> None:
    few(plan.schedule.steps, "plan: $.schedule.steps")
    for position, step in enumerate(plan.schedule.steps):
        where = f"plan: $.schedule.steps[{position}]"
        match step:
            case Compute(op, drop):
                within(op, f"{where}.op", high=MAX_ID)
                for storage in drop:
                    within(storage, f"{where}.drop", high=MAX_ID)
                distinct(drop, f"{where}.drop")
            case PageOut(storage, tier) | PageIn(storage, tier) | Free(storage, tier):
                within(storage, f"{where}.storage", high=MAX_ID)
                within(tier, f"{where}.tier", low=0 if isinstance(step, Free) else 1, high=16)
            case Wait(storage):
                within(storage, f"{where}.storage", high=MAX_ID)


def _check_stretches(plan: Plan) -> None:
    few(plan.stretches, "plan: $.stretches")
    behind = 0
    for position, stretch in enumerate(plan.stretches):
        where = f"plan: $.stretches[{position}]"
        within(stretch.first, f"{where}.first", low=behind, high=MAX_ID)
        within(stretch.last, f"{where}.last", low=stretch.first + 1, high=MAX_ID)
        within(stretch.ns, f"{where}.ns")
        few(stretch.allocations, f"{where}.allocations")
        for number, item in enumerate(stretch.allocations):
            within(item.bytes, f"{where}.allocations[{number}].bytes")
            within(item.storage, f"{where}.allocations[{number}].storage", low=-1, high=MAX_ID)
            within(item.start, f"{where}.allocations[{number}].start", high=MAX_ID)
            low = -1 if item.end < 0 else item.start + 1
            within(item.end, f"{where}.allocations[{number}].end", low=low, high=MAX_ID)
        behind = stretch.last


def _check_reasons(plan: Plan) -> None:
    few(plan.reasons, "plan: $.reasons")
    seen: set[StorageId] = set()
    for position, reason in enumerate(plan.reasons):
        where = f"plan: $.reasons[{position}]"
        if reason.storage in seen:
            refuse(f"{where}.storage", reason.storage, "explained once")
        seen.add(reason.storage)
        within(reason.storage, f"{where}.storage", high=MAX_ID)
        within(reason.bytes, f"{where}.bytes")
        within(reason.ns, f"{where}.ns")
        within(reason.copies, f"{where}.copies", high=MAX_ID)
