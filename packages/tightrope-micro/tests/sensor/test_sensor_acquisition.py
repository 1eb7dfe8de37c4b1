"""Signed recordings: round trips, damage, signatures, limits."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import TightropeError
from tightrope_micro.sensor import (
    AcquisitionError,
    Sensor,
    acquisition,
    gesture,
    ingest,
    read_acquisition,
    read_dataset,
    write_acquisition,
    write_dataset,
)
from tightrope_micro.sensor.acquisition import MAX_FILE_BYTES

try:
    import cbor2
except ImportError:
    cbor2 = None
ENCODINGS = ["json", pytest.param("cbor", marks=pytest.mark.skipif(cbor2 is None, reason="no cbor2"))]
KEY = "fed53116f20684c067774ebf9e7bcbdc"
SMALL = acquisition(
    [[1.0, -2], [0.1, 2**53]], [Sensor("x", "m/s2"), Sensor("\u00b5", "")], interval_ms=16, device_type="T"
)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_change_of_one_byte_and_every_cut_is_refused(encoding: Any) -> None:
    data = write_acquisition(SMALL, encoding, key=KEY)
    assert read_acquisition(data, key=KEY).payload == SMALL.payload
    for at in range(len(data)):
        for flip in (1, 0x20, 0x80, 0xFF):
            wrong = bytearray(data)
            wrong[at] ^= flip
            with pytest.raises(AcquisitionError):
                read_acquisition(bytes(wrong), key=KEY)
        with pytest.raises(AcquisitionError, match="again"):
            read_acquisition(data[:at])


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


@pytest.mark.skipif(cbor2 is None, reason="no cbor2")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.floats(0.1, 1e4) | st.integers(1, 999)
)
def test_json_and_cbor_carry_the_same_numbers(rows: list[tuple[float, float]], interval: float) -> None:
    made = acquisition(rows, SMALL.payload.sensors, interval_ms=interval, device_type="T")
    as_json = write_acquisition(made, "json", key=KEY)
    as_cbor = write_acquisition(read_acquisition(as_json, key=KEY), "cbor", key=KEY)
    back = write_acquisition(read_acquisition(as_cbor, key=KEY), "json", key=KEY)
    assert back == as_json
    kinds = [[type(one) for one in row] for row in read_acquisition(as_cbor).payload.values]
    assert kinds == [[type(one) for one in row] for row in rows]
    assert write_acquisition(read_acquisition(back, key=KEY), "cbor", key=KEY) == as_cbor


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_another_key_and_no_signature_are_refused(encoding: Any) -> None:
    data = write_acquisition(SMALL, encoding, key=KEY)
    with pytest.raises(AcquisitionError, match="signed with another key"):
        read_acquisition(data, key="another")
    with pytest.raises(AcquisitionError, match="give the key"):
        write_acquisition(SMALL, encoding)
    plain = acquisition([[1.0]], [Sensor("x", "")], interval_ms=1, device_type="", signed=False)
    unsigned = write_acquisition(plain, encoding)
    assert read_acquisition(unsigned) == plain
    with pytest.raises(AcquisitionError, match="--no-verify"):
        read_acquisition(unsigned, key=KEY)


def changed(**fields: Any) -> bytes:
    tree = json.loads(write_acquisition(SMALL, "json", key=KEY))
    tree["payload"] |= fields
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (changed(values=[[1.0]]), "row 0 has 1 numbers for 2 sensors"),
        (changed(values=[[1.0, True]]), "Expected"),
        (changed(values=[[1.0, 2**60]]), "beyond 2\\^53"),
        (changed(values=[[1.0, float("nan")]]), "NaN"),
        (changed(values=[]), "length >= 1"),
        (changed(interval_ms=0), "above 0"),
        (changed(interval_ms=1e999), "Infinity"),
        (changed(sensors=[{"name": "x", "units": ""}] * 2), "two sensors have one name"),
        (changed(more=1), "unknown field"),
        (b'{"protected": {"ver": "v1"}, "protected": {"ver": "v1"}}', "stands twice"),
        (b'{"a":' * 100_000, "again"),
        (b"", "cut short"),
        (b"hello", "neither JSON nor CBOR"),
        (b"\xff\xfe", "not JSON"),
        (b" " * (MAX_FILE_BYTES + 1), "record in shorter pieces"),
    ],
)
def test_what_does_not_follow_the_format_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(AcquisitionError, match=says):
        read_acquisition(data)


@pytest.mark.skipif(cbor2 is None, reason="no cbor2")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xbb" + b"\x7f" * 8 + b"\x61a", "cut short"),
        (b"\xa1\x61a\x5b" + b"\x7f" + b"\xff" * 7, "cut short"),
        (b"\xa1\x61a" + b"\x81" * 99, "nesting depth"),
        (b"\xa2\x61a\x01\x61a\x01", "is not CBOR"),
        (write_acquisition(SMALL, "cbor", key=KEY) + b"\x00" if cbor2 else b"", "behind its end"),
    ],
)
def test_cbor_that_lies_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(AcquisitionError, match=says):
        read_acquisition(data)


def test_a_data_set_is_read_back_as_written(tmp_path: Path) -> None:
    for k, label in enumerate(("idle", "circles", "idle")):
        data = write_acquisition(gesture(label, seconds=1.0, seed=k), "json", key=KEY)
        (tmp_path / f"{label}.{k}.json").write_bytes(data)
    found = ingest([tmp_path], key=KEY)
    assert (found.labels, found.verified, len(found.recordings)) == (("circles", "idle"), True, 3)
    write_dataset(tmp_path / "data.npz", found)
    back = read_dataset(tmp_path / "data.npz")
    assert (back.sensors, back.interval_ms, back.verified) == (found.sensors, 16.0, True)
    for one, two in zip(found.recordings, back.recordings, strict=True):
        assert (one.name, one.label) == (two.name, two.label)
        assert (one.values == two.values).all()
    damaged = (tmp_path / "data.npz").read_bytes()[:-40]
    (tmp_path / "cut.npz").write_bytes(damaged)
    with pytest.raises(TightropeError, match="Ingest the recordings again"):
        read_dataset(tmp_path / "cut.npz")


def test_recordings_that_differ_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(write_acquisition(SMALL, "json", key=KEY))
    (tmp_path / "b.json").write_bytes(write_acquisition(gesture("idle", seconds=1), "json", key=KEY))
    with pytest.raises(AcquisitionError, match="differ in sensors"):
        ingest([tmp_path], key=KEY)
    with pytest.raises(AcquisitionError, match="is no file"):
        ingest([tmp_path / "c.json"], key=KEY)
