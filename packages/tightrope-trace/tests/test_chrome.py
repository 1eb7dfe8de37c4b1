"""Profiles as files: packed, bare lists, late keys, cut-off ones, and what is said of wrong ones."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import run
from tightrope.core import PlanFileError
from tightrope_trace import chrome, parse_profile, read_profile
from tightrope_trace.chrome import looks_like_profile, read_events

ROW = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 2.0}
ROWS = [ROW | {"name": f"aten::{name}", "ts": 10.0 * k} for k, name in enumerate("abcd")]
NAMES = [f"aten::{name}" for name in "abcd"]


def names(data: bytes) -> list[str]:
    return [one.name for one in parse_profile(data)]


def test_a_packed_profile_is_read(tmp_path: Path) -> None:
    file = tmp_path / "profile.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": ROWS}).encode()))
    assert [one.name for one in read_profile(file)] == NAMES
    assert names(file.read_bytes()) == NAMES
    found = run("trace", file, "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["ns"] == 32_000


@pytest.mark.parametrize("end", ["]", "", ",", ",\n", "\n]\n"])
def test_a_list_of_events_is_read_closed_or_not(end: str, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text(json.dumps(ROWS)[:-1] + end)
    assert [one.name for one in read_profile(file)] == NAMES
    assert run("trace", file).code == 0


LATE = {
    "note": 'a "text" with ] } and \\ in it',
    "number": -1.5e3,
    "nothing": None,
    "inside": {"traceEvents": [1, {"a": "}"}], "deep": [[["]"]]]},
}


def test_events_are_found_behind_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "late.json"
    file.write_text(
        json.dumps(LATE | {"filler": ["x" * 100] * 30_000, "traceEvents": ROWS, "traceName": "a"})
    )
    assert file.stat().st_size > 3_000_000
    assert looks_like_profile(file)
    assert [one.name for one in read_profile(file)] == NAMES
    assert run("trace", file).code == 0


@pytest.mark.slow
def test_long_values_before_the_events_are_not_held() -> None:
    text = json.dumps({"long": "y" * 30_000_000, "list": ["z" * 50] * 200_000, "traceEvents": ROWS}).encode()
    stream = io.BytesIO(text)
    tracemalloc.start()
    try:
        assert len(list(read_events(stream, "late"))) == 4
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(max_size=12), min_size=1, max_size=6),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    st.integers(1, 40),
    st.booleans(),
)
def test_every_way_of_cutting_a_file_into_pieces_gives_the_same_events(
    named: list[str], other: Any, piece: int, ascii_only: bool
) -> None:
    rows = [ROW | {"name": name, "args": {"x": other, "y": {"z": [{}, other]}}} for name in named]
    whole = {"before": other, "}": "]", "traceEvents": [*rows, {"ph": "M", "args": other}], "after": other}
    text = json.dumps(whole, ensure_ascii=ascii_only)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chrome, "_PIECE", piece)
        stream = io.BytesIO(text.encode("utf-8", "surrogatepass"))
        assert [row.name for row in read_events(stream, "cut")] == named


def test_events_that_are_no_slices_may_look_as_they_like() -> None:
    odd = [{"ph": "C", "ts": "soon"}, {"ph": "X", "cat": "gpu_op", "dur": None}, {"ph": "M", "args": [1]}]
    assert names(json.dumps([*odd, *ROWS, *odd]).encode()) == NAMES


WRONG: list[tuple[bytes, str]] = [
    (b"", "begins with ''"),
    (b"hello", "begins with 'hello'"),
    (b"{}", "no 'traceEvents'"),
    (b'{"schema": 1, "events": []}', "no 'traceEvents'"),
    (b'{"traceEvents": 3}', "'traceEvents' is '3}', not a list"),
    (b'{"traceEvents": {"a": 1}}', "not a list"),
    (b"[1, 2]", "event 0 begins with '1, 2]'"),
    (b'{"traceEvents": [' + json.dumps(ROW).encode() + b", ", "ends within 'traceEvents', after event 1"),
    (b"[" + json.dumps(ROW).encode() + b', {"ph": "X", "na', "ends within event 1"),
    (b'[{"ph": "X", "cat": "cpu_op", "name": "b", "ts": "noon"}]', "noon"),
    (b'[{"ph": "X", "cat": "cpu_op", "name": "c", "ts": NaN}]', "event 0 .*NaN"),
    (b'{"a": "never closed', "ends within a text in quotes"),
    (b'{"a": [[[', "ends within a value before"),
    (b"{" * 100_000, "no 'traceEvents'"),
    (b"[" + b'{"args":' * 20_000, "ends within event 0"),
    (b'[{"ph": "X", "cat": "cpu_op", "args":' + b"[" * 9000 + b"]" * 9000 + b"}]", "event 0"),
    (gzip.compress(json.dumps(ROWS).encode(), mtime=0)[:-12], "packed file is damaged"),
    (gzip.compress(b"x" * 100, mtime=0)[:10] + b"\0" * 50, "packed file is damaged"),
]


@pytest.mark.parametrize(("data", "message"), WRONG)
def test_what_is_wrong_is_said_and_quoted(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=message):
        parse_profile(data)
    file = tmp_path / "wrong.json"
    file.write_bytes(data)
    done = run("trace", file)
    assert done.code != 0
    assert "Traceback" not in done.err


def test_limits_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = json.dumps(ROWS).encode()
    file = tmp_path / "profile.json"
    file.write_bytes(data)
    with pytest.raises(PlanFileError, match="larger than 20 bytes"):
        read_profile(file, limit=20)
    with monkeypatch.context() as small:
        small.setattr(chrome, "MAX_UNPACKED", 50)
        with pytest.raises(PlanFileError, match="more than 50 bytes"):
            parse_profile(gzip.compress(data))
    with monkeypatch.context() as small:
        small.setattr("tightrope_trace.slices.MAX_SLICES", 3)
        with pytest.raises(PlanFileError, match="more than 3 slices"):
            parse_profile(data)
    with monkeypatch.context() as small:
        small.setattr(chrome, "MAX_EVENT", 30)
        small.setattr(chrome, "_PIECE", 20)
        with pytest.raises(PlanFileError, match="event 0 is longer than 30 bytes"):
            parse_profile(data)
    with pytest.raises(PlanFileError, match="is not a file"):
        read_profile(tmp_path)
