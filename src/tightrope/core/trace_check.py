"""Whether the tables of a trace point at each other as they must."""

from collections.abc import Iterable
from typing import NoReturn

from tightrope.core.errors import PlanFileError
from tightrope.core.json_text import MAX_INT, quote
from tightrope.core.trace import Trace

MAX_ROWS = 10_000_000
"""Events, buffers, modules, lines or readers of a trace file."""


def check_tables(trace: Trace) -> None:
    """Check that every position in a trace is one, and that times and trees are ordered.

    Guarantees for a trace that passes: modules form a tree whose parents come first; events are
    ordered by start, the outer one first; ticks and counters are ascending in time.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    for name in ("events", "buffers", "modules", "lines", "reasons", "counters", "held"):
        if len(getattr(trace, name)) > MAX_ROWS:
            _refuse(name, getattr(trace, name), f"an array of at most {MAX_ROWS} items")
    _check_modules(trace)
    _check_events(trace)
    _check_buffers(trace)
    _ascending("ticks", trace.ticks)
    if trace.ticks and len(trace.ticks) != trace.num_events:
        _refuse("ticks", trace.ticks, f"empty or one per tick ({trace.num_events})")
    for position, counter in enumerate(trace.counters):
        _ascending(f"counters[{position}].times", counter.times)
        _within(f"counters[{position}].values[{{}}]", counter.values, -MAX_INT, MAX_INT)
        if len(counter.times) != len(counter.values):
            _refuse(f"counters[{position}].values", counter.values, "one per time")
    _within("held[{}].bytes", (held.bytes for held in trace.held), 0, MAX_INT)


def _check_modules(trace: Trace) -> None:
    if not trace.modules or trace.modules[0].parent != -1:
        _refuse("modules[0].parent", trace.modules[0].parent if trace.modules else None, "-1: the root")
    for position, module in enumerate(trace.modules[1:], start=1):
        if not 0 <= module.parent < position:
            _refuse(f"modules[{position}].parent", module.parent, "the position of an earlier module")


def _check_events(trace: Trace) -> None:
    events = trace.events
    _within("events[{}].op", (event.op for event in events), -1, 2**31 - 1)
    _within("events[{}].module", (event.module for event in events), 0, len(trace.modules) - 1)
    _within("events[{}].line", (event.line for event in events), -1, len(trace.lines) - 1)
    _within("events[{}].thread", (event.thread for event in events), 0, 2**31 - 1)
    before = 0
    for position, event in enumerate(events):
        if not event.start <= event.end <= MAX_INT:
            _refuse(f"events[{position}].end", event.end, "between its start and 2^62")
        if event.start < before:
            _refuse(f"events[{position}].start", event.start, "at or after the start of the event before")
        before = event.start


def _check_buffers(trace: Trace) -> None:
    buffers, last = trace.buffers, len(trace.events) - 1
    _within("buffers[{}].creator", (buffer.creator for buffer in buffers), -1, last)
    _within("buffers[{}].reason", (buffer.reason for buffer in buffers), -1, len(trace.reasons) - 1)
    _within("buffers[{}].copy", (buffer.copy for buffer in buffers), 0, 2**31 - 1)
    if sum(len(buffer.readers) for buffer in buffers) > MAX_ROWS:
        _refuse("buffers", buffers, f"at most {MAX_ROWS} readers in all")
    for position, buffer in enumerate(buffers):
        before = -1
        for reader in buffer.readers:
            if not before < reader <= last:
                _refuse(f"buffers[{position}].readers", reader, "ascending positions of events")
            before = reader


def _within(where: str, values: Iterable[int], low: int, high: int) -> None:
    listed = list(values)
    if listed and (min(listed) < low or max(listed) > high):
        position = next(k for k, value in enumerate(listed) if not low <= value <= high)
        _refuse(where.format(position), listed[position], f"between {low} and {high}")


def _ascending(where: str, times: tuple[int, ...]) -> None:
    before = 0
    for position, time in enumerate(times):
        if not before <= time <= MAX_INT:
            _refuse(f"{where}[{position}]", time, "at or after the one before")
        before = time


def _refuse(where: str, value: object, must: str) -> NoReturn:
    raise PlanFileError(f"trace: $.{where} = {quote(value)}: must be {must}.")
