"""Placement instances from files of any known kind, told apart by their content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tightrope.core import ALIGNMENT, Bytes, TightropeError, Trace, round_up
from tightrope.core.codec import load_trace
from tightrope.core.json_text import parse_json
from tightrope.place.options import PlaceOptions
from tightrope.place.placer import Placement
from tightrope_planners.place.csv import parse_csv
from tightrope_planners.place.instance import Instance, place_instance
from tightrope_planners.place.snapshot import TO_JSON, parse_snapshot
from tightrope_planners.place.somas import parse_somas
from tightrope_planners.place.source import read_source


def read_instance(path: str | Path, *, device: int | None = None) -> Instance:
    """Read an instance from a file.

    Known kinds, each gzipped or not: CSV of MiniMalloc, dumps of MindSpore's SOMAS, CUDA memory
    snapshots as JSON, and traces of this package as JSON. Nothing is ever unpickled.

    Args:
        path: the file.
        device: of a CUDA snapshot with several.

    Returns:
        Its buffers.

    Raises:
        TightropeError: the file cannot be read, is a pickle, or is malformed.

    Example:
        >>> len(read_instance("step.trace.json").buffers)  # doctest: +SKIP
        440
    """
    data, name = read_source(path), str(path)
    start = data[:4096].lstrip()
    if data[:1] == b"\x80" or data[:2] == b"PK":
        raise TightropeError(
            f"{name!r} is a pickle, and opening one can run code; nothing is unpickled here. Where "
            f"it was made: {TO_JSON}"
        )
    if start[:1] == b"{":
        return _from_json(data, name, device)
    if b"Somas EDGE" in start or b"Somas CONTIGUOUS" in start:
        return parse_somas(data, name)
    return parse_csv(data, name)


def place_file(
    path: str | Path,
    *,
    capacity: Bytes | None = None,
    minimize: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
    options: PlaceOptions | None = None,
    device: int | None = None,
) -> tuple[Instance, Placement]:
    """Place the buffers of a file; offsets given in the file stay fixed.

    Args:
        path: see `read_instance`.
        capacity: bytes to fit into.
        minimize: keep lowering the peak after the capacity is reached.
        seconds: limit on the effort, see `place`.
        seed: of the random orders.
        options: techniques to switch off.
        device: of a CUDA snapshot with several.

    Returns:
        The instance and its placement, see `place_instance`.

    Raises:
        TightropeError: the file or a buffer is malformed.
    """
    instance = read_instance(path, device=device)
    placement = place_instance(
        instance, capacity=capacity, minimize=minimize, seconds=seconds, seed=seed, options=options
    )
    return instance, placement


def from_trace(trace: Trace) -> Instance:
    """Take the buffers of a trace, sizes rounded up to 64 bytes; their offsets are not fixed.

    Example:
        >>> from tightrope.core import Buffer
        >>> from_trace(Trace("observed", (Buffer(100, 0, 1),), num_events=1)).buffers
        ((128, 0, 1),)
    """
    count = len(trace.buffers)
    buffers: Sequence[tuple[Bytes, int, int]] = [
        (round_up(buffer.bytes), buffer.start, max(buffer.end, buffer.start + 1)) for buffer in trace.buffers
    ]
    return Instance(
        buffers=tuple(buffers),
        names=tuple(str(number) for number in range(count)),
        alignments=(ALIGNMENT,) * count,
        offsets=(-1,) * count,
    )


def _from_json(data: bytes, name: str, device: int | None) -> Instance:
    tree: Any = parse_json(data, name)
    if "device_traces" in tree:
        return parse_snapshot(tree, name, device=device)
    if "buffers" in tree:
        return from_trace(load_trace(data))
    raise TightropeError(
        f"{name}: neither a trace ('buffers') nor a CUDA memory snapshot ('device_traces'); "
        f"it has {sorted(map(str, tree))[:6]}."
    )
