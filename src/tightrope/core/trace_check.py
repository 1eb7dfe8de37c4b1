"""Whether a trace is one: its tables point at each other, and every figure is a whole number in range."""

from collections.abc import Iterable, Sequence
from typing import Final, NoReturn, get_args

from tightrope.core.errors import PlanFileError
from tightrope.core.json_text import quote
from tightrope.core.trace import Category, Decision, Doubt, EventPhase, Module, Trace

MAX_EXACT: Final = 2**53 - 1
"""Largest time and number of bytes: a browser has no exact integers beyond it."""
MAX_ROWS = 10_000_000
"""Events, buffers, modules, lines or readers of a trace file."""
MAX_REPEATS: Final = 100
"""Steps before the last one whose times a trace keeps."""


def check_trace(trace: Trace) -> None:
    """Check that a trace from anywhere, made by hand too, can be read, drawn and exported.

    Guarantees for a trace that passes: what `check_tables` says; all figures are whole numbers, times
    and bytes below 2^53; buffers live for at least one tick and begin in order.

    Raises:
        PlanFileError: names the field and quotes the value.

    Example:
        >>> from tightrope.core import Event
        >>> check_trace(Trace("observed", (), (Event(0, 5, 0, module=3),)))
        Traceback (most recent call last):
        tightrope.core.errors.PlanFileError: trace: $.events[0].module = 3: must be between 0 and 0.
    """
    try:
        check_tables(trace)
        _check_lifetimes(trace)
        _check_words(trace)
    except (TypeError, AttributeError, ValueError) as error:
        raise PlanFileError(
            f"trace: not well formed: {type(error).__name__}: {quote(str(error))}."
        ) from error


