"""First fit and dives in pure Python, for machines without a C++ compiler.

Idea        Place buffers one by one, in several orders, each at its lowest free address.
Source      first-fit decreasing; skyline dives as in ``native/solvers/packer_dive.hpp``
Guarantee   a valid placement; proves only what the load bound proves
Complexity  O(n * overlaps * log overlaps) time per order
Gaps        no search, so tight instances keep a gap of several percent
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

import numpy as np

from tightrope.core import Bytes, Offset
from tightrope.native.solvers.packer import STATUSES, Integers, Packed

_DIVE_LIMIT: Final = 3000
"""Buffers above which the quadratic dives are left out."""


class _Instance:
    """The columns as lists, and for every buffer the indices of those alive together with it."""

    def __init__(self, columns: tuple[Integers, Integers, Integers, Integers, Integers]) -> None:
        self.columns = columns
        self.size, self.start, self.end, self.align, self.fixed = (column.tolist() for column in columns)
        self.count = len(self.size)

    def overlapping(self, index: int) -> Integers:
        _, starts, ends, _, _ = self.columns
        return np.flatnonzero((starts < self.end[index]) & (self.start[index] < ends))

    def lowest(self, index: int, taken: Iterable[tuple[Offset, Offset]], floor: Offset = 0) -> Offset:
        """Lowest aligned offset from ``floor`` on that avoids the sorted ``taken`` ranges."""
        align = self.align[index]
        offset: Offset = -(-floor // align) * align
        for low, high in taken:
            if high <= offset:
                continue
            if low >= offset + self.size[index]:
                break
            offset = -(-high // align) * align
        return offset


def pack_in_python(
    columns: tuple[Integers, Integers, Integers, Integers, Integers], *, capacity: Bytes
) -> Packed:
    """Place buffers without native code.

    Args:
        columns: sizes, starts, ends, alignments and fixed offsets (-1 = free).
        capacity: stop at this peak; -1 = make the peak small.

    Returns:
        The best placement of the portfolio.
    """
    instance = _Instance(columns)
    witness_time, bound = _largest_load(instance)
    life = [end - start for start, end in zip(instance.start, instance.end, strict=True)]
    size = instance.size
    keys: tuple[Callable[[int], float], ...] = (
        lambda j: -size[j],
        lambda j: -size[j] * life[j],
        lambda j: -size[j] * life[j] ** 0.5,
        lambda j: -life[j],
    )
    best: list[Offset] = []
    best_peak = -1
    for method in (_first_fit, _dive) if instance.count <= _DIVE_LIMIT else (_first_fit,):
        for key in keys:
            if 0 <= best_peak <= max(bound, capacity):
                break
            offsets = method(instance, sorted(range(instance.count), key=key))
            peak = max((offsets[j] + size[j] for j in range(instance.count) if size[j]), default=0)
            if best_peak < 0 or peak < best_peak:
                best, best_peak = offsets, peak
    status = _status(best_peak, bound, capacity)
    return Packed(np.array(best, dtype=np.int64), best_peak, STATUSES.index(status), witness_time, 0, 0)


def _status(peak: Bytes, bound: Bytes, capacity: Bytes) -> str:
    if 0 <= capacity < bound:
        return "infeasible"
    if peak == bound:
        return "optimal"
    return "feasible" if capacity < 0 or peak <= capacity else "time_limit"


def _largest_load(instance: _Instance) -> tuple[int, Bytes]:
    events = sorted(
        [(time, size) for time, size in zip(instance.start, instance.size, strict=True)]
        + [(time, -size) for time, size in zip(instance.end, instance.size, strict=True)]
    )
    load, witness_time, largest = 0, events[0][0], 0
    for (time, change), (following, _) in pairwise([*events, (events[-1][0] + 1, 0)]):
        load += change
        if load > largest and following > time:
            witness_time, largest = time, load
    return witness_time, largest


def _first_fit(instance: _Instance, order: list[int]) -> list[Offset]:
    offsets = list(instance.fixed)
    for index in order:
        if offsets[index] < 0:
            near = [
                k
                for k in instance.overlapping(index)
                if offsets[k] >= 0 and instance.size[k] and instance.size[index]
            ]
            taken = sorted((offsets[k], offsets[k] + instance.size[k]) for k in near)
            offsets[index] = instance.lowest(index, taken)
    return offsets


def _dive(instance: _Instance, order: list[int]) -> list[Offset]:
    """Repeatedly place the unplaced buffer with the lowest legal offset, ties by position in ``order``."""
    size, fixed = instance.size, instance.fixed
    near = [[int(k) for k in instance.overlapping(j) if size[k] and size[j]] for j in range(instance.count)]
    walls = [
        sorted((fixed[k], fixed[k] + size[k]) for k in near[j] if fixed[k] >= 0)
        for j in range(instance.count)
    ]
    offsets = list(fixed)
    floor = [0 if fixed[j] >= 0 else instance.lowest(j, walls[j]) for j in range(instance.count)]
    waiting = {index: rank for rank, index in enumerate(order) if fixed[index] < 0}
    while waiting:
        index = min(waiting, key=lambda j: (floor[j], waiting[j]))
        del waiting[index]
        offsets[index] = floor[index]
        for k in near[index]:
            if k in waiting:
                floor[k] = instance.lowest(k, walls[k], max(floor[k], floor[index] + size[index]))
    return offsets
