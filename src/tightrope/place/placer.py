"""Offset assignment for buffers with known lifetimes.

Idea        First fit in several orders, skyline dives, and a canonical search where those leave a
            gap; the work is done in C++ (``native/solvers/packer.cpp``), this file checks and reports.
Source      see ``native/solvers/packer.cpp``
Guarantee   Buffers whose lifetimes overlap get disjoint address ranges, aligned; an answer always
            exists; equal input, options and seed give equal offsets unless the clock stops the run.
Complexity  1e5 buffers well under a second, see ``docs/planning.md``
Gaps        one stream and one memory space; tightrope-planners has more

    address ^
            |      +--B--+
            | +-A--+     |
            +-+----+-----+-> time
"""

import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from tightrope.core import Bytes, NativeError, Offset, TightropeError
from tightrope.core.plugins import in_python
from tightrope.native.solvers.packer import METHODS, STATUSES, Integers, Packed, pack
from tightrope.place.options import PlaceOptions, check_effort, check_whole, integers
from tightrope.place.overlap import first_overlap

Interval: TypeAlias = tuple[Bytes, int, int]
Status: TypeAlias = Literal["optimal", "feasible", "infeasible", "time_limit"]

LARGEST: Final[Bytes] = 2**60
WORK_PER_SECOND: Final = 300_000_000


@dataclass(frozen=True, slots=True)
class Placement:
    """Addresses for buffers.

    Attributes:
        offsets: one per buffer, in the caller's order.
        peak: largest offset + size.
        lower_bound: largest number of bytes alive at one instant; no placement has a smaller peak.
        status: ``optimal`` = the peak is proved smallest; ``feasible`` = within the capacity, or none
            was asked, without that proof; ``infeasible`` = proved that nothing fits the capacity;
            ``time_limit`` = the capacity was neither reached nor refuted. The offsets are valid
            addresses in every case.
        witness: indices of the buffers alive at the instant that sets ``lower_bound``.
        cpu_seconds: processor time spent.
        method: strongest method that improved the answer.
        num_nodes: search nodes visited.
    """

    offsets: tuple[Offset, ...]
    peak: Bytes
    lower_bound: Bytes
    status: Status
    witness: tuple[int, ...]
    cpu_seconds: float
    method: str
    num_nodes: int = 0


def place(
    buffers: Sequence[Interval],
    *,
    capacity: Bytes | None = None,
    seconds: float = 1.0,
    seed: int = 0,
    alignments: Sequence[Bytes] | None = None,
    fixed: Mapping[int, Offset] | None = None,
    options: PlaceOptions | None = None,
) -> Placement:
    """Assign an offset to every buffer so that buffers alive together never overlap.

    Args:
        buffers: (size in bytes, start, end) with half-open lifetimes; offsets are multiples of the
            sizes' greatest common divisor, so sizes rounded up to 64 need no ``alignments``.
        capacity: stop as soon as the peak is at most this; None = make the peak as small as possible.
        seconds: limit on the effort. Work is counted, so that results repeat; the processor clock stops a run
            that takes four times as long.
        seed: of the random orders.
        alignments: one per buffer, at least 1.
        fixed: offsets of buffers that must not move, by index.
        options: techniques to switch off.

    Returns:
        The best placement found; see `Placement` for what its status promises.

    Raises:
        TightropeError: a malformed buffer or number, or fixed buffers that overlap or are not aligned.

    Example:
        >>> place([(128, 0, 4), (64, 0, 2), (64, 2, 4)]).offsets
        (0, 128, 128)
    """
    begun = time.thread_time()
    columns = checked_columns(buffers, alignments, fixed)
    sizes, starts, ends = columns[:3]
    check_effort(seconds, seed)
    if capacity is not None:
        check_whole("capacity", capacity)
    if not isinstance(options, PlaceOptions | None):
        raise TightropeError(f"options must be PlaceOptions, not {options!r:.60}.")
    if len(sizes) == 0:
        return Placement((), 0, 0, "optimal", (), time.thread_time() - begun, "nothing to place")
    packed, method = _pack(
        columns, -1 if capacity is None else min(capacity, LARGEST), seconds, seed, options
    )
    alive = (starts <= packed.witness_time) & (packed.witness_time < ends) & (sizes > 0)
    witness = np.flatnonzero(alive)
    return Placement(
        offsets=tuple(packed.offsets.tolist()),
        peak=packed.peak,
        lower_bound=int(sizes[witness].sum()),
        status=STATUSES[packed.status],
        witness=tuple(witness.tolist()),
        cpu_seconds=time.thread_time() - begun,
        method=method,
        num_nodes=packed.nodes,
    )


