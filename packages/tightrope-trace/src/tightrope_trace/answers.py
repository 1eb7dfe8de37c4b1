"""Answers in words and numbers: where the time goes, what is alive at the peak, what would save bytes."""

from dataclasses import asdict, dataclass
from typing import Any

from tightrope.core import Bytes, EventPhase, Nanoseconds, Trace, format_bytes, format_time
from tightrope.core.trace import doubts
from tightrope.core.trace_check import check_trace
from tightrope_trace.savings import Saving, saving

_STEP = tuple(EventPhase)


@dataclass(frozen=True, slots=True)
class Share:
    """Time of a stage or a module, and its part of the whole."""

    name: str
    ns: Nanoseconds
    percent: float


@dataclass(frozen=True, slots=True)
class Alive:
    """One buffer that is alive at the peak.

    Attributes:
        buffer: position in the trace.
        bytes: charged.
        category: what it is for.
        module: that made it.
        op: that made it.
        source: line.
        reason: what the plan says about it.
    """

    buffer: int
    bytes: Bytes
    category: str
    module: str
    op: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answers:
    """What `explain` found; ``str`` of it is for people.

    Attributes:
        source: ``forecast`` or ``observed``.
        ns: step time, from the start of the first event to the end of the last one.
        operator_ns: sum of the self times of all events; shares are parts of it.
        forecast_ns: of an observed step with a plan, what the plan says of that sum; None where not known.
        ratio: ``operator_ns`` over ``forecast_ns``.
        peak: largest number of live bytes.
        peak_tick: first tick after which they are.
        persistent: bytes that the caller holds during the whole step.
        budget: total bytes asked for, 0 without a plan.
        stages: operator time by stage, the largest first; recomputation and paging are stages of their own.
        modules: operator time by module, without the modules in it.
        alive: the largest buffers alive at the peak.
        num_alive: how many there are in all.
        saving: what would have to go.
        match: of a profile, how well it goes with the model that names its modules: 0 to 1.
        warning: what to know before reading all this, or nothing.
        order_doubts: events of a profile that only the order of definition tells from others like them.
        place_doubts: events of a profile that may belong to a module beside or around the one named.
    """

    source: str
    ns: Nanoseconds
    operator_ns: Nanoseconds
    peak: Bytes
    peak_tick: int
    persistent: Bytes
    budget: Bytes
    stages: tuple[Share, ...]
    modules: tuple[Share, ...]
    alive: tuple[Alive, ...]
    num_alive: int
    saving: Saving
    match: float | None = None
    warning: str = ""
    order_doubts: int = 0
    place_doubts: int = 0
    forecast_ns: Nanoseconds | None = None
    ratio: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines: list[str] = []
        if (self.stages or self.modules) and not self.operator_ns:
            lines.append("times are unknown: the ops have none")
        elif self.stages:
            top = self.stages[0]
            lines.append(
                f"{top.name} dominates: {format_time(top.ns)} of {format_time(self.operator_ns)} "
                f"operator time ({top.percent:.1f} %); step time {format_time(self.ns)}"
            )
            lines += [f"  {s.name:<12}{format_time(s.ns):>12}{s.percent:7.1f} %" for s in self.stages]
        if self.forecast_ns and self.ratio:
            lines.append(
                f"operator time: forecast {format_time(self.forecast_ns)}, observed "
                f"{format_time(self.operator_ns)}, {self.ratio:.2f} times the forecast"
            )
        if self.modules and self.operator_ns:
            first = self.modules[0]
            lines.append(f"largest module: {first.name} ({first.percent:.1f} % of the operator time)")
            lines += [f"  {format_time(s.ns):>12}{s.percent:7.1f} %  {s.name}" for s in self.modules]
        if self.match is not None:
            lines.append(_match(self))
        if self.num_alive:
            limit = f", budget {format_bytes(self.budget)}" if self.budget else ""
            lines.append(
                f"peak {format_bytes(self.peak)} above {format_bytes(self.persistent)} persistent{limit}; "
                f"{self.num_alive} buffers alive"
            )
            lines += [f"  {_alive(row)}" for row in self.alive]
        if self.saving.asked:
            lines.append(str(self.saving))
        return "\n".join(lines)


def _match(answers: Answers) -> str:
    """Say how sure the modules of a profile are."""
    told = doubts(answers.order_doubts, answers.place_doubts)
    match = 0.0 if answers.match is None else answers.match
    return f"modules match the profile to {100 * match:.1f} %" + (f": {told}" if told else "")


def _alive(row: Alive) -> str:
    place = " ".join(part for part in (row.module, row.op, row.source) if part)
    return f"{format_bytes(row.bytes):>11}  {row.category:<16}{place}" + (
        f": {row.reason}" if row.reason else ""
    )


def explain(trace: Trace, *, save: Bytes = 0, top: int = 10) -> Answers:
    """Answer the usual questions about a trace.

    Args:
        trace: forecast or observed.
        save: bytes to take less than the plan does; 0 = do not ask.
        top: number of modules and buffers to list.

    Raises:
        PlanFileError: the trace is not well formed: says what is wrong.

    Example:
        >>> from tightrope.core import Event
        >>> step = Trace("observed", (), (Event(0, 5, 0, "aten::mm", phase=EventPhase.FORWARD),))
        >>> print(explain(step).stages[0].name)
        forward
    """
    check_trace(trace)
    own = trace.self_times()
    total = sum(own)
    stages: dict[str, Nanoseconds] = {}
    modules: dict[int, Nanoseconds] = {}
    for event, ns in zip(trace.events, own, strict=True):
        stages[event.phase.value] = stages.get(event.phase.value, 0) + ns
        modules[event.module] = modules.get(event.module, 0) + ns
    named = {trace.modules[module].path or "(no module)": ns for module, ns in modules.items()}
    tick = trace.peak_tick
    there = [k for k, buffer in enumerate(trace.buffers) if buffer.start <= tick < buffer.end]
    there.sort(key=lambda k: (-trace.buffers[k].size, k))
    said = trace.summary.ns if trace.source == "observed" and trace.summary.ns else None
    return Answers(
        source=trace.source,
        ns=trace.ns,
        operator_ns=total,
        peak=trace.peak,
        peak_tick=tick,
        persistent=trace.summary.persistent,
        budget=trace.summary.budget,
        stages=_shares(stages, total, len(_STEP)),
        modules=_shares(named, total, top),
        alive=tuple(_row(trace, k) for k in there[:top]),
        num_alive=len(there),
        saving=saving(trace, there, save),
        match=trace.summary.match,
        warning=trace.summary.warning(),
        order_doubts=trace.summary.order_doubts,
        place_doubts=trace.summary.place_doubts,
        forecast_ns=said,
        ratio=total / said if said and total else None,
    )


def _shares(times: dict[str, Nanoseconds], total: Nanoseconds, top: int) -> tuple[Share, ...]:
    ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))[:top]
    return tuple(Share(name, ns, 100.0 * ns / total if total else 0.0) for name, ns in ordered)


def _row(trace: Trace, number: int) -> Alive:
    buffer = trace.buffers[number]
    event = trace.events[buffer.creator] if buffer.creator >= 0 else None
    return Alive(
        buffer=number,
        bytes=buffer.size,
        category=buffer.category.value,
        module=trace.modules[event.module].path if event else "",
        op=event.name if event else "",
        source=trace.lines[event.line] if event and event.line >= 0 else "",
        reason=trace.reasons[buffer.reason].text if buffer.reason >= 0 else "",
    )
