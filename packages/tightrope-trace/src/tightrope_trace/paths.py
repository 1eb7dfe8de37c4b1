"""The cheapest path of items through slots: in C++ where there is a compiler, else in Python."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tightrope.native.interface import load, missing

_Ints = npt.NDArray[np.int64]


class Path(NamedTuple):
    """A slot per item, and the sum of all costs."""

    slots: list[int]
    cost: int


def cheapest_path(
    kinds: Sequence[int],
    cost: _Ints,
    skip: Sequence[int],
    family: Sequence[int],
    *,
    back: int,
    far: int,
    stay: _Ints | None = None,
    native: bool = True,
) -> Path:
    """Assign every item to a slot so that the sum of all costs is smallest.

    Between two items the path stays in its slot, goes on to a later one, paying ``skip`` for each slot
    in between, or first jumps to an earlier one: within its family for ``back``, anywhere for ``far``.
    Slots left out before the first item and after the last one are paid for, too.

    Args:
        kinds: of items, in order; rows of ``cost``.
        cost: per kind and slot.
        skip: what leaving out a slot costs.
        family: number of the family of each slot, from 0.
        back: what a jump within a family costs.
        far: what a jump to any slot costs.
        stay: per kind and slot, what an item costs in the slot of the item before; default: ``cost``.
        native: whether C++ may be used; the sum of costs is the same without.

    Returns:
        A slot per item, and the sum of all costs.

    Raises:
        NativeError: there is a compiler, but the library does not build or load.

    Example:
        >>> cheapest_path([0, 1], np.array([[0, 9], [9, 0]]), [1, 1], [0, 0], back=5, far=7)
        Path(slots=[0, 1], cost=0)
    """
    if not len(kinds) or not len(skip):
        return Path([], 0)
    table = np.ascontiguousarray(cost, dtype=np.int64)
    stays = table if stay is None else np.ascontiguousarray(stay, dtype=np.int64)
    rows = np.asarray(kinds, dtype=np.int64)
    skips, families = np.asarray(skip, dtype=np.int64), np.asarray(family, dtype=np.int64)
    if not native or missing("align"):
        return _path(rows, table, stays, skips, families, back, far)
    found = np.empty(len(rows), dtype=np.int64)
    pointers = [
        array.ctypes.data_as(ctypes.c_void_p) for array in (rows, table, stays, skips, families, found)
    ]
    cost_of_path = _library().tightrope_align(len(rows), len(skips), *pointers[:5], back, far, pointers[5])
    return Path(found.tolist(), int(cost_of_path))


def _path(rows: _Ints, cost: _Ints, stay: _Ints, skip: _Ints, family: _Ints, back: int, far: int) -> Path:
    prices, again, families, width = cost.tolist(), stay.tolist(), family.tolist(), len(skip)
    through = np.cumsum(skip).tolist()
    before = [0, *through[:-1]]
    total = [b + price for b, price in zip(before, prices[rows[0]], strict=True)]
    steps: list[list[int]] = []
    for row in rows[1:].tolist():
        jumped, origin = _jumps(total, families, back, far)
        step, following = [], []
        reach, source = 2**60, 0
        for slot in range(width):
            now, where = total[slot] + again[row][slot], slot
            if jumped[slot] < total[slot] and jumped[slot] + prices[row][slot] < now:
                now, where = jumped[slot] + prices[row][slot], origin[slot]
            if reach + before[slot] + prices[row][slot] < now:
                now, where = reach + before[slot] + prices[row][slot], source
            step.append(where)
            following.append(now)
            if jumped[slot] - through[slot] < reach:
                reach, source = jumped[slot] - through[slot], origin[slot]
        steps.append(step)
        total = following
    path = [min(range(width), key=lambda slot: total[slot] - through[slot])]
    least = total[path[0]] - through[path[0]] + through[-1]
    for step in reversed(steps):
        path.append(step[path[-1]])
    return Path(path[::-1], least)


def _jumps(total: list[int], family: list[int], back: int, far: int) -> tuple[list[int], list[int]]:
    """The least cost of standing at each slot after a jump from a later one, and where it came from."""
    jumped, origin = list(total), list(range(len(total)))
    least: dict[int, int] = {}
    best = len(total) - 1
    for slot in range(len(total) - 1, -1, -1):
        near = least.get(family[slot], slot)
        least[family[slot]] = near = slot if total[slot] < total[near] else near
        best = slot if total[slot] < total[best] else best
        for source, price in ((near, back), (best, far)):
            if total[source] + price < jumped[slot]:
                jumped[slot], origin[slot] = total[source] + price, source
    return jumped, origin


@cache
def _library() -> ctypes.CDLL:
    native = load("align")
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    native.tightrope_align.argtypes = [whole, whole, *[pointer] * 5, whole, whole, pointer]
    native.tightrope_align.restype = whole
    return native
