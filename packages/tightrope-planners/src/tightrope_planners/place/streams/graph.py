"""Ops on parallel streams, the waits between them, and the storages that they use.

Ops are numbered in issue order. Ops of one stream run one after another; ops of different streams
run at any time, except that a wait (u, v) lets op v start only after op u has ended (on CUDA: an
event recorded behind u, for which the stream of v waits). All streams are joined before the first
op and after the last.

    stream 0   a----b----------d      wait (y, d): d starts after y has ended
                              /
    stream 1        x----y---+        nothing orders b and x: they may run at once
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from tightrope.core import Bytes, OpId, StorageId, TightropeError
from tightrope.place.options import integers
from tightrope_planners.solvers.safety import Booleans, Integers, Issue

_MAX_OPS: Final = 2**30
_MAX_STREAMS: Final = 1024
_LARGEST: Final = 2**60


class StreamStorage(NamedTuple):
    """One allocation and the ops that use it.

    Attributes:
        bytes: size.
        writer: op that allocates and writes it; -1 = the caller does, before the first op.
        reads: ops that read it.
        mutates: ops that change it in place.
        resident: still needed after the last op.
    """

    bytes: Bytes
    writer: OpId = -1
    reads: tuple[OpId, ...] = ()
    mutates: tuple[OpId, ...] = ()
    resident: bool = False


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """A step on several streams, as arrays; `of` makes one from plain values.

    Attributes:
        streams: stream of each op, in issue order.
        waits: rows (earlier op, later op).
        sizes: bytes of each storage.
        writers: op that allocates each storage, -1 for those of the caller: they are checked for
            hazards, and never placed.
        reads: rows (storage, op).
        mutates: rows (storage, op) of changes in place.
        resident: storages that outlive the last op.
    """

    streams: Integers
    waits: Integers
    sizes: Integers
    writers: Integers
    reads: Integers
    mutates: Integers
    resident: Booleans

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_ranges(self)

    @staticmethod
    def of(
        streams: Sequence[int],
        storages: Sequence[StreamStorage],
        waits: Iterable[tuple[OpId, OpId]] = (),
    ) -> "StreamGraph":
        """Make a graph from plain values.

        Args:
            streams: stream of each op, in issue order.
            storages: what the ops use.
            waits: pairs (earlier op, later op).

        Raises:
            TightropeError: a number is out of range, or a use or a wait goes back in issue order.

        Example:
            >>> graph = StreamGraph.of([0, 1], [StreamStorage(64, 0, reads=(1,))], [(0, 1)])
            >>> graph.num_streams
            2
        """
        for number, storage in enumerate(storages):
            if not isinstance(storage, StreamStorage) or not all(
                isinstance(uses, Sequence) for uses in (storage.reads, storage.mutates)
            ):
                raise TightropeError(f"storage {number} is {storage!r:.200}: it must be a StreamStorage.")
        reads = [(number, op) for number, storage in enumerate(storages) for op in storage.reads]
        mutates = [(number, op) for number, storage in enumerate(storages) for op in storage.mutates]
        return StreamGraph(
            streams=_column(streams),
            waits=_rows(waits),
            sizes=_column([storage.bytes for storage in storages]),
            writers=_column([storage.writer for storage in storages]),
            reads=_rows(reads),
            mutates=_rows(mutates),
            resident=np.array([storage.resident for storage in storages], dtype=np.bool_),
        )

    def with_waits(self, waits: Iterable[tuple[OpId, OpId]]) -> "StreamGraph":
        """Return the graph with these waits and no others.

        Raises:
            TightropeError: a wait is out of range or goes back in issue order.
        """
        return replace(self, waits=_rows(waits))

    def wait_pairs(self) -> tuple[tuple[OpId, OpId], ...]:
        """List the waits as (earlier op, later op)."""
        return tuple((earlier, later) for earlier, later in self.waits.tolist())

    def storages(self) -> tuple[StreamStorage, ...]:
        """List the storages as plain values."""
        uses: list[tuple[list[OpId], list[OpId]]] = [([], []) for _ in self.sizes]
        for kind, rows in enumerate((self.reads, self.mutates)):
            for storage, op in rows.tolist():
                uses[storage][kind].append(op)
        columns = zip(self.sizes.tolist(), self.writers.tolist(), uses, self.resident.tolist(), strict=True)
        return tuple(StreamStorage(size, w, tuple(r), tuple(m), kept) for size, w, (r, m), kept in columns)

    @property
    def num_streams(self) -> int:
        """Number of streams: the largest stream number plus one."""
        return self.issue.num_streams

    @cached_property
    def issue(self) -> Issue:
        """Position of every op in its stream."""
        order = np.argsort(self.streams, kind="stable")
        lengths = np.bincount(self.streams, minlength=1) if len(self.streams) else np.zeros(1, np.int64)
        base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        position = np.empty(len(order), dtype=np.int32)
        position[order] = np.arange(len(order)) - np.repeat(base[:-1], lengths)
        return Issue(self.streams.astype(np.int32), position, base)

    @cached_property
    def placed(self) -> Integers:
        """Storages to place, in the order in which their writers were issued."""
        ours = np.flatnonzero(self.writers >= 0)
        return ours[np.argsort(self.writers[ours], kind="stable")]


def _column(values: Sequence[int]) -> Integers:
    try:
        return integers(values).reshape(len(values))
    except (ValueError, TypeError, OverflowError) as error:
        raise TightropeError(f"streams, ops and sizes are integers of at most 62 bits: {error}.") from error


def _rows(pairs: Iterable[tuple[int, int]]) -> Integers:
    rows = list(pairs)
    try:
        return integers(rows).reshape(len(rows), 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise TightropeError(f"waits and uses are pairs of op or storage numbers: {error}.") from error


def _check_shapes(graph: StreamGraph) -> None:
    """Refuse arrays that the native part could not read."""
    for name in ("streams", "sizes", "writers", "resident", "waits", "reads", "mutates"):
        array = getattr(graph, name)
        wanted = np.bool_ if name == "resident" else np.int64
        columns = (2,) if name in ("waits", "reads", "mutates") else ()
        if array.dtype != wanted or array.shape[1:] != columns or not array.flags.c_contiguous:
            raise TightropeError(
                f"{name} must be a contiguous array of {np.dtype(wanted).name}"
                f"{' with rows of two' if columns else ''}; it has {array.dtype} of shape {array.shape}."
            )
    if not len(graph.sizes) == len(graph.writers) == len(graph.resident):
        raise TightropeError(
            f"{len(graph.sizes)} sizes, {len(graph.writers)} writers and {len(graph.resident)} flags: "
            "one of each per storage."
        )


def _check_ranges(graph: StreamGraph) -> None:
    num_ops, num_storages = len(graph.streams), len(graph.sizes)
    if num_ops > _MAX_OPS or num_storages > _MAX_OPS:
        raise TightropeError(f"{num_ops} ops and {num_storages} storages; at most {_MAX_OPS} are taken.")
    _refuse(graph.streams, 0, _MAX_STREAMS, "streams")
    _refuse(graph.sizes, 0, _LARGEST, "sizes")
    _refuse(graph.writers, -1, num_ops, "writers")
    _refuse(graph.waits, 0, num_ops, "waits")
    if float(graph.sizes.sum(dtype=np.float64)) > _LARGEST:
        raise TightropeError("the storages add up to more than 2^60 bytes.")
    back = np.flatnonzero(graph.waits[:, 0] >= graph.waits[:, 1])
    if len(back):
        earlier, later = graph.waits[back[0]].tolist()
        raise TightropeError(f"wait ({earlier}, {later}): an op can wait only for ops issued before it.")
    for name in ("reads", "mutates"):
        rows: Integers = getattr(graph, name)
        _refuse(rows[:, 0], 0, num_storages, f"storages of {name}")
        _refuse(rows[:, 1], 0, num_ops, f"ops of {name}")
        early = np.flatnonzero(rows[:, 1] <= graph.writers[rows[:, 0]])
        if len(early):
            storage, op = rows[early[0]].tolist()
            raise TightropeError(
                f"storage {storage} is used by op {op} and written by op {graph.writers[storage]}: "
                "uses are issued after the writer."
            )


def _refuse(values: Integers, low: int, high: int, name: str) -> None:
    if values.size and not (low <= int(values.min()) and int(values.max()) < high):
        raise TightropeError(
            f"{name} run from {values.min()} to {values.max()}; all must lie in [{low}, {high})."
        )


def storage_name(graph: StreamGraph, storage: StorageId) -> str:
    """Name a storage for a person."""
    writer = int(graph.writers[storage])
    made = f"written by op {writer} on stream {graph.streams[writer]}" if writer >= 0 else "of the caller"
    return f"storage {storage} ({graph.sizes[storage]} bytes, {made})"
