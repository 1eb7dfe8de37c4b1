"""Addresses for tensors as they come, beside tensors that are predicted to die together.

Idea        The twin of placing jobs, with one resource that has an order: bytes at addresses. A request goes
            into a gap between live tensors, and above all of them only where no gap holds it. Among gaps, the
            one beside the tensor whose predicted end is closest, in steps of the logarithm, then the smallest
            or the lowest: neighbours that die together leave one large gap. How coarse the steps are, and
            whether predictions are used at all, is chosen by serving the step before again in every way.
Source      Lifetime alignment (Barbalho et al., MLSys 2023), on addresses; best fit with coalescing, as
            allocators of frameworks do, is what it is without predictions.
Guarantee   Live tensors never overlap. Decisions use what came before alone, and predicted ends. Where steps
            repeat, the peak is no higher than best fit's unless a way that uses predictions was chosen, and
            predictions changed since.
Complexity  O(live tensors) per request; `choose_way` serves a step once per way.
Gaps        One space, no streams. A plan made ahead (`tightrope.place`) knows the ends and needs less.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.place import Interval


@dataclass(frozen=True, slots=True)
class AddressWay:
    """How a gap is chosen.

    Attributes:
        step: ends are as good as equal where the lives that are left differ by less than a factor of e to
            this; None = predictions are not used.
        lowest: among equals the lowest gap, instead of the smallest.
    """

    step: float | None = 3.0
    lowest: bool = False


BEST_FIT = AddressWay(None)
WAYS = (
    BEST_FIT,
    AddressWay(None, lowest=True),
    *(AddressWay(s, b) for s in (0.7, 1.5, 3.0) for b in (False, True)),
)
"""What `choose_way` tries."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Where every tensor of a trace was put, one after the other.

    Attributes:
        offsets: per tensor.
        peak: highest address.
        load: most bytes alive at once: no allocator has a lower peak.
    """

    offsets: tuple[Offset, ...]
    peak: Bytes
    load: Bytes

    @property
    def fragmentation(self) -> float:
        """Peak over load, minus one."""
        return self.peak / self.load - 1 if self.load else 0.0


def choose_way(buffers: Sequence[Interval], predicted: Sequence[float]) -> AddressWay:
    """Find how the step before would have been served best; among equals, without predictions.

    Args:
        buffers: of the step before.
        predicted: ends, as they were predicted then.
    """
    return min(WAYS, key=lambda way: replay_allocations(buffers, predicted, way=way).peak)


def replay_allocations(
    buffers: Sequence[Interval], predicted: Sequence[float] | None = None, *, way: AddressWay | None = None
) -> Replayed:
    """Serve the requests of a trace in their order.

    Args:
        buffers: (bytes, start, end), half-open, as in `tightrope.place`.
        predicted: end of each tensor, as it is predicted when it comes; None = best fit alone.
        way: how gaps are chosen; None = by predictions where there are any.

    Raises:
        TightropeError: there is not one prediction per tensor, or a tensor is malformed.

    Example:
        >>> replay_allocations([(64, 0, 2), (64, 1, 3), (64, 2, 4)]).offsets
        (0, 64, 0)
    """
    if predicted is not None and len(predicted) != len(buffers):
        raise TightropeError(f"{len(predicted)} predictions for {len(buffers)} tensors: give one per tensor.")
    for number, (size, start, end) in enumerate(buffers):
        if size < 0 or end <= start:
            raise TightropeError(
                f"tensor {number}: {size} bytes in [{start}, {end}): it must begin before it ends."
            )
    way = BEST_FIT if predicted is None else way or AddressWay()
    ends = [0.0] * len(buffers) if predicted is None else list(predicted)
    events = sorted(
        [(start, 1, number) for number, (_, start, _) in enumerate(buffers)]
        + [(end, 0, number) for number, (_, _, end) in enumerate(buffers)]
    )
    offsets = [0] * len(buffers)
    live: list[tuple[Offset, Bytes, int]] = []
    peak = load = most = 0
    for now, begins, number in events:
        size = buffers[number][0]
        load += size if begins else -size
        most = max(most, load)
        if not begins:
            live.pop(bisect_left(live, (offsets[number], size, number)))
            continue
        offset = _choose(live, ends, (size, ends[number]), now, peak, way)
        offsets[number] = offset
        insort(live, (offset, size, number))
        peak = max(peak, offset + size)
    return Replayed(tuple(offsets), peak, most)


def _choose(
    live: Sequence[tuple[Offset, Bytes, int]],
    ends: Sequence[float],
    asked: tuple[Bytes, float],
    now: int,
    peak: Bytes,
    way: AddressWay,
) -> Offset:
    """Name an address: no growth first, then the closest neighbour, then the smallest gap."""
    size, end = asked
    best: tuple[Bytes, int, Bytes, Offset] | None = None
    low, below = 0, -1
    for offset, length, number in [*live, (peak, 0, -1)]:
        last = number < 0
        room = offset - low
        if room >= size or last:
            growth = max(0, low + size - peak) if last else 0
            fit = 0 if way.lowest else room
            near = _apart(end, ends[below], now, way.step) if below >= 0 else 0
            found = (growth, near, fit, low)
            best = found if best is None else min(best, found)
            if way.step is not None and not last:
                best = min(best, (growth, _apart(end, ends[number], now, way.step), fit, offset - size))
        low, below = offset + length, number
    assert best is not None
    return best[3]


def _apart(one: float, other: float, now: int, step: float | None) -> int:
    if step is None:
        return 0
    left = max(one, now + 1) - now
    return int(abs(math.log(left / (max(other, now + 1) - now))) / step)
