"""What a file is, by how it begins or by its fields: for messages about a file of another kind."""

import zlib
from collections.abc import Collection
from typing import Final

TRACE_FILE: Final = b"TRTRACE"
"""How a trace file of any version begins."""
_BEGINNINGS: Final = (
    (TRACE_FILE, "a trace", "tightrope trace reads it"),
    (b"tightrope step", "a saved step", "tightrope run reads it"),
    (b"PK\x03\x04", "a zip file, such as torch.save writes", "nothing here reads it"),
    (b"\x80", "a pickle or another binary file", "nothing here reads it"),
    (b"\xff\xfe", "text in UTF-16", "write it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "write it as UTF-8"),
)
_ZIPPED: Final = b"\x1f\x8b"
_FIELDS: Final = (
    ("schedule", "plan", "a plan", "tightrope explain and tightrope trace read it"),
    ("ops", "graph", "a graph", "tightrope plan makes a plan of it"),
    ("distributions", "lock", "a lock of an environment", "tightrope verify reads it"),
    ("instructions", "executable", "an executable", "nothing here reads it"),
    ("traceEvents", "profile", "a profile", "tightrope trace reads it"),
)
"""A field that no other kind has, the kind, in words, what to do with it."""


def recognized(data: bytes) -> str:
    """Say in a sentence what data is that should be something else; empty where that is not known.

    >>> recognized(b"TRTRACE1...")
    'It is a trace: tightrope trace reads it.'
    """
    zipped = data.startswith(_ZIPPED)
    start = _unzipped(data[:4096]) if zipped else data
    for beginning, what, reader in _BEGINNINGS:
        if start.startswith(beginning):
            return f"It is {what}, gzipped: unzip it; {reader}." if zipped else f"It is {what}: {reader}."
    return "It is gzipped: unzip it first." if zipped else ""


def recognized_fields(fields: Collection[str], wanted: str) -> str:
    """Say what a JSON object with these fields is, where it is not of the kind ``wanted``; else empty.

    >>> recognized_fields({"ops", "storages"}, "plan")
    'It is a graph: tightrope plan makes a plan of it.'
    """
    for field, kind, what, reader in _FIELDS:
        if field in fields and kind != wanted:
            return f"It is {what}: {reader}."
    return ""


def _unzipped(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(data, 64)
    except zlib.error:
        return b""