def check_tables(trace: Trace) -> None:
    """Check that every position in a trace is one, and that times and trees are ordered.

    Guarantees for a trace that passes: modules form a tree whose parents come first; events are
    ordered by start, the outer one first; ticks and counters are ascending in time.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    for name in ("events", "buffers", "modules", "lines", "callers", "reasons", "counters", "held"):
        if len(getattr(trace, name)) > MAX_ROWS:
            _refuse(name, getattr(trace, name), f"an array of at most {MAX_ROWS} items")
    check_modules(trace.modules)
    _check_events(trace)
    _check_buffers(trace)
    _ascending("ticks", trace.ticks)
    if len(trace.repeats) > MAX_REPEATS:
        _refuse("repeats", len(trace.repeats), f"times of at most {MAX_REPEATS} steps")
    for position, own in enumerate(trace.repeats):
        _within(f"repeats[{position}][{{}}]", own, 0, MAX_EXACT)
        if len(own) != len(trace.events):
            _refuse(f"repeats[{position}]", own, "one time per event")
    if trace.ticks and len(trace.ticks) != trace.num_events:
        _refuse("ticks", trace.ticks, f"empty or one per tick ({trace.num_events})")
    for position, counter in enumerate(trace.counters):
        _ascending(f"counters[{position}].times", counter.times)
        _within(f"counters[{position}].values[{{}}]", counter.values, -MAX_EXACT, MAX_EXACT)
        if len(counter.times) != len(counter.values):
            _refuse(f"counters[{position}].values", counter.values, "one per time")
    _within("held[{}].bytes", (held.bytes for held in trace.held), 0, MAX_EXACT)
    match = trace.summary.match
    if match is not None and not 0 <= match <= 1:
        _refuse("summary.match", match, "between 0 and 1")
    for name in ("order_doubts", "place_doubts"):
        _within(f"summary.{name}", [getattr(trace.summary, name)], 0, MAX_ROWS)


def check_modules(modules: Sequence[Module]) -> None:
    """Check that modules form a tree whose root is the first and whose parents come first.

    Raises:
        PlanFileError: names the module and quotes its parent.
    """
    if not modules or modules[0].parent != -1:
        _refuse("modules[0].parent", modules[0].parent if modules else None, "-1: the root")
    for position, module in enumerate(modules[1:], start=1):
        if not _whole(module.parent, 0, position - 1):
            _refuse(f"modules[{position}].parent", module.parent, "the position of an earlier module")


def _check_events(trace: Trace) -> None:
    events = trace.events
    _within("events[{}].op", (event.op for event in events), -1, 2**31 - 1)
    _within("events[{}].module", (event.module for event in events), 0, len(trace.modules) - 1)
    _within("events[{}].line", (event.line for event in events), -1, len(trace.lines) - 1)
    _within("events[{}].callers", (event.callers for event in events), -1, len(trace.callers) - 1)
    _within("callers[{}]", (line for stack in trace.callers for line in stack), 0, len(trace.lines) - 1)
    _within("events[{}].thread", (event.thread for event in events), 0, 2**31 - 1)
    before = 0
    for position, event in enumerate(events):
        if not _whole(event.start, before, MAX_EXACT):
            _refuse(
                f"events[{position}].start", event.start,
                "a whole number of nanoseconds at or after the start of the event before, below 2^53",
            )  # fmt: skip
        if not _whole(event.end, event.start, MAX_EXACT):
            _refuse(
                f"events[{position}].end", event.end,
                "a whole number of nanoseconds at or after its start, below 2^53",
            )  # fmt: skip
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
            if not _whole(reader, before + 1, last):
                _refuse(f"buffers[{position}].readers", reader, "ascending positions of events")
            before = reader


def _within(where: str, values: Iterable[int], low: int, high: int) -> None:
    listed = list(values)
    if listed and (set(map(type, listed)) != {int} or min(listed) < low or max(listed) > high):
        position = next((k for k, value in enumerate(listed) if not _whole(value, low, high)), -1)
        if position >= 0:
            _refuse(where.format(position), listed[position], f"between {low} and {high}")


def _ascending(where: str, times: tuple[int, ...]) -> None:
    before = 0
    for position, time in enumerate(times):
        if not _whole(time, before, MAX_EXACT):
            _refuse(f"{where}[{position}]", time, "a whole number at or after the one before, below 2^53")
        before = time


def _whole(value: object, low: int, high: int) -> bool:
    """Whether a value is a whole number in a range; NaN, texts and fractions are not."""
    return isinstance(value, int) and low <= value <= high


def _check_lifetimes(trace: Trace) -> None:
    last, begun = trace.num_events, 0
    if not _whole(last, 0, 2 * MAX_ROWS):
        _refuse("num_events", last, f"between 0 and {2 * MAX_ROWS}")
    buffers = trace.buffers
    _within("buffers[{}].bytes", (buffer.bytes for buffer in buffers), 0, MAX_EXACT)
    _within("buffers[{}].offset", (buffer.offset for buffer in buffers), -1, MAX_EXACT)
    _within("buffers[{}].storage", (buffer.storage for buffer in buffers), -1, 2**31 - 1)
    for position, buffer in enumerate(buffers):
        alive = _whole(buffer.start, begun, last) and _whole(buffer.end, buffer.start + 1, last)
        if not alive:
            raise PlanFileError(
                f"trace: $.buffers[{position}] is alive in [{quote(buffer.start)}, {quote(buffer.end)}): "
                f"lifetimes are not empty, begin in order and end by {last}."
            )
        begun = buffer.start
    _within("reasons[{}].ns", (reason.ns for reason in trace.reasons), 0, MAX_EXACT)


def _check_words(trace: Trace) -> None:
    """Names are texts, and phases, categories and decisions are known ones."""
    _among("events[{}].name", (event.name for event in trace.events), str)
    _among("events[{}].phase", (event.phase for event in trace.events), EventPhase)
    _among("events[{}].doubt", (event.doubt for event in trace.events), Doubt)
    _among("buffers[{}].category", (buffer.category for buffer in trace.buffers), Category)
    _among("modules[{}].path", (module.path for module in trace.modules), str)
    _among("modules[{}].kind", (module.kind for module in trace.modules), str)
    _among("lines[{}]", trace.lines, str)
    known = get_args(Decision)
    for position, buffer in enumerate(trace.buffers):
        if buffer.decision not in known:
            _refuse(f"buffers[{position}].decision", buffer.decision, f"one of {known}")


def _among(where: str, values: Iterable[object], kind: type) -> None:
    for position, value in enumerate(values):
        if not isinstance(value, kind):
            _refuse(where.format(position), value, f"a {kind.__name__}")


def _refuse(where: str, value: object, must: str) -> NoReturn:
    raise PlanFileError(f"trace: $.{where} = {quote(value)}: must be {must}.")
