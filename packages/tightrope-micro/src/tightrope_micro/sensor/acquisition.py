"""Read, check, sign and write recordings of sensors in the signed acquisition format.

Idea        A recording is a map in JSON or CBOR: `protected` (version, algorithm), `signature` and `payload`.
            It is signed by its own bytes: with 64 zeros in the place of the signature, they are hashed with a
            key. So a reader needs no canonical form: it puts the zeros back and hashes what it was given.
Source      The format's public documentation; RFC 2104 (HMAC), RFC 8949 (CBOR)
Guarantee   A file that is verified was signed with the key, every byte of it. What is read and written
            again, in
            either encoding, is equal: numbers keep their value and whether they are whole.
Complexity  Linear in the file; at most `MAX_FILE_BYTES` are read.
Gaps        No streaming: a file is held whole. Bytes change when the encoding does, so it is signed anew.
"""

import hashlib
import hmac
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from tightrope.core import Bytes, TightropeError
from tightrope.core.units import shown

Encoding = Literal["json", "cbor"]

MAX_FILE_BYTES: Final[Bytes] = 32 * 2**20
MAX_ROWS: Final = 1_000_000
MAX_SENSORS: Final = 64
_MAX_INT: Final = 2**53
_DEPTH: Final = 8
_ZEROS: Final = "0" * 64
_CBOR_MAPS: Final = (*range(0xA0, 0xB8), 0xB8, 0xB9, 0xBA, 0xBB, 0xBF)

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class AcquisitionError(TightropeError, ValueError):
    """A recording that cannot be read, does not follow the format, or is not signed as it should be."""


class Protected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a recording is signed.

    Attributes:
        ver: of the format.
        alg: HS256, or none for a recording without a signature.
        iat: seconds since 1970 at which it was made.
    """

    ver: Literal["v1"]
    alg: Literal["HS256", "none"]
    iat: int | float | None = None


class Sensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One axis of a recording and its unit."""

    name: _Name
    units: _Text


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was recorded.

    Attributes:
        device_type: kind of device.
        interval_ms: milliseconds between two rows.
        sensors: the axes.
        values: a row per interval, with a number per axis.
        device_name: of the one device.
    """

    device_type: _Text
    interval_ms: int | float
    sensors: Annotated[tuple[Sensor, ...], msgspec.Meta(min_length=1, max_length=MAX_SENSORS)]
    values: Annotated[
        tuple[Annotated[tuple[int | float, ...], msgspec.Meta(max_length=MAX_SENSORS)], ...],
        msgspec.Meta(min_length=1, max_length=MAX_ROWS),
    ]
    device_name: _Text | None = None


class Acquisition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording, as it stands in a file."""

    protected: Protected
    signature: _Text
    payload: Payload


def acquisition(
    values: Sequence[Sequence[int | float]],
    sensors: Sequence[Sensor],
    *,
    interval_ms: int | float,
    device_type: str,
    signed: bool = True,
) -> Acquisition:
    """Make a recording of rows of numbers; `write_acquisition` signs it.

    Raises:
        AcquisitionError: a row has more or fewer numbers than there are sensors, or one is not finite.
    """
    payload = Payload(device_type, interval_ms, tuple(sensors), tuple(tuple(row) for row in values))
    made = Acquisition(Protected("v1", "HS256" if signed else "none"), _ZEROS, payload)
    _check(made, "a recording")
    return made


def encoding_of(data: bytes) -> Encoding:
    """Say how a recording is written, by its first byte."""
    return "cbor" if data[:1] and data[0] in _CBOR_MAPS else "json"


def read_acquisition(data: bytes, *, name: str = "the recording", key: str | None = None) -> Acquisition:
    """Read a recording and check it.

    Args:
        data: of a file.
        name: for messages.
        key: that it has to be signed with; None reads it without looking at the signature.

    Raises:
        AcquisitionError: it is cut short, does not follow the format, or is not signed with the key.
    """
    if len(data) > MAX_FILE_BYTES:
        raise AcquisitionError(
            f"{name} has {len(data)} B; at most {MAX_FILE_BYTES} are read: record in shorter pieces."
        )
    tree = _parse_cbor(data, name) if encoding_of(data) == "cbor" else _parse_json(data, name)
    try:
        found = msgspec.convert(tree, Acquisition)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise AcquisitionError(
            f"{name} does not follow the acquisition format: {error}. Export the recording again."
        ) from error
    _check(found, name)
    if key is not None:
        _verify(found, data, name, key)
    return found


def read_acquisition_file(path: str | Path, *, key: str | None = None) -> Acquisition:
    """Read a file as `read_acquisition` does.

    Raises:
        AcquisitionError: it cannot be read, or is refused.
    """
    try:
        if not Path(path).is_file():
            raise AcquisitionError(f"{str(path)!r} is no file: give recordings in JSON or CBOR.")
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AcquisitionError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    return read_acquisition(data, name=repr(str(path)), key=key)


