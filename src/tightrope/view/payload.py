"""Pack a trace for the page: columns of numbers, one table of strings, a few figures.

Names come from models and files of others: they are cut to 300 characters, reach the page as data and
never as markup.
"""

from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Event, Trace
from tightrope.core.trace import Category, Doubt, EventPhase, doubts
from tightrope.core.trace_check import check_trace
from tightrope.view.columns import Column, integers, pack
from tightrope.view.sentences import changes, sentences, span

NAME_LIMIT: Final = 300
"""Characters of a name that the page carries."""
CURVE_LIMIT: Final = 200
"""Plans for other budgets that the page carries."""
CALLERS_LIMIT: Final = 8
"""Lines of a call stack that the page carries."""
_Times: TypeAlias = NDArray[np.int64]
_PHASES: Final = {phase: number for number, phase in enumerate(EventPhase)}
_DOUBTS: Final = {doubt: number for number, doubt in enumerate(Doubt)}
_CATEGORIES: Final = {category: number for number, category in enumerate(Category)}
_DECISIONS: Final = ("", "kept", "recomputed", "paged", "temporary")


@dataclass(slots=True)
class _Strings:
    """Strings by number, each once."""

    known: dict[str, int] = field(default_factory=lambda: {"": 0})

    def number(self, text: str) -> int:
        if len(text) > NAME_LIMIT:
            text = text[: NAME_LIMIT - 1] + "\N{HORIZONTAL ELLIPSIS}"
        return self.known.setdefault(text, len(self.known))

    def table(self) -> list[str]:
        # a lone surrogate cannot be written as UTF-8
        return [text.encode("utf-8", "replace").decode() for text in self.known]


def pack_trace(trace: Trace, *, forecast: Trace | None = None, against: Trace | None = None) -> bytes:
    """Pack a trace into the deflated block that the page reads.

    Args:
        trace: what the page shows.
        forecast: drawn as a ghost behind the memory curve; where it has as many allocations and releases
            as the trace, on the trace's clock, so that equal bytes lie on each other. Its times stand beside
            those of the same runs of the same ops.
        against: an earlier trace, for the list of what changed.

    Raises:
        PlanFileError: positions point outside their tables, or times are no whole numbers below 2^53.

    Example:
        >>> from tightrope.core import Buffer
        >>> block = pack_trace(Trace("observed", (Buffer(64, 0, 1),), num_events=2))
        >>> len(block) < 2000
        True
    """
    check_trace(trace)
    strings = _Strings()
    ticks, unit = _clock(trace)
    start, end = _spans(trace, unit)
    columns = _events(trace, strings, start, end) | _ticks(integers("ticks", ticks), start, end)
    columns |= _modules(trace, strings) | _buffers(trace) | _reasons(trace, strings)
    if forecast is not None:
        check_trace(forecast)
        same = forecast.num_events == trace.num_events
        columns |= {"ghost_live": forecast.profile(), "ghost_ticks": ticks if same else _clock(forecast)[0]}
        columns["ghost_ns"] = _forecast_times(trace, forecast)
    header = _header(trace, unit) | {
        "lines": [strings.number(line) for line in trace.lines],
        "callers": [stack[:CALLERS_LIMIT] for stack in trace.callers],
    }
    if against is not None:
        check_trace(against)
        header["changes"] = [(strings.number(c.what), *c[1:]) for c in changes(against, trace)]
        header["steps"] = [1 + len(one.repeats) for one in (against, trace)]
    return pack(header | {"strings": strings.table()}, columns)


def _header(trace: Trace, unit: str) -> dict[str, Any]:
    summary = trace.summary
    figures = {name: getattr(summary, name) for name in summary.__struct_fields__ if name != "curve"}
    curve = summary.curve
    if len(curve) > CURVE_LIMIT:
        curve = tuple(curve[round(k)] for k in np.linspace(0, len(curve) - 1, CURVE_LIMIT))
    return {
        "version": 1,
        "source": trace.source,
        "unit": unit,
        "warning": summary.warning(),
        "doubts": doubts(summary.order_doubts, summary.place_doubts),
        "sentences": [text[:1000] for text in sentences(trace)],
        "figures": figures | {"name": summary.name[:NAME_LIMIT]},
        "curve": [
            (p.budget, p.total, p.ns, list(p.recomputed), list(p.paged), p.proved, p.ns_bound) for p in curve
        ],
        "held": [(_CATEGORIES[held.category], held.bytes) for held in trace.held],
        "phases": [phase.value for phase in EventPhase],
        "categories": [category.value for category in Category],
        "decisions": list(_DECISIONS),
    }


