"""Addresses for storages that ops on parallel streams use.

Idea        Two storages may share addresses only where one precedes the other in every execution.
            First fit and dives in several orders over the table of conflicts, then squeaky wheel.
Source      squeaky wheel: Joslin and Clements (1999); dives as in ``native/solvers/packer_dive.hpp``
Guarantee   Safe in every execution that the waits allow, aligned, an answer always; equal input and
            seed give equal offsets. ``optimal`` is said only when the peak equals the live bound.
Complexity  O(T^2) time per order and T^2 / 8 bytes; above 40,000 storages one first fit without the table
Gaps        no search: the bound is not always reached, and not always reachable

    A plan made for one stream is not safe on several: it reuses an address once a later op was issued,
    which says nothing about what has ended. Tie a plan to its streams and its waits.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightrope.core import Bytes, NativeError, Offset, StorageId, TightropeError
from tightrope.place.options import check_effort, check_whole, integers
from tightrope.place.placer import Status
from tightrope_planners.place.streams import fallback
from tightrope_planners.place.streams.bound import live_bound
from tightrope_planners.place.streams.graph import StreamGraph
from tightrope_planners.place.streams.relation import reuse_relation
from tightrope_planners.solvers import safety as native
from tightrope_planners.solvers.safety import Births, Integers

_LARGEST: Bytes = 2**60
_WORK_PER_SECOND = 400_000_000


@dataclass(frozen=True, slots=True)
class StreamPlacement:
    """Addresses for the storages of a graph on several streams.

    Attributes:
        offsets: one per storage of the graph; -1 for those of the caller.
        peak: largest offset + size.
        lower_bound: the live bound; no safe placement has a smaller peak.
        status: ``optimal``, ``feasible``, ``infeasible`` (the bound is above the capacity) or
            ``time_limit`` (the capacity was neither reached nor refuted), as in `tightrope.place.place`.
        witness: storages that can all be alive at once and add up to ``lower_bound``.
        cpu_seconds: processor time spent.
        method: what found it.
    """

    offsets: tuple[Offset, ...]
    peak: Bytes
    lower_bound: Bytes
    status: Status
    witness: tuple[StorageId, ...]
    cpu_seconds: float
    method: str


def place_streams(
    graph: StreamGraph,
    *,
    capacity: Bytes | None = None,
    seconds: float = 1.0,
    seed: int = 0,
    alignments: Sequence[Bytes] | None = None,
) -> StreamPlacement:
    """Assign an offset to every storage so that no two that may be alive at once overlap.

    Args:
        graph: ops on streams with the waits that will be there when it runs.
        capacity: stop as soon as the peak is at most this; None = make the peak as small as possible.
        seconds: limit on the effort, counted in units of work so that results repeat.
        seed: of the random orders.
        alignments: one per storage, at least 1; offsets are multiples of them.

    Returns:
        The best placement found. The offsets are valid addresses whatever its status.

    Raises:
        TightropeError: a use that no wait orders (see `check_streams`), or a malformed argument.

    Example:
        >>> from tightrope_planners.place.streams import StreamStorage
        >>> storages = [StreamStorage(64, 0), StreamStorage(128, 1), StreamStorage(32, 2)]
        >>> place_streams(StreamGraph.of([0, 1, 0], storages)).offsets
        (128, 0, 128)
    """
    begun = time.thread_time()
    check_effort(seconds, seed)
    if capacity is not None:
        check_whole("capacity", capacity)
    aligned = _aligned(alignments, graph)
    relation = reuse_relation(graph)
    bound, births, rows = live_bound(relation), relation.births, relation.storages
    goal = max(bound.bytes, capacity or 0)
    offsets = np.full(len(graph.sizes), -1, dtype=np.int64)
    offsets[rows], peak, method = _pack(births, aligned[rows], goal, seconds, seed)
    return StreamPlacement(
        offsets=tuple(offsets.tolist()),
        peak=peak,
        lower_bound=bound.bytes,
        status=_status(peak, bound.bytes, capacity),
        witness=bound.witness,
        cpu_seconds=time.thread_time() - begun,
        method=method,
    )


def _status(peak: Bytes, bound: Bytes, capacity: Bytes | None) -> Status:
    if capacity is not None and bound > capacity:
        return "infeasible"
    if peak == bound:
        return "optimal"
    return "feasible" if capacity is None or peak <= capacity else "time_limit"


def _pack(
    births: Births, alignments: Integers, goal: Bytes, seconds: float, seed: int
) -> tuple[Integers, Bytes, str]:
    if len(births.size) == 0:
        return np.zeros(0, dtype=np.int64), 0, "nothing to place"
    work = int(min(seconds, 1e6) * _WORK_PER_SECOND)
    try:
        return native.place_births(births, alignments, goal=goal, work=work, seed=seed % 2**62)
    except NativeError:
        return fallback.place_births(births, alignments, goal=goal)


def _aligned(alignments: Sequence[Bytes] | None, graph: StreamGraph) -> Integers:
    count = len(graph.sizes)
    if alignments is None:
        return np.ones(count, dtype=np.int64)
    try:
        found = integers(alignments).reshape(count)
    except (ValueError, TypeError, OverflowError) as error:
        raise TightropeError(f"alignments are {count} integers, one per storage: {error}.") from error
    if count and (found.min() < 1 or float((found + graph.sizes).sum(dtype=np.float64)) > _LARGEST):
        raise TightropeError("alignments must be at least 1 and, with the sizes, add up to at most 2^60.")
    return found
