"""Place again after an edit, and move as little as possible.

Idea        Keep every offset of the previous plan that still makes sense, place the rest around
            them. If that misses the capacity, free what shares time with what did not fit, in
            widening rings. At the end try to put every moved buffer back, one by one.
Source      ruin and recreate, Schrimpf et al. (2000), with the old plan as the incumbent
Guarantee   The answer is a valid placement; no single moved buffer could have kept its old offset
            (where the number of moved buffers is small enough to try, see ``_RESTORES``).
Complexity  at most a dozen placements, then one per moved buffer
Gaps        Rings grow in time only; a smaller set of moves may exist.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.core.units import is_whole
from tightrope.place.options import check_effort, check_whole
from tightrope.place.placer import Interval, Placement, checked_columns, place

_RESTORES: Final = 64
_RINGS: Final = 6


@dataclass(frozen=True, slots=True)
class Repacked:
    """A placement after an edit.

    Attributes:
        placement: the new addresses.
        moved: indices of buffers that had an offset and got another one.
    """

    placement: Placement
    moved: tuple[int, ...]


def repack(
    buffers: Sequence[Interval],
    previous: Mapping[int, Offset],
    *,
    capacity: Bytes,
    seconds: float = 1.0,
    seed: int = 0,
    alignments: Sequence[Bytes] | None = None,
) -> Repacked:
    """Place buffers, most of which had an offset before.

    Args:
        buffers: (size in bytes, start, end) as they are now.
        previous: offsets by index, of those that had one.
        capacity: bytes to fit into.
        seconds: of effort per placement.
        seed: of the placer.
        alignments: one per buffer.

    Returns:
        A placement and what moved. Its status is ``time_limit`` or ``infeasible`` when the
        capacity was missed even with everything free.

    Raises:
        TightropeError: a malformed buffer or number, or a previous offset of no buffer.

    Example:
        >>> old = [(64, 0, 4), (64, 0, 2)]
        >>> repack([*old, (64, 2, 4)], {0: 64, 1: 0}, capacity=128).placement.offsets
        (64, 0, 0)
    """
    check_effort(seconds, seed)
    check_whole("capacity", capacity)
    checked_columns(buffers, alignments)
    _check_previous(previous, len(buffers))
    kept = _consistent(buffers, previous, capacity, alignments)

    def attempt(fixed: Mapping[int, Offset], effort: float = seconds) -> Placement:
        return place(
            buffers, capacity=capacity, seconds=effort, seed=seed, alignments=alignments, fixed=fixed
        )

    found = attempt(kept)
    for ring in range(_RINGS):
        if found.peak <= capacity:
            break
        kept = _without_ring(buffers, kept, found, capacity, 4**ring) if ring < _RINGS - 1 else {}
        found = attempt(kept)
    if found.peak <= capacity:
        for index in _moved(previous, found)[:_RESTORES]:
            tried = _put_back(buffers, previous, found, index, alignments)
            again = attempt(tried, seconds / 16) if tried else found
            found = again if again.peak <= capacity else found
    return Repacked(found, _moved(previous, found))


def _check_previous(previous: Mapping[int, Offset], num_buffers: int) -> None:
    if not isinstance(previous, Mapping):
        raise TightropeError(f"previous offsets must be a mapping from buffers, not {previous!r:.60}.")
    for index, offset in previous.items():
        if not is_whole(index) or not 0 <= index < num_buffers or not is_whole(offset):
            raise TightropeError(
                f"previous offset {offset!r:.60} of buffer {index!r:.60}: both must be whole numbers, and "
                f"there are buffers 0 to {num_buffers - 1}."
            )


def _moved(previous: Mapping[int, Offset], found: Placement) -> tuple[int, ...]:
    return tuple(j for j, offset in sorted(previous.items()) if found.offsets[j] != offset)


def _put_back(
    buffers: Sequence[Interval],
    previous: Mapping[int, Offset],
    found: Placement,
    index: int,
    alignments: Sequence[Bytes] | None,
) -> dict[int, Offset]:
    """Fix everything that has its old offset, and one buffer more; empty when it cannot lie there."""
    fixed = {j: offset for j, offset in previous.items() if found.offsets[j] == offset}
    wanted = {**fixed, index: previous[index]}
    return wanted if len(_consistent(buffers, wanted, 2**60, alignments)) == len(wanted) else {}


def _consistent(
    buffers: Sequence[Interval],
    previous: Mapping[int, Offset],
    capacity: Bytes,
    alignments: Sequence[Bytes] | None,
) -> dict[int, Offset]:
    """Keep old offsets that are aligned, within the capacity and apart; of two that meet, the first wins.

    A sweep over time with the kept buffers that are alive, by address.
    """
    legal = [
        j
        for j, offset in previous.items()
        if offset % (alignments[j] if alignments else 1) == 0 and 0 <= offset <= capacity - buffers[j][0]
    ]
    events = sorted(
        [(buffers[j][1], True, j) for j in legal if buffers[j][0]]
        + [(buffers[j][2], False, j) for j in legal if buffers[j][0]]
    )
    kept = {j: previous[j] for j in legal if not buffers[j][0]}
    alive: list[tuple[Offset, int]] = []
    for _, begins, j in events:
        entry = (previous[j], j)
        at = bisect_left(alive, entry)
        if not begins:
            if j in kept:
                del alive[at]
            continue
        below = alive[at - 1] if at else None
        clear = below is None or below[0] + buffers[below[1]][0] <= entry[0]
        if clear and (at == len(alive) or alive[at][0] >= entry[0] + buffers[j][0]):
            insort(alive, entry)
            kept[j] = previous[j]
    return kept


def _without_ring(
    buffers: Sequence[Interval], kept: Mapping[int, Offset], found: Placement, capacity: Bytes, widen: int
) -> dict[int, Offset]:
    """Free what shares time with the buffers above the capacity, ``widen`` lifetimes around."""
    high = [j for j, offset in enumerate(found.offsets) if offset + buffers[j][0] > capacity]
    spans = []
    for j in high:
        _, start, end = buffers[j]
        margin = (end - start) * (widen - 1)
        spans.append((start - margin, end + margin))
    return {
        j: offset
        for j, offset in kept.items()
        if not any(buffers[j][1] < end and start < buffers[j][2] for start, end in spans)
    }