def write_acquisition(recording: Acquisition, encoding: Encoding, *, key: str | None = None) -> bytes:
    """Write a recording; one whose algorithm is HS256 is signed anew.

    Raises:
        AcquisitionError: it has to be signed and there is no key, or CBOR cannot be written here.
    """
    _check(recording, "the recording")
    signed = recording.protected.alg == "HS256"
    if signed and not key:
        raise AcquisitionError(
            "a signature covers the bytes of a file, so another encoding needs a new signature: give the "
            "key (--key-file)."
        )
    blank = msgspec.structs.replace(recording, signature=_ZEROS) if signed else recording
    tree = msgspec.to_builtins(blank)
    data = _cbor().dumps(tree) if encoding == "cbor" else json.dumps(tree, allow_nan=False).encode()
    if not signed:
        return bytes(data)
    assert key is not None
    at = _place_of(_ZEROS, data, "the recording")
    return bytes(data[:at] + _digest(data, key).encode() + data[at + 64 :])


def _cbor() -> Any:
    try:
        import cbor2
    except ImportError as error:
        raise AcquisitionError(
            "CBOR needs the package cbor2: pip install 'tightrope[micro]', or use JSON."
        ) from error
    return cbor2


def _parse_cbor(data: bytes, name: str) -> object:
    cbor2 = _cbor()
    decoder = cbor2.CBORDecoder(
        io.BytesIO(data), max_depth=_DEPTH, allow_duplicate_keys=False, strict_hashable_types=True
    )
    try:
        found: object = decoder.decode()
    except cbor2.CBORDecodeEOF as error:
        raise _cut(name, "CBOR") from error
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise AcquisitionError(f"{name} is not CBOR: {error}. Export the recording again.") from error
    try:
        decoder.decode()
    except cbor2.CBORDecodeEOF:
        return found
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, MemoryError, RecursionError):
        pass  # more than one value stands in the file, whatever the rest is
    raise AcquisitionError(f"{name} has bytes behind its end. Export the recording again.")


def _parse_json(data: bytes, name: str) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a field stands twice")
        return found

    def refuse(word: str) -> object:
        raise ValueError(f"{word} is no number of JSON")

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as error:
        if error.pos >= len(data.decode().rstrip()) or "Unterminated" in error.msg:
            raise _cut(name, "JSON") from error
        raise AcquisitionError(
            f"{name} is neither JSON nor CBOR: {error}. Export the recording again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise AcquisitionError(f"{name} is not JSON: {error}. Export the recording again.") from error


def _cut(name: str, what: str) -> AcquisitionError:
    return AcquisitionError(
        f"{name} is cut short: its {what} ends in the middle of a value. Copy the file again from the device."
    )


def _check(found: Acquisition, name: str) -> None:
    """Check what a schema cannot say."""
    payload = found.payload
    if not (math.isfinite(payload.interval_ms) and 0 < payload.interval_ms <= 86_400_000):
        raise AcquisitionError(
            f"{name}: interval_ms = {shown(payload.interval_ms)}: give milliseconds above 0, of a day at "
            f"most."
        )
    names = [sensor.name for sensor in payload.sensors]
    if len(set(names)) < len(names):
        raise AcquisitionError(f"{name}: two sensors have one name: {', '.join(names)}. Rename one.")
    iat = found.protected.iat
    numbers = () if iat is None else (iat,)
    for at, row in enumerate((numbers, *payload.values)):
        where = f"row {at - 1}" if at else "protected.iat"
        if at and len(row) != len(names):
            raise AcquisitionError(
                f"{name}: {where} has {len(row)} numbers for {len(names)} sensors. Export the recording "
                f"again."
            )
        if any(abs(one) > _MAX_INT if isinstance(one, int) else not math.isfinite(one) for one in row):
            raise AcquisitionError(
                f"{name}: {where} has a number that is not finite, or a whole one beyond 2^53: {shown(row)}."
            )


def _verify(found: Acquisition, data: bytes, name: str, key: str) -> None:
    if found.protected.alg != "HS256":
        raise AcquisitionError(
            f"{name} is not signed (its algorithm is none): sign it, or read it with --no-verify."
        )
    signature = found.signature
    if len(signature) != 64 or set(signature) - set("0123456789abcdef"):
        raise AcquisitionError(f"{name}: its signature is not 64 hexadecimal digits in lower case.")
    at = _place_of(signature, data, name)
    blank = data[:at] + _ZEROS.encode() + data[at + 64 :]
    if not hmac.compare_digest(_digest(blank, key), signature):
        raise AcquisitionError(
            f"{name}: the signature does not match: the file was changed, or was signed with another key. "
            "Copy it again, or give the key of the project that it is from (--key-file)."
        )


def _place_of(signature: str, data: bytes, name: str) -> int:
    text = signature.encode()
    if data.count(text) != 1:
        raise AcquisitionError(f"{name}: its signature has to stand in it exactly once, as plain text.")
    return data.index(text)


def _digest(data: bytes, key: str) -> str:
    return hmac.new(key.encode(), data, hashlib.sha256).hexdigest()