def _pack(
    columns: tuple[Integers, Integers, Integers, Integers, Integers],
    capacity: Bytes,
    seconds: float,
    seed: int,
    options: PlaceOptions | None,
) -> tuple[Packed, str]:
    try:
        packed = pack(
            columns,
            capacity=capacity,
            work=int(min(seconds, 1e6) * WORK_PER_SECOND),
            milliseconds=int(min(seconds, 1e6) * 4000) + 50,
            seed=seed % 2**62,
            switches=(options or PlaceOptions()).bits,
        )
    except NativeError as error:
        found: Packed = in_python("placer", str(error))(columns, capacity=capacity)
        return found, "first fit and dives in Python (no native part)"
    return packed, METHODS[packed.method]


def checked_columns(
    buffers: Sequence[Interval],
    alignments: Sequence[Bytes] | None = None,
    fixed: Mapping[int, Offset] | None = None,
) -> tuple[Integers, Integers, Integers, Integers, Integers]:
    """Turn the caller's values into arrays: sizes, starts, ends, alignments, fixed offsets (-1 = free).

    Raises:
        TightropeError: a malformed buffer, or fixed buffers that overlap or are not aligned.
    """
    if not isinstance(fixed, Mapping | None):
        raise TightropeError(f"fixed offsets must be a mapping from buffers, not {fixed!r:.60}.")
    try:
        table = integers(buffers).reshape(len(buffers), 3)
        aligned = np.ones(len(buffers), dtype=np.int64)
        if alignments is not None:
            aligned = integers(alignments).reshape(len(buffers))
        pinned = np.full(len(buffers), -1, dtype=np.int64)
        for index, offset in ({} if fixed is None else fixed).items():
            if not (0 <= index < len(buffers) and 0 <= offset <= LARGEST):
                raise TightropeError(f"fixed offset {offset} of buffer {index} is out of range.")
            pinned[operator.index(index)] = operator.index(offset)
    except (ValueError, TypeError, OverflowError) as error:
        raise TightropeError(
            f"buffers must be (size, start, end) integers of at most 62 bits, one alignment each: {error}."
        ) from error
    sizes, starts, ends = (np.ascontiguousarray(column) for column in table.T)
    _check(sizes, starts, ends, aligned, pinned)
    return sizes, starts, ends, aligned, pinned


def _check(sizes: Integers, starts: Integers, ends: Integers, aligned: Integers, pinned: Integers) -> None:
    for bad, problem in (
        (sizes < 0, "a negative size"),
        (ends <= starts, "an empty lifetime (end <= start)"),
        ((starts < -(2**61)) | (ends > 2**61), "a time beyond 61 bits"),
        ((aligned < 1) | (aligned > LARGEST), "an alignment outside 1..2^60"),
        ((pinned >= 0) & (pinned % np.maximum(aligned, 1) != 0), "a fixed offset that breaks its alignment"),
    ):
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise TightropeError(
                f"buffer {index} (size {sizes[index]}, life [{starts[index]}, {ends[index]})) has {problem}."
            )
    total = float(
        sizes.sum(dtype=np.float64) + aligned.sum(dtype=np.float64) + max(0, int(pinned.max(initial=0)))
    )
    if total > LARGEST:
        raise TightropeError(f"the buffers add up to about {total:.3g} bytes; at most 2^60 can be placed.")
    held = np.flatnonzero(pinned >= 0).tolist()
    rows = [(int(pinned[j]), int(sizes[j]), int(starts[j]), int(ends[j])) for j in held]
    if (clash := first_overlap(rows)) is not None:
        a, b = (held[row] for row in clash)
        raise TightropeError(f"fixed buffers {a} and {b} overlap in time and in address.")
