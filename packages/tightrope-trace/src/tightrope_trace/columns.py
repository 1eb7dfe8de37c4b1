"""Traces as columns: a small binary file that a browser can read with nothing but typed arrays.

    file    = magic (8 bytes) + zlib(body)
    body    = u32 length of the header + header (JSON, UTF-8) + columns, one after another
    column  = count values of 1, 2, 4 or 8 bytes, two's complement, as byte planes: first the lowest
              byte of every value, then the next one, ... ; "delta" columns hold differences

Idea        Times are stored as gaps and durations in the fewest bytes that hold them; names, modules
            and phases as numbers into tables. Byte planes put bytes that look alike side by side,
            which is what deflate wants.
Guarantee   `load` gives back an equal trace, or raises `PlanFileError`; nothing is executed, and no
            more than 1 GiB is ever unpacked.
Complexity  Linear.
Gaps        The whole trace is held in memory while it is read or written.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tightrope.core import Buffer, Category, Doubt, Event, EventPhase, PlanFileError, Trace
from tightrope.core.codec import read_file
from tightrope.core.json_text import check_values, parse_json, quote
from tightrope.core.recognize import TRACE_FILE, recognized
from tightrope.core.trace_check import MAX_ROWS, check_trace
from tightrope.core.writing import write_whole

MAGIC: Final = TRACE_FILE + b"1"
MAX_BODY: Final = 2**30
DECISIONS: Final = ("", "kept", "recomputed", "paged", "temporary")
PHASES: Final = tuple(EventPhase)
DOUBTS: Final = tuple(Doubt)
CATEGORIES: Final = tuple(Category)

_Ints = npt.NDArray[np.int64]


class _Header(msgspec.Struct, frozen=True):
    """Everything that is small, and what stands in the columns: (name, bytes per value, delta, count)."""

    trace: dict[str, Any]
    names: list[str]
    columns: list[tuple[str, int, bool, int]]
    schema: int = 1


def dump(trace: Trace, *, level: int = 9) -> bytes:
    """Write a trace as columns.

    Args:
        trace: what to write.
        level: of compression, 1 (fast) to 9 (small).

    Raises:
        PlanFileError: the trace is not well formed.

    Example:
        >>> load(dump(Trace("observed", ()))) == Trace("observed", ())
        True
    """
    check_trace(trace)
    small = msgspec.to_builtins(
        msgspec.structs.replace(trace, events=(), buffers=(), ticks=(), counters=(), repeats=())
    )
    names: dict[str, int] = {}
    columns = _columns(trace, names)
    small["counters"] = [[counter.name, counter.unit] for counter in trace.counters]
    packed = [(name, delta, *_pack(values, delta=delta)) for name, delta, values in columns]
    specs = [
        (name, width, delta, len(values))
        for (name, delta, values), (_, _, width, _) in zip(columns, packed, strict=True)
    ]
    header = msgspec.to_builtins(_Header(small, list(names), specs))
    check_values(header, "trace")
    text = msgspec.json.encode(header)
    body = b"".join([struct.pack("<I", len(text)), text, *(data for *_, data in packed)])
    return MAGIC + zlib.compress(body, level)


def load(data: bytes) -> Trace:
    """Read a trace written by `dump`.

    Raises:
        PlanFileError: the data is not a well-formed trace of this version; says what is wrong.
    """
    if data.startswith(TRACE_FILE) and data[7:8] != MAGIC[7:8]:
        raise PlanFileError(f"trace: version {quote(data[7:8])}: this version reads {MAGIC[7:8]!r}.")
    if data[:8] != MAGIC:
        raise PlanFileError(
            f"trace: not a trace file: it begins with {quote(data[:8])}, not {MAGIC!r}. "
            f"{recognized(data) or 'Give a file that tightrope record wrote.'}"
        )
    body = _inflate(data[8:])
    if len(body) < 4 or (end := 4 + struct.unpack("<I", body[:4])[0]) > len(body):
        raise PlanFileError("trace: the file ends within its header. Record it again.")
    tree = parse_json(body[4:end], "trace")
    check_values(tree, "trace")
    try:
        header = msgspec.convert(tree, _Header)
        if header.schema != 1:
            raise PlanFileError(f"trace: schema {header.schema}: this version reads schema 1.")
        columns = _unpack_all(header, body, end)
        trace = _trace(header, columns)
    except (msgspec.ValidationError, KeyError, IndexError, ValueError, TypeError, OverflowError) as error:
        raise PlanFileError(
            f"trace: not well formed: {type(error).__name__}: {quote(str(error))}. Record it again."
        ) from error
    check_trace(trace)
    return trace


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace file, by convention ``NAME.trace``.

    Raises:
        PlanFileError: the trace is not well formed, or the file cannot be written.
    """
    write_whole(path, dump(trace))


