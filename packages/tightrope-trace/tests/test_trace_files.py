"""Files of traces."""

import gzip
import random
import zlib

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tightrope
from tests.record.test_record import EVIL
from tightrope.core import (
    Buffer,
    Event,
    EventPhase,
    Module,
    PlanFileError,
    Trace,
)
from tightrope.record import forecast
from tightrope_trace import dump, explain, load, module_times
from tightrope_trace.columns import MAGIC


@pytest.fixture(scope="module")
def planned() -> Trace:
    layers = (torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    graph = tightrope.capture(torch.nn.Sequential(*layers), torch.ones(8, 16))
    return forecast(graph, tightrope.plan(graph, budget="100%"))


NAMES = st.text(max_size=5)
TRACES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(EventPhase), NAMES), max_size=8
)


@settings(max_examples=40, deadline=None)
@given(TRACES)
def test_any_trace_survives_its_file(rows: list[tuple[int, int, EventPhase, str]]) -> None:
    text = [name.encode("utf-8", "ignore").decode() for *_, name in rows]
    events = tuple(
        Event(start, start + length, k, name, k % 2, phase)
        for k, ((start, length, phase, _), name) in enumerate(zip(sorted(rows), text, strict=True))
    )
    trace = Trace(
        "observed", (Buffer(7, 0, 2),), events, 2, ticks=(0, 9), modules=(Module(""), Module("a", "", 0))
    )
    assert load(dump(trace)) == trace


def test_damaged_trace_files_are_refused_with_a_clear_error(planned: Trace) -> None:
    data = dump(planned)
    rng, tried, refused = random.Random(0), 0, 0
    for _ in range(300):
        at = rng.randrange(len(data))
        wrong = rng.choice([data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data + b"x"])
        if wrong == data:
            continue
        tried += 1
        try:
            assert load(wrong) == load(data)  # bits that only fill up the deflated stream's last byte
        except PlanFileError:
            refused += 1
    assert tried > 200
    assert refused >= tried - 3


def test_fuzzed_bodies_are_refused_or_well_formed(planned: Trace) -> None:
    body = zlib.decompress(dump(planned)[8:])
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        wrong = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        try:
            explain(load(MAGIC + zlib.compress(bytes(wrong), 1)))
        except PlanFileError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modules": (Module("", "", 0),)}, "root"),
        ({"events": (Event(0, 1, 0, module=3),)}, "module"),
        ({"events": (Event(5, 1, 0),)}, "end"),
        ({"ticks": (3, 1), "num_events": 2}, "ticks"),
        ({"buffers": (Buffer(1, 0, 1, creator=4),), "num_events": 1}, "creator"),
    ],
)
def test_tables_that_point_nowhere_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanFileError, match=message):
        dump(msgspec.structs.replace(Trace("observed", ()), **change))


@pytest.mark.parametrize(("change", "message"), EVIL)
def test_impossible_traces_made_by_hand_are_refused_by_the_file_too(
    change: dict[str, object], message: str
) -> None:
    trace = msgspec.structs.replace(Trace("observed", ()), **change)
    for door in (explain, module_times, dump):
        with pytest.raises(PlanFileError, match=message):
            door(trace)


def test_times_that_a_browser_cannot_hold_are_refused_when_a_file_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace("observed", (), (Event(0, 2**53, 0),))
    with monkeypatch.context() as unchecked:
        unchecked.setattr("tightrope_trace.columns.check_trace", lambda _: None)
        data = dump(trace)
    with pytest.raises(PlanFileError, match=r"events\[0\].end = 9007199254740992: must be .* below 2\^53"):
        load(data)


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_modules_do_no_harm(size: int) -> None:
    many = Trace("observed", (), modules=(Module(""), *(Module(str(k), "", 0) for k in range(size))))
    assert load(dump(many, level=1)) == many


def test_stacks_survive_the_file(planned: Trace) -> None:
    called = msgspec.structs.replace(planned, lines=(*planned.lines, "train.py:7"), callers=((0,),))
    assert load(dump(called)) == called


def test_a_zipped_trace_is_named() -> None:
    with pytest.raises(PlanFileError, match="It is a trace, gzipped: unzip it"):
        load(gzip.compress(dump(Trace("observed", ())), mtime=0))
