"""What the page carries: columns that come back exactly, sentences, refusals of impossible traces."""

import itertools
import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.view.synthetic import modules_of, trace_of
from tightrope.core import Buffer, Event, TightropeError, Trace, format_bytes
from tightrope.core.trace import Category, EventPhase, Module
from tightrope.view import pack_trace, page, sentences
from tightrope.view.columns import pack
from tightrope.view.sentences import changes


@dataclass(frozen=True)
class Unpacked:
    """A block read back with plain Python, as the page's script reads it."""

    header: dict[str, Any]
    columns: dict[str, list[int]]


def unpack(block: bytes) -> Unpacked:
    body = zlib.decompress(block)
    size = int.from_bytes(body[:4], "little")
    header, at = json.loads(body[4 : 4 + size]), 4 + size
    columns = {}
    for name, length, width, delta in header["columns"]:
        planes = [body[at + k * length : at + (k + 1) * length] for k in range(width)]
        at += length * width
        raw = [sum(plane[i] << (8 * k) for k, plane in enumerate(planes)) for i in range(length)]
        values = [value >> 1 if value % 2 == 0 else -(value + 1) >> 1 for value in raw]
        columns[name] = [int(total) for total in np.cumsum(values)] if delta else values
    assert at == len(body)
    return Unpacked(header, columns)


@given(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), max_size=50))
@settings(max_examples=60, deadline=None)
def test_every_column_comes_back(values: list[int]) -> None:
    assert unpack(pack({}, {"a": values, "b": values[::-1]})).columns == {"a": values, "b": values[::-1]}


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.5, 2**53, "1", None])
def test_columns_refuse_what_is_not_a_whole_number(value: Any) -> None:
    with pytest.raises(TightropeError, match="column 'a'"):
        pack({}, {"a": [1, value]})


def test_times_and_lifetimes_come_back_exactly() -> None:
    trace = trace_of(500)
    found = unpack(pack_trace(trace)).columns
    end, starts = 0, []
    for gap, duration in zip(found["gap"], found["duration"], strict=True):
        starts.append(end + gap)
        end = starts[-1] + duration
    assert starts == [event.start for event in trace.events]
    ends = [start + duration for start, duration in zip(starts, found["duration"], strict=True)]
    ticks = [
        rest if event < 0 else ends[event] - 1 - rest if rest < 0 else starts[event] + rest
        for event, rest in zip(found["tick_event"], found["tick_rest"], strict=True)
    ]
    assert ticks == list(trace.ticks)
    assert found["bytes"] == [buffer.bytes for buffer in trace.buffers]
    assert found["offset"] == [buffer.offset for buffer in trace.buffers]


def test_the_sentences_have_the_figures_of_the_trace() -> None:
    trace = trace_of(100)
    peak, budget, largest = sentences(trace)
    assert peak.startswith("The peak will be ")
    assert "on top of the 256.0 KiB that the caller holds" in peak
    assert "and no more time than the step without a plan" in budget
    assert re.search(r"is 1\.00 MiB \(\d+ %\) from net\.py:3\d \(aten\.", largest)
    sure = msgspec.structs.replace(trace, summary=msgspec.structs.replace(trace.summary, proved=True))
    proved, *rest = sentences(sure)
    assert proved == f"Proved: no plan within the budget of {format_bytes(trace.summary.budget)} is faster."
    assert tuple(rest) == sentences(trace)
    assert sentences(Trace("observed", ()))[2] == "Nothing is alive at the peak."


def test_what_changed_is_listed_and_equal_figures_are_not() -> None:
    before = trace_of(100)
    assert changes(before, before) == ()
    slower = tuple(msgspec.structs.replace(e, end=e.end + (e is before.events[-1])) for e in before.events)
    rows = changes(before, msgspec.structs.replace(before, events=slower))
    assert (rows[0].what, rows[0].after - rows[0].before) == ("step time", 1)
    assert {row.what for row in rows} == {
        "step time",
        "operator time",
        "time of backward",
        "module blocks.0.up",
    }


def test_a_trace_without_times_is_shown_in_its_order() -> None:
    trace = msgspec.structs.replace(trace_of(60), ticks=())
    found = unpack(pack_trace(trace))
    assert found.header["unit"] == "ticks"
    assert sum(found.columns["duration"]) == trace.num_events


