"""The covering problem behind the time bound: which storages may be absent, when, at what price.

Idea        While base op t runs for the first time, what it reads and allocates is live, and so is what
            cannot be made again. Any other storage made before and used later is live too, or absent:
            then a run of its producer comes between its uses before and after t. Each such stretch is
            a *gap*; the gaps around t must be absent with at least as many bytes as the rest takes more
            than the budget.
Source      gap cover; frontier-advancing stages as in Checkmate (MLSys 2020)
Guarantee   Every schedule that recomputes, does not page and fits the budget satisfies every row.
Complexity  O(ops + reads) to build; a row costs O(gaps). With a free order O(ops * gaps) bits.
Gaps        What a re-run needs itself is not charged. With a free order a storage has one gap.

    bytes ^   +--s--+ gap +--s--+           s is absent somewhere in (since, until):
          |   |     |     |     |           its producer runs again before until
          +---+-----+-----+-----+---> op
            since              until
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes, Flag, Graph, Nanoseconds, Op, OpId, StorageId
from tightrope.core.certificate import ANY
from tightrope.plan.model import least_need, producers

Integers: TypeAlias = npt.NDArray[np.int64]
_Number = TypeVar("_Number", np.int64, np.float64)
MAX_FREE_OPS = 5_000
"""Largest graph for which orders other than the base order are bounded."""

_ONCE = Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE


@dataclass(frozen=True, slots=True)
class Way:
    """A way to make storages again: an op, or its replay.

    Attributes:
        ns: time of one run.
        creates: storages that it makes.
        reads: storages that it reads.
        need: bytes that it allocates at its peak.
    """

    ns: Nanoseconds
    creates: frozenset[StorageId]
    reads: frozenset[StorageId]
    need: Bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """Gaps as parallel arrays, and what is live for certain.

    Attributes:
        fixed: for every op, total bytes live for certain during its first run.
        storage: of each gap.
        until: op before whose first run the storage is needed again; -1 with a free order.
        since: op after whose first run it may be absent.
        size: bytes.
        producer: op whose re-run fills the gap.
        runs: for every producer, the ways to run it again.
        inside: with a free order, whether an op lies in a gap (gaps x ops); None = by position.
        unit: every added time is a multiple of it.
    """

    fixed: Integers
    storage: Integers
    until: Integers
    since: Integers
    size: Integers
    producer: Integers
    runs: dict[OpId, tuple[Way, ...]]
    inside: npt.NDArray[np.bool_] | None
    unit: Nanoseconds

    @property
    def num_gaps(self) -> int:
        """Number of gaps."""
        return len(self.size)

    def members(self, op: OpId) -> Integers:
        """List the gaps around an op."""
        if self.inside is not None:
            return np.flatnonzero(self.inside[:, op])
        return np.flatnonzero((self.since < op) & (op < self.until))

    def idle(self) -> Integers:
        """Sum, for every op, the bytes of the gaps around it."""
        return self.around(self.size)

    def around(self, amounts: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        """Sum, for every op, an amount per gap over the gaps around it."""
        if self.inside is not None:
            return amounts @ self.inside.astype(amounts.dtype)
        change = np.zeros(len(self.fixed) + 1, amounts.dtype)
        np.add.at(change, self.since + 1, amounts)
        np.subtract.at(change, self.until, amounts)
        return np.cumsum(change)[:-1]

    def single(self, gap: int) -> Nanoseconds | None:
        """Price of a gap whose producer makes nothing else; None where it does."""
        storage, ways = int(self.storage[gap]), self.runs[int(self.producer[gap])]
        if any(len(way.creates) > 1 for way in ways):
            return None
        return min(way.ns for way in ways if storage in way.creates)


@dataclass(frozen=True, slots=True)
class _Gap:
    storage: StorageId
    until: OpId
    since: OpId
    inside: npt.NDArray[np.bool_] | None = None


def problem(graph: Graph, *, free_order: bool = False) -> Problem:
    """Read a graph in base order into a covering problem.

    Args:
        graph: one training step.
        free_order: bound every order of first runs in which each op follows what it reads, instead of
            the base order; at most `MAX_FREE_OPS` ops.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> chain = Graph(
        ...     (Op(0, "a", "a", (), (0,)), Op(1, "b", "b", (), (1,)), Op(2, "c", "c", (0, 1), (2,))),
        ...     (Storage(0, 64), Storage(1, 64), Storage(2, 64)),
        ... )
        >>> found = problem(chain)
        >>> found.fixed.tolist(), found.size.tolist(), found.until.tolist()
        ([64, 64, 192], [64], [2])
    """
    reruns = {op.id: tuple(_reruns(graph, op)) for op in graph.ops}
    producer = producers(graph)
    change = np.zeros(len(graph.ops) + 1, np.int64)
    pinned = np.zeros(len(graph.ops), np.int64)
    gaps: list[_Gap] = []
    for gap, remade in _free(graph, reruns) if free_order else _given(graph, reruns):
        size = graph.storages[gap.storage].size
        if remade:
            gaps.append(gap)
        elif gap.inside is not None:
            pinned += size * gap.inside
        else:
            change[gap.since + 1] += size
            change[gap.until] -= size
    held = [
        graph.persistent
        + least_need(graph, op)
        + sum(graph.storages[s].size for s in op.reads if producer[s] >= 0)
        for op in graph.ops
    ]
    times = [way.ns for ways in reruns.values() for way in ways]
    return Problem(
        fixed=np.array(held, np.int64) + pinned + np.cumsum(change)[:-1],
        storage=np.array([gap.storage for gap in gaps], np.int64),
        until=np.array([ANY if free_order else gap.until for gap in gaps], np.int64),
        since=np.array([gap.since for gap in gaps], np.int64),
        size=np.array([graph.storages[gap.storage].size for gap in gaps], np.int64),
        producer=np.array([producer[gap.storage] for gap in gaps], np.int64),
        runs=reruns,
        inside=np.array([gap.inside for gap in gaps]) if free_order and gaps else None,
        unit=math.gcd(*times) or 1,
    )


def _reruns(graph: Graph, op: Op) -> Iterator[Way]:
    ways = [] if op.flags & _ONCE or op.mutates else [op]
    for way in [*ways, graph.op(op.variant)] if op.variant >= 0 else ways:
        need = least_need(graph, way)
        yield Way(way.ns, frozenset(way.creates), frozenset(way.reads), need)


def uses(graph: Graph) -> dict[StorageId, list[OpId]]:
    """List, for every storage that an op makes, that op and all later ops at which it is live."""
    found: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.reads:
            if storage in found:
                found[storage].append(op.id)
        found.update((storage, [op.id]) for storage in op.creates)
    for storage, at in found.items():
        if graph.storages[storage].outside and (after := graph.handover(at[0])) < len(graph.ops):
            found[storage] = sorted({*at, after})
    return found


def _given(graph: Graph, reruns: dict[OpId, tuple[Way, ...]]) -> Iterator[tuple[_Gap, bool]]:
    """Yield every stretch of the base order without a use, and whether the storage may be absent in it."""
    changes: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.mutates:
            changes.setdefault(storage, []).append(op.id)
    for storage, at in uses(graph).items():
        resident = graph.storages[storage].resident_at_end
        remade = not resident and any(storage in way.creates for way in reruns[at[0]])
        first_change = min(changes.get(storage, ()), default=len(graph.ops))
        for since, until in pairwise([*at, len(graph.ops)] if resident else at):
            if until > since + 1:
                changed = first_change < until and storage in graph.ops[until % len(graph.ops)].reads
                yield _Gap(storage, until, since), remade and not changed


def _free(graph: Graph, reruns: dict[OpId, tuple[Way, ...]]) -> Iterator[tuple[_Gap, bool]]:
    """Yield the ops that lie, in every order, between the producer and a reader of each storage."""
    ancestors = _ancestors(graph)
    changed = {storage for op in graph.ops for storage in op.mutates}
    readers: dict[StorageId, list[OpId]] = {}
    for op in graph.ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op.id)
    for op in graph.ops:
        for storage in op.creates:
            inside, read = ancestors[:, op.id].copy(), readers.get(storage, [])
            inside[read] = False
            resident = graph.storages[storage].resident_at_end
            if not resident:
                inside &= ancestors[read].any(axis=0)
            remade = not resident and any(storage in way.creates for way in reruns[op.id])
            if inside.any() and not (remade and storage in changed):
                yield _Gap(storage, ANY, op.id, inside), remade


def _ancestors(graph: Graph) -> npt.NDArray[np.bool_]:
    """Tell whether op column comes before op row in every order."""
    producer = producers(graph)
    before = np.zeros((len(graph.ops), len(graph.ops)), np.bool_)
    for op in graph.ops:
        for made in {producer[storage] for storage in op.reads} - {-1}:
            before[op.id] |= before[made]
            before[op.id, made] = True
    return before