def read(path: str | Path) -> Trace:
    """Read a trace file written by `save`, of at most 256 MiB.

    Raises:
        PlanFileError: the file cannot be read, or is not a trace of this version.
    """
    return load(read_file(path))


def is_trace(path: str | Path) -> bool:
    """Whether a file begins as one written by `save`, of whatever version."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(len(TRACE_FILE)) == TRACE_FILE
    except (OSError, ValueError):
        return False


def _columns(trace: Trace, names: dict[str, int]) -> list[tuple[str, bool, Sequence[int]]]:
    """List the columns: name, whether differences are stored, values."""
    events, buffers = trace.events, trace.buffers
    phases = {phase: number for number, phase in enumerate(PHASES)}
    doubts = {doubt: number for number, doubt in enumerate(DOUBTS)}
    kinds = {category: number for number, category in enumerate(CATEGORIES)}
    decisions = {decision: number for number, decision in enumerate(DECISIONS)}
    readers = [(number, reader) for number, buffer in enumerate(buffers) for reader in buffer.readers]
    found: list[tuple[str, bool, Sequence[int]]] = [
        ("event.start", True, [event.start for event in events]),
        ("event.duration", False, [event.end - event.start for event in events]),
        ("event.op", True, [event.op for event in events]),
        ("event.name", False, [names.setdefault(event.name, len(names)) for event in events]),
        ("event.module", False, [event.module for event in events]),
        ("event.phase", False, [phases[event.phase] for event in events]),
        ("event.thread", False, [event.thread for event in events]),
        ("event.line", False, [event.line for event in events]),
        ("event.doubt", False, [doubts[event.doubt] for event in events]),
        ("event.callers", False, [event.callers for event in events]),
        ("buffer.bytes", False, [buffer.bytes for buffer in buffers]),
        ("buffer.start", True, [buffer.start for buffer in buffers]),
        ("buffer.length", False, [buffer.end - buffer.start for buffer in buffers]),
        ("buffer.offset", False, [buffer.offset for buffer in buffers]),
        ("buffer.storage", True, [buffer.storage for buffer in buffers]),
        ("buffer.creator", True, [buffer.creator for buffer in buffers]),
        ("buffer.category", False, [kinds[buffer.category] for buffer in buffers]),
        ("buffer.decision", False, [decisions[buffer.decision] for buffer in buffers]),
        ("buffer.reason", True, [buffer.reason for buffer in buffers]),
        ("buffer.copy", False, [buffer.copy for buffer in buffers]),
        ("reader.buffer", True, [number for number, _ in readers]),
        ("reader.event", True, [reader for _, reader in readers]),
        ("tick", True, trace.ticks),
    ]
    found += [(f"repeat.{number}", False, own) for number, own in enumerate(trace.repeats)]
    for number, counter in enumerate(trace.counters):
        found += [
            (f"counter.{number}.time", True, counter.times),
            (f"counter.{number}.value", True, counter.values),
        ]
    return found


def _pack(values: Sequence[int], *, delta: bool) -> tuple[int, bytes]:
    """Store values in the fewest bytes that hold them all, as byte planes."""
    array = np.asarray(values, dtype=np.int64)
    if delta:
        array = np.diff(array, prepend=np.int64(0))
    low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
    width = next(w for w in (1, 2, 4, 8) if -(2 ** (8 * w - 1)) <= low and high < 2 ** (8 * w - 1))
    planes = array.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
    return width, np.ascontiguousarray(planes).tobytes()


def _unpack_all(header: _Header, body: bytes, at: int) -> dict[str, _Ints]:
    found: dict[str, _Ints] = {}
    for name, width, delta, count in header.columns:
        if width not in (1, 2, 4, 8) or not 0 <= count <= MAX_ROWS or name in found:
            raise ValueError(f"column {name[:40]!r} of {count} values of {width} bytes")
        size = width * count
        if at + size > len(body):
            raise ValueError(f"the file ends within column {name[:40]!r}")
        planes = np.frombuffer(body, np.uint8, size, at).reshape(width, count)
        values = np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(count).astype(np.int64)
        found[name] = np.cumsum(values) if delta else values
        at += size
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes too many")
    return found


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(data, MAX_BODY)
    except zlib.error as error:
        raise PlanFileError(f"trace: the file is damaged: {error}. Record it again.") from error
    if not unpacker.eof:
        more = unpacker.unconsumed_tail
        what = f"it unpacks to more than {MAX_BODY} bytes" if more else "it is cut short"
        raise PlanFileError(f"trace: the file is damaged: {what}. Record it again.")
    if unpacker.unused_data:
        raise PlanFileError(
            f"trace: the file is damaged: {len(unpacker.unused_data)} bytes follow its end. Record it again."
        )
    return body


def _trace(header: _Header, columns: dict[str, _Ints]) -> Trace:
    small = dict(header.trace)
    names = small.pop("counters", [])
    if len(names) > 1000:
        raise ValueError(f"{len(names)} counters")
    small["counters"] = [
        [name, unit, columns[f"counter.{number}.time"].tolist(), columns[f"counter.{number}.value"].tolist()]
        for number, (name, unit) in enumerate(names)
    ]
    small |= {"events": (), "buffers": ()}
    repeats = sum(name.startswith("repeat.") for name in columns)
    trace = msgspec.convert(small, Trace)
    return msgspec.structs.replace(
        trace,
        events=_events(columns, header.names),
        buffers=_buffers(columns),
        ticks=tuple(columns["tick"].tolist()),
        repeats=tuple(tuple(columns[f"repeat.{number}"].tolist()) for number in range(repeats)),
    )


def _events(columns: dict[str, _Ints], names: list[str]) -> tuple[Event, ...]:
    start, duration = columns["event.start"], columns["event.duration"]
    _few("event.name", columns["event.name"], len(names))
    _few("event.phase", columns["event.phase"], len(PHASES))
    doubts = columns.get("event.doubt", np.zeros(len(start), np.int64))  # files from before had none
    _few("event.doubt", doubts, len(DOUBTS))
    callers = columns.get("event.callers", np.full(len(start), -1))
    rows = zip(
        start.tolist(),
        (start + duration).tolist(),
        columns["event.op"].tolist(),
        [names[number] for number in columns["event.name"].tolist()],
        columns["event.module"].tolist(),
        [PHASES[number] for number in columns["event.phase"].tolist()],
        columns["event.thread"].tolist(),
        columns["event.line"].tolist(),
        [DOUBTS[number] for number in doubts.tolist()],
        callers.tolist(),
        strict=True,
    )
    return tuple(Event(*row) for row in rows)


def _buffers(columns: dict[str, _Ints]) -> tuple[Buffer, ...]:
    start, length = columns["buffer.start"], columns["buffer.length"]
    _few("buffer.category", columns["buffer.category"], len(CATEGORIES))
    _few("buffer.decision", columns["buffer.decision"], len(DECISIONS))
    readers: list[list[int]] = [[] for _ in range(len(start))]
    _few("reader.buffer", columns["reader.buffer"], len(start))
    for number, reader in zip(
        columns["reader.buffer"].tolist(), columns["reader.event"].tolist(), strict=True
    ):
        readers[number].append(reader)
    rows = zip(
        columns["buffer.bytes"].tolist(),
        start.tolist(),
        (start + length).tolist(),
        columns["buffer.offset"].tolist(),
        columns["buffer.storage"].tolist(),
        columns["buffer.creator"].tolist(),
        [CATEGORIES[number] for number in columns["buffer.category"].tolist()],
        [DECISIONS[number] for number in columns["buffer.decision"].tolist()],
        columns["buffer.reason"].tolist(),
        columns["buffer.copy"].tolist(),
        map(tuple, readers),
        strict=True,
    )
    return tuple(Buffer(*row) for row in rows)


def _few(name: str, values: _Ints, count: int) -> None:
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < count:
        raise ValueError(f"{name} beyond its table of {count}")