def _clock(trace: Trace) -> tuple[Column, str]:
    """Where each tick stands on the time axis, and the axis' unit: ``ns`` or ``ticks``."""
    if len(trace.ticks) == trace.num_events and (trace.num_events == 0 or span(trace) > 0):
        return trace.ticks, "ns"
    return range(trace.num_events), "ticks"


def _spans(trace: Trace, unit: str) -> tuple[_Times, _Times]:
    """Starts and ends of events; without times they are spread over the ticks, in their order."""
    start = integers("start", [event.start for event in trace.events])
    end = integers("end", [event.end for event in trace.events])
    if unit == "ticks":
        edges = np.linspace(0, max(1, trace.num_events), len(trace.events) + 1).astype(np.int64)
        start, end = edges[:-1], edges[1:]
    return start, end


def _ticks(ticks: _Times, start: _Times, end: _Times) -> dict[str, Column]:
    """Times of ticks, from the event that began last: after its start, or -1 minus what is after its end.

    Allocations mostly happen where an op starts or ends, so that the second column is mostly 0 or -1.
    """
    last = np.searchsorted(start, ticks, side="right") - 1
    if not len(start):
        return {"tick_event": last, "tick_rest": ticks}
    since, after = ticks - start[last], ticks - end[last]
    rest = np.where(last < 0, ticks, np.where(after >= 0, -1 - after, since))
    return {"tick_event": last, "tick_rest": rest}


def _events(trace: Trace, strings: _Strings, start: _Times, end: _Times) -> dict[str, Column]:
    events = trace.events
    before = np.concatenate(([0], end[:-1])) if len(end) else end
    return {
        "gap": start - before,
        "duration": end - start,
        "event_name": [strings.number(event.name) for event in events],
        "event_module": [event.module for event in events],
        "phase": [_PHASES[event.phase] for event in events],
        "thread": [event.thread for event in events],
        "line": [event.line for event in events],
        "callers": [event.callers for event in events],
        "doubt": [_DOUBTS[event.doubt] for event in events],
    }


def _forecast_times(trace: Trace, forecast: Trace) -> list[int]:
    """What a forecast says of every event: of the same run, first, second, ..., of the same op; else -1."""
    times = {key: event.end - event.start for key, event in _runs(forecast)}
    return [times.get(key, -1) for key, _ in _runs(trace)]


def _runs(trace: Trace) -> Iterator[tuple[tuple[int, str, int], Event]]:
    """Events by op, name and how often the op ran before; those without an op have no match elsewhere."""
    count: Tally[tuple[int, str]] = Tally()
    for position, event in enumerate(trace.events):
        op = event.op, event.name
        yield (*op, count[op] if event.op >= 0 else -1 - position), event
        count[op] += 1


def _modules(trace: Trace, strings: _Strings) -> dict[str, Column]:
    names: list[int] = []
    whole: list[int] = []
    for module in trace.modules:
        around = trace.modules[module.parent].path if module.parent > 0 else ""
        inside = bool(around) and module.path.startswith(around + ".")
        names.append(strings.number(module.path[len(around) + 1 :] if inside else module.path))
        whole.append(int(not inside))
    return {
        "module_name": names,
        "module_whole": whole,
        "module_kind": [strings.number(module.kind) for module in trace.modules],
        "module_parent": [module.parent for module in trace.modules],
    }


def _buffers(trace: Trace) -> dict[str, Column]:
    buffers = trace.buffers
    creators = [buffer.creator for buffer in buffers]
    return {
        "bytes": [buffer.bytes for buffer in buffers],
        "alloc": [buffer.start for buffer in buffers],
        "life": [buffer.end - buffer.start for buffer in buffers],
        "offset": [buffer.offset for buffer in buffers],
        "storage": [buffer.storage for buffer in buffers],
        "creator": creators,
        "category": [_CATEGORIES[buffer.category] for buffer in buffers],
        "decision": [_DECISIONS.index(buffer.decision) for buffer in buffers],
        "reason": [buffer.reason for buffer in buffers],
        "copy": [buffer.copy for buffer in buffers],
        "num_readers": [len(buffer.readers) for buffer in buffers],
        "readers": [reader - max(buffer.creator, 0) for buffer in buffers for reader in buffer.readers],
    }


def _reasons(trace: Trace, strings: _Strings) -> dict[str, Column]:
    return {
        "reason_text": [strings.number(reason.text) for reason in trace.reasons],
        "reason_ns": [reason.ns for reason in trace.reasons],
        "reason_free": [int(_may_go(reason.text)) for reason in trace.reasons],
    }


def _may_go(text: str) -> bool:
    """Whether a reason says that the storage could be recomputed, and the op at the peak does not use it."""
    return "would free" in text and "which runs at the peak" not in text
