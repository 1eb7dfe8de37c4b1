"""What a trace says, in a few sentences and figures for its page."""

from collections import Counter as Tally
from collections.abc import Callable
from typing import NamedTuple

from tightrope.core import Buffer, Event, Nanoseconds, Trace, format_bytes, format_time
from tightrope.core.repeats import time_changes


class Change(NamedTuple):
    """One figure that differs between two traces.

    Attributes:
        unit: ``B``, ``ns`` or ``count``.
        sure: of times, whether they differ by more than noise, None where too few steps were recorded to
            tell; bytes and counts are exact.
    """

    what: str
    before: int
    after: int
    unit: str
    sure: bool | None = True


def sentences(trace: Trace) -> tuple[str, ...]:
    """Say what is proved, the peak, the budget with its price, and the largest thing at the peak.

    Returns:
        Three sentences, and before them that no plan is faster where that is proved; bytes are those
        charged, rounded up to 64 per allocation.

    Example:
        >>> sentences(Trace("observed", (), num_events=0))[0]
        'The step allocates nothing.'
    """
    return (*_proved(trace), _peak(trace), _budget(trace), _largest(trace))


def creator_name(trace: Trace, buffer: Buffer) -> str:
    """Name a buffer for a person: the user's line that made it, the op, and in which module."""
    if not 0 <= buffer.creator < len(trace.events):
        return buffer.category.value.replace("_", " ")
    event = trace.events[buffer.creator]
    path = trace.modules[event.module].path
    made = f"{event.name} in {path}" if path else event.name
    return f"{trace.lines[event.line]} ({made})" if 0 <= event.line < len(trace.lines) else made


def _proved(trace: Trace) -> tuple[str, ...]:
    if not (trace.summary.proved and trace.summary.budget):
        return ()
    return (f"Proved: no plan within the budget of {format_bytes(trace.summary.budget)} is faster.",)


def _peak(trace: Trace) -> str:
    if not trace.buffers:
        return "The step allocates nothing."
    tick = trace.peak_tick
    when = f", {format_time(trace.ticks[tick])} into the step" if tick < len(trace.ticks) and trace.ns else ""
    peak, persistent = trace.peak, trace.summary.persistent
    held = f", on top of the {format_bytes(persistent)} that the caller holds" if persistent else ""
    said = "will be" if trace.source == "forecast" else "was"
    return f"The peak {said} {format_bytes(peak)}{when}{held}."


def _budget(trace: Trace) -> str:
    summary = trace.summary
    if not summary.budget:
        return "No budget was set."
    total = summary.persistent + summary.arena + summary.outside
    text = f"The plan takes {format_bytes(total)} of the budget of {format_bytes(summary.budget)}"
    if not summary.base_ns:
        return f"{text}; times are not known."
    extra = summary.ns - summary.base_ns
    if extra <= 0:
        return f"{text} and no more time than the step without a plan."
    share = 100 * extra / summary.base_ns
    return f"{text} and {share:.1f} % more time ({format_time(extra)}) than the step without a plan."


def _largest(trace: Trace) -> str:
    tick = trace.peak_tick
    alive = [buffer for buffer in trace.buffers if buffer.start <= tick < buffer.end]
    if not alive:
        return "Nothing is alive at the peak."
    largest = max(alive, key=lambda buffer: buffer.size)
    share = 100 * largest.size / trace.peak
    name = creator_name(trace, largest)
    name = name if len(name) <= 120 else name[:119] + "\N{HORIZONTAL ELLIPSIS}"
    return f"The largest thing at the peak is {format_bytes(largest.size)} ({share:.0f} %) from {name}."


def changes(before: Trace, after: Trace, *, top: int = 40) -> tuple[Change, ...]:
    """List what differs from one trace to another: bytes, times, decisions, then modules by time.

    Times are medians over the steps that were recorded, that of a whole step apart, which is the last one's.

    Args:
        before: the earlier trace.
        after: the later one.
        top: number of modules to list.
    """
    rows = [
        Change("peak of the step", before.peak, after.peak, "B"),
        Change("arena", before.summary.arena, after.summary.arena, "B"),
        Change("budget", before.summary.budget, after.summary.budget, "B"),
        Change("allocations", len(before.buffers), len(after.buffers), "count"),
        Change("step time", before.ns, after.ns, "ns", None),
        *_timed("", before, after, lambda trace, event: "operator time"),
    ]
    old, new = _decisions(before), _decisions(after)
    rows += [Change(f"storages {name}", old[name], new[name], "count") for name in sorted({*old, *new})]
    rows += _timed("time of ", before, after, lambda trace, event: event.phase.value.replace("_", " "))
    rows += _timed("module ", before, after, _module)[:top]
    return tuple(row for row in rows if row.before != row.after)


def _timed(prefix: str, before: Trace, after: Trace, name_of: Callable[[Trace, Event], str]) -> list[Change]:
    return [
        Change(f"{prefix}{name}", *ns, "ns", sure) for name, ns, sure in time_changes(before, after, name_of)
    ]


def _module(trace: Trace, event: Event) -> str:
    return trace.modules[event.module].path or "(root)"


def _decisions(trace: Trace) -> Tally[str]:
    return Tally(buffer.decision for buffer in trace.buffers if buffer.decision and buffer.copy == 0)


def span(trace: Trace) -> Nanoseconds:
    """Nanosecond of the last end of an event, or of the last allocation or release."""
    last = max((event.end for event in trace.events), default=0)
    return max(last, trace.ticks[-1] if trace.ticks else 0)
