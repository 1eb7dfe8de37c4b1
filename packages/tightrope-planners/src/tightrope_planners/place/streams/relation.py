"""Which storages may share addresses when ops run on parallel streams.

Idea        A stream is a chain, so what has ended when an op starts is one number per stream: its
            vector clock. Clocks only grow along a stream, so a storage is dead for a stream from one
            position on. Those death positions are the whole relation: no closure, no table of pairs.
Source      Lamprou et al., MLSys 2023, for the relation; Fidge (1988) and Mattern (1989) for clocks
Guarantee   "a precedes b" holds exactly when every op that uses a has ended, in every possible
            execution, before the op that writes b starts. It is a strict partial order. Storages of
            which neither precedes the other may be alive at once.
Complexity  N ops, S streams, T storages: O((N + waits + uses) S + T S^2 log N) time, N S + 2 T S words
Gaps        Allocations inside one op are not ordered among themselves. In-place reuse of a dying
            input is not found; give both as one storage. Uses of overlapping parts are uses of all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tightrope.core import NativeError, OpId, StorageId, TightropeError
from tightrope_planners.place.streams import fallback
from tightrope_planners.place.streams.graph import StreamGraph, storage_name
from tightrope_planners.solvers import safety as native
from tightrope_planners.solvers.safety import Births, Booleans, Integers, Issue, Positions

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """The reuse relation of a graph.

    Attributes:
        graph: what it was made for.
        births: the storages to place and their death positions, in the order of their writers.
        storages: number in the graph of each row of ``births``.
        clocks: per op, leading ops of each stream that have ended when it starts; rows grouped by stream.
    """

    graph: StreamGraph
    births: Births
    storages: Integers
    clocks: Positions

    def ended_before(self, op: OpId, later: OpId) -> bool:
        """Tell whether ``op`` has always ended when ``later`` starts."""
        issue = self.graph.issue
        row = int(issue.base[issue.stream[later]]) + int(issue.position[later])
        return bool(self.clocks[row, issue.stream[op]] > issue.position[op])

    def precedes(self, first: StorageId, second: StorageId) -> bool:
        """Tell whether ``second`` may take the addresses of ``first``.

        Args:
            first: a storage that an op allocates.
            second: another one.

        Example:
            >>> from tightrope_planners.place.streams import StreamStorage
            >>> two = [StreamStorage(64, 0), StreamStorage(64, 1)]
            >>> reuse_relation(StreamGraph.of([0, 0], two)).precedes(0, 1)
            True
            >>> reuse_relation(StreamGraph.of([0, 1], two)).precedes(0, 1)
            False
        """
        a, b = (int(np.flatnonzero(self.storages == storage)[0]) for storage in (first, second))
        births = self.births
        return bool(births.deaths[a, births.stream[b]] <= births.position[b])

    def matrix(self) -> Booleans:
        """Tabulate ``precedes`` over the rows of ``births``; bytes grow with the square of their number."""
        births = self.births
        table: Booleans = births.deaths[:, births.stream] <= births.position[None, :]
        return table

    def num_conflicts(self) -> int:
        """Count the pairs of storages that must not share addresses, without listing them."""
        count, births = len(self.storages), self.births
        ordered = 0
        for stream in range(self.graph.num_streams):
            born = births.position[births.stream == stream]  # ascending: births are in issue order
            before = np.searchsorted(born, births.deaths[:, stream], side="left")
            ordered += count * len(born) - int(before.sum())
        return count * (count - 1) // 2 - ordered


def reuse_relation(graph: StreamGraph) -> Relation:
    """Compute which storages may share addresses.

    Args:
        graph: ops on streams.

    Returns:
        The relation.

    Raises:
        TightropeError: two ops use one storage, one of them writes it, and no wait orders them.

    Example:
        >>> from tightrope_planners.place.streams import StreamStorage
        >>> reuse_relation(StreamGraph.of([0, 1], [StreamStorage(64, 0, reads=(1,))]))
        Traceback (most recent call last):
        tightrope.core.errors.TightropeError: op 1 on stream 1 uses storage 0 (64 bytes, written by op 0 \
on stream 0), and nothing orders it after op 0 on stream 0. Add the wait (0, 1).
    """
    clock = check_streams(graph)
    return relation_of(graph, clock, last_uses(graph))


def check_streams(graph: StreamGraph) -> Positions:
    """Refuse a graph in which an op may read a storage too early, or overwrite it while it is read.

    Args:
        graph: ops on streams.

    Returns:
        The vector clocks.

    Raises:
        TightropeError: names the two ops, the storage, and the wait that is missing.
    """
    issue, clock = graph.issue, clocks_of(graph)
    found = _try(
        lambda: native.hazard(issue, clock, graph.writers, graph.reads, graph.mutates),
        lambda: fallback.hazard(issue, clock, graph.writers, graph.reads, graph.mutates),
    )
    if found is not None:
        storage, earlier, later = found
        raise TightropeError(
            f"op {later} on stream {graph.streams[later]} uses {storage_name(graph, storage)}, and nothing "
            f"orders it after op {earlier} on stream {graph.streams[earlier]}. Add the wait "
            f"({earlier}, {later})."
        )
    return clock


def clocks_of(graph: StreamGraph) -> Positions:
    """Compute the vector clock of every op at its start; rows are grouped by stream."""
    issue, waits = graph.issue, graph.waits
    return _try(lambda: native.clocks(issue, waits), lambda: fallback.clocks(issue, waits))


def last_uses(graph: StreamGraph) -> Positions:
    """Tabulate, per storage to place and stream, the position of the last op that uses it; -1 = none."""
    issue = graph.issue
    last = np.full((len(graph.sizes), issue.num_streams), -1, dtype=np.int32)
    placed = graph.placed
    writers = np.ascontiguousarray(np.stack([placed, graph.writers[placed]], axis=1))
    for uses in (writers, graph.reads, graph.mutates):
        _note(issue, uses, last)
    return np.ascontiguousarray(last[placed])


def relation_of(graph: StreamGraph, clock: Positions, last: Positions) -> Relation:
    """Compute the relation from clocks and last uses, for a graph that was checked."""
    issue, placed = graph.issue, graph.placed
    resident = graph.resident[placed]
    death = _try(
        lambda: native.deaths(issue, clock, last, resident),
        lambda: fallback.deaths(issue, clock, last, resident),
    )
    writers = graph.writers[placed]
    births = Births(graph.sizes[placed], issue.stream[writers], issue.position[writers], death)
    return Relation(graph, births, placed, clock)


def _note(issue: Issue, uses: Integers, last: Positions) -> None:
    _try(lambda: native.note_uses(issue, uses, last), lambda: fallback.note_uses(issue, uses, last))


def _try(natively: Callable[[], _T], in_python: Callable[[], _T]) -> _T:
    """Take the slower of two equal answers where there is no C++ compiler."""
    try:
        return natively()
    except NativeError:
        return in_python()
