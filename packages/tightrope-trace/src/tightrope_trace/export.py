"""Traces for the viewers of others: Chrome JSON (Perfetto) and PyTorch's memory snapshot."""

import json
import pickle
from collections.abc import Iterator
from typing import Any, Final

from tightrope.core import Event, EventPhase, Trace
from tightrope.core.trace_check import check_trace

_PID: Final = 1
_ARENA_BASE: Final = 2**40
_HEAP_BASE: Final = 2**41
"""Buffers without a planned address are shown above the arena, one after another."""


def to_chrome(trace: Trace) -> bytes:
    """Write Chrome JSON: a slice per event, a counter of live bytes, a flow from each op to its recompute.

    Times are microseconds with three decimals, which is every nanosecond. The largest value of the
    counter ``live bytes`` is the trace's peak.

    Raises:
        PlanFileError: the trace is not well formed: says what is wrong.

    Example:
        >>> trace = Trace("observed", (), (Event(0, 1500, 0, "aten::mm"),))
        >>> json.loads(to_chrome(trace))["traceEvents"][-1]["dur"]
        1.5
    """
    check_trace(trace)
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in _rows(trace))
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{rows}\n]}}\n'.encode()


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    name = f"tightrope {trace.source} {trace.summary.name}".strip()
    yield {"ph": "M", "pid": _PID, "tid": 0, "name": "process_name", "args": {"name": name}}
    for thread in sorted({event.thread for event in trace.events}):
        title = "step" if thread == 0 else f"thread {thread}"
        yield {"ph": "M", "pid": _PID, "tid": thread, "name": "thread_name", "args": {"name": title}}
    for time, live in zip(trace.ticks, trace.profile(), strict=False):
        yield _counter("live bytes", time, live)
    for counter in trace.counters:
        for time, value in zip(counter.times, counter.values, strict=True):
            yield _counter(counter.name, time, value)
    first: dict[int, Event] = {}
    for number, event in enumerate(trace.events):
        yield {
            "ph": "X", "pid": _PID, "tid": event.thread, "ts": event.start / 1000,
            "dur": (event.end - event.start) / 1000, "name": event.name or "?", "cat": event.phase.value,
            "args": {
                "module": trace.modules[event.module].path,
                "source": trace.lines[event.line] if event.line >= 0 else "",
            },
        }  # fmt: skip
        if event.op >= 0 and event.phase is EventPhase.RECOMPUTE and event.op in first:
            source = first[event.op]
            flow = {"pid": _PID, "cat": "recompute", "name": "recompute", "id": number}
            yield {**flow, "ph": "s", "tid": source.thread, "ts": source.start / 1000}
            yield {**flow, "ph": "f", "bp": "e", "tid": event.thread, "ts": event.start / 1000}
        first.setdefault(event.op, event)


def _counter(name: str, time: int, value: int) -> dict[str, Any]:
    return {"ph": "C", "pid": _PID, "tid": 0, "ts": time / 1000, "name": name, "args": {"value": value}}


def to_snapshot(trace: Trace) -> bytes:
    r"""Write the pickle that PyTorch's memory viewer reads: allocations and releases in order.

    Holds plain dictionaries, lists, texts and integers only. Planned addresses are offsets from the
    start of one segment, the arena; the others lie in a second one.

    Raises:
        PlanFileError: the trace is not well formed: says what is wrong.

    Example:
        >>> to_snapshot(Trace("observed", ()))[:1]
        b'\x80'
    """
    check_trace(trace)
    arena = max((b.offset + b.size for b in trace.buffers if b.offset >= 0), default=0)
    addresses, heap = [], _HEAP_BASE
    for buffer in trace.buffers:
        addresses.append(_ARENA_BASE + buffer.offset if buffer.offset >= 0 else heap)
        heap += buffer.size if buffer.offset < 0 else 0
    happenings: list[tuple[int, int, int]] = []
    for number, buffer in enumerate(trace.buffers):
        happenings.append((buffer.start, 1, number))
        if buffer.end < trace.num_events:
            happenings.append((buffer.end, 0, number))
    rows: list[dict[str, Any]] = []
    for tick, begins, number in sorted(happenings):
        entry = {
            "addr": addresses[number], "size": trace.buffers[number].size, "stream": 0,
            "frames": _frames(trace, number), "pool_id": (0, 0),
            "time_us": trace.ticks[tick] // 1000 if trace.ticks else tick,
            "category": trace.buffers[number].category.value,
        }  # fmt: skip
        actions = ("alloc",) if begins else ("free_requested", "free_completed")
        rows += [{"action": action, **entry} for action in actions]
    regions = ((_ARENA_BASE, arena), (_HEAP_BASE, heap - _HEAP_BASE))
    segments = [_segment(base, size) for base, size in regions if size]
    return pickle.dumps({"segments": segments, "device_traces": [rows]}, protocol=4)


def _segment(base: int, size: int) -> dict[str, Any]:
    block = {"size": size, "requested_size": size, "address": base, "state": "inactive", "frames": []}
    return {
        "address": base, "total_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "allocated_size": size, "active_size": 0, "blocks": [block], "device": 0, "frames": [],
    }  # fmt: skip


def _frames(trace: Trace, number: int) -> list[dict[str, Any]]:
    creator = trace.buffers[number].creator
    if creator < 0:
        return []
    event = trace.events[creator]
    name = " ".join(
        part for part in (trace.modules[event.module].path, event.name, event.phase.value) if part
    )
    stack = trace.callers[event.callers] if event.callers >= 0 else ()
    made = _frame(trace.lines[event.line] if event.line >= 0 else "", name)
    return [made, *(_frame(trace.lines[line], "calls it") for line in stack)]


def _frame(source: str, name: str) -> dict[str, Any]:
    file, _, line = source.rpartition(":")
    return {"filename": file or "none", "line": int(line) if line.isdigit() else 0, "name": name}