@pytest.mark.parametrize(
    "change",
    [
        {"buffers": (Buffer(64, 0, 9),)},
        {"buffers": (Buffer(64, 1, 1),)},
        {"buffers": (Buffer(-1, 0, 1),)},
        {"buffers": (Buffer(64, 0, 1, creator=7),)},
        {"buffers": (Buffer(64, 0, 1, readers=(5,)),)},
        {"buffers": (Buffer(64, math.nan, 1),)},  # type: ignore[arg-type]
        {"events": (Event(5, 3, 0),)},
        {"events": (Event(5, 6, 0), Event(1, 2, 1))},
        {"events": (Event(math.nan, 3, 0),)},  # type: ignore[arg-type]
        {"events": (Event(0, 3, 0, module=4),)},
        {"modules": (Module(""), Module("a", "", 1))},
        {"ticks": (5, 3)},
        {"ticks": (5, 2**53)},
        {"events": (Event(0, 3, 0, phase="forward"),)},  # type: ignore[arg-type]
    ],
)
def test_impossible_traces_are_refused(change: dict[str, Any]) -> None:
    sound = Trace("observed", (), num_events=2, ticks=(0, 1))
    pack_trace(sound)
    with pytest.raises(TightropeError):
        pack_trace(msgspec.structs.replace(sound, **change))


def test_names_of_ten_megabytes_and_with_markup_reach_the_page_as_short_data() -> None:
    evil = "</script><script>alert(1)</script>" + "x" * 10_000_000
    event = Event(0, 5, 0, evil, 1, EventPhase.FORWARD)
    trace = Trace("observed", (), (event,), modules=(Module(""), Module(evil + "\ud800", evil, 0)))
    trace = msgspec.structs.replace(trace, summary=msgspec.structs.replace(trace.summary, name=evil))
    text = page(trace)
    assert len(text) < 200_000
    assert text.count("</script>") == 2
    assert "alert(1)</title>" not in text
    assert max(map(len, unpack(pack_trace(trace)).header["strings"])) == 300


def test_the_page_forbids_every_request_and_names_no_address() -> None:
    text = page(trace_of(20))
    assert "default-src 'none'" in text
    assert "unsafe" not in text.split("</head>")[0].split("<style>")[0]
    assert not re.findall(r"https?://", text)
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text


def test_a_hundred_thousand_modules_are_packed() -> None:
    modules = modules_of(25_000)
    trace = Trace("observed", (Buffer(64, 0, 1, category=Category.INPUT),), num_events=2, modules=modules)
    assert len(unpack(pack_trace(trace)).columns["module_name"]) == 100_002


def test_forecast_times_stand_beside_the_same_runs_of_the_same_ops() -> None:
    def step(source: Literal["forecast", "observed"], *runs: tuple[int, int, str]) -> Trace:
        ends = [0, *itertools.accumulate(ns for _, ns, _ in runs)]
        events = (Event(a, b, op, name) for (op, _, name), a, b in zip(runs, ends, ends[1:], strict=False))
        return Trace(source, (), tuple(events))

    said = step("forecast", (0, 5, "a"), (1, 7, "b"), (9, 0, "return"), (0, 6, "a"), (2, 8, "c"))
    ran = step("observed", (0, 50, "a"), (1, 70, "b"), (0, 60, "a"), (0, 61, "a"), (2, 80, "x"), (-1, 1, "y"))
    assert unpack(pack_trace(ran, forecast=said)).columns["ghost_ns"] == [5, 7, 6, -1, -1, -1]
    assert "ghost_ns" not in unpack(pack_trace(ran)).columns


def test_a_forecast_of_the_same_allocations_lies_on_the_clock_of_the_run() -> None:
    trace = trace_of(100)
    later = msgspec.structs.replace(trace, source="observed", ticks=tuple(3 * tick for tick in trace.ticks))
    found = unpack(pack_trace(later, forecast=trace)).columns
    assert found["ghost_ticks"] == list(later.ticks)
    assert found["ghost_live"] == trace.profile()
    shorter = trace_of(50)
    assert unpack(pack_trace(later, forecast=shorter)).columns["ghost_ticks"] == list(shorter.ticks)
