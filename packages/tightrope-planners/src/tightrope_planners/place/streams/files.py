"""Ops on parallel streams from a JSON file, and what was decided about them back into one.

    {"format": "tightrope-streams",
     "streams": [0, 1, 1, 0],
     "waits": [[0, 1]],
     "storages": [{"bytes": 128, "writer": 0, "reads": [1]}, {"bytes": 64, "writer": 1}]}

``streams`` names the stream of every op in issue order; a wait ``[u, v]`` lets op ``v`` start after op
``u`` has ended; a storage without ``writer`` is the caller's. ``reads``, ``mutates`` and ``resident``
mean what they mean in `StreamStorage`; ``alignment`` is 1 unless given.
"""

import json
from pathlib import Path
from typing import Final

import msgspec

from tightrope.core import Bytes, Offset, OpId, TightropeError
from tightrope.core.json_text import check_values, parse_json
from tightrope.place.placer import LARGEST
from tightrope_planners.place.source import open_target, read_source, read_start
from tightrope_planners.place.streams.graph import StreamGraph, StreamStorage

_FORMAT: Final = "tightrope-streams"
_HEAD: Final[Bytes] = 4096


class _Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    writer: int = -1
    reads: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    resident: bool = False
    alignment: int = 1
    offset: int = -1


class _StreamFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    streams: tuple[int, ...]
    storages: tuple[_Storage, ...]
    waits: tuple[tuple[int, int], ...] = ()


def has_streams(path: str | Path) -> bool:
    """Tell whether a file says, in its first 4096 bytes, that it holds ops on streams.

    Raises:
        TightropeError: the file cannot be read.
    """
    start = read_start(path, _HEAD).lstrip()
    return start[:1] == b"{" and f'"{_FORMAT}"'.encode() in start


def read_streams(path: str | Path) -> tuple[StreamGraph, tuple[Bytes, ...]]:
    """Read ops on streams from a file, gzipped or not.

    Args:
        path: the file, see the head of this module; offsets in it are not taken.

    Returns:
        The graph, and the alignment of every storage.

    Raises:
        TightropeError: the file cannot be read or is malformed, or a number in it is out of range.

    Example:
        >>> read_streams("step.streams.json")[0].num_streams  # doctest: +SKIP
        2
    """
    tree = parse_json(read_source(path), str(path))
    check_values(tree, str(path))
    try:
        found = msgspec.convert(tree, _StreamFile)
    except msgspec.ValidationError as error:
        raise TightropeError(f"{path}: {error}.") from error
    if found.format != _FORMAT:
        raise TightropeError(f"{path}: format is {found.format!r}; it must be {_FORMAT!r}.")
    storages = [StreamStorage(s.bytes, s.writer, s.reads, s.mutates, s.resident) for s in found.storages]
    for number, storage in enumerate(found.storages):
        if not 1 <= storage.alignment <= LARGEST:
            raise TightropeError(
                f"{path}: $.storages[{number}].alignment is {storage.alignment}, outside 1..2^60."
            )
    try:
        graph = StreamGraph.of(found.streams, storages, found.waits)
    except TightropeError as error:
        raise TightropeError(f"{path}: {error}") from error
    return graph, tuple(storage.alignment for storage in found.storages)


def write_streams(
    path: str | Path,
    graph: StreamGraph,
    offsets: tuple[Offset, ...],
    *,
    alignments: tuple[Bytes, ...] = (),
) -> None:
    """Write a graph, its waits and the offsets of its storages as JSON.

    Args:
        path: where to; a name that ends in ``.gz`` is compressed.
        graph: with the waits that ``offsets`` are safe under.
        offsets: one per storage, -1 for those of the caller.
        alignments: one per storage; none = 1.

    Raises:
        TightropeError: the file cannot be written.
    """
    waits: tuple[tuple[OpId, OpId], ...] = graph.wait_pairs()
    rows = [
        {**storage._asdict(), "alignment": alignment, "offset": offset}
        for storage, alignment, offset in zip(
            graph.storages(), alignments or (1,) * len(offsets), offsets, strict=True
        )
    ]
    tree = {"format": _FORMAT, "streams": graph.streams.tolist(), "waits": waits, "storages": rows}
    with open_target(path) as text:
        text.write(json.dumps(tree) + "\n")
