"""First fit for blocks in pure Python, for machines without a C++ compiler.

Idea        Place blocks one by one, in several orders, each at its lowest legal offset.
Source      first-fit decreasing, as in ``native/solvers/packer_blocks.hpp``
Guarantee   a valid placement
Complexity  O(pieces * overlaps * log overlaps) time per order
Gaps        a few orders and shuffles, no squeaky wheel
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Final

import numpy as np

from tightrope.core import Bytes, Offset
from tightrope.native.solvers.packer import Integers
from tightrope_planners.solvers.blocks import BlockTable

_SHUFFLES: Final = 8


class _Blocks:
    """The columns as lists."""

    def __init__(self, table: BlockTable) -> None:
        self.pieces = list(zip(*(column.tolist() for column in table.pieces), strict=True))
        self.spans = list(pairwise(table.first.tolist()))
        forbidden = list(zip(*(column.tolist() for column in table.forbidden), strict=True))
        self.ranges = [forbidden[a:b] for a, b in pairwise(table.ranges.tolist())]
        self.aligned, self.fixed, self.hints = (
            column.tolist() for column in (table.aligned, table.fixed, table.hints)
        )

    def own(self, block: int) -> list[tuple[Bytes, int, int, Bytes]]:
        first, last = self.spans[block]
        return self.pieces[first:last]

    def height(self, block: int) -> Bytes:
        return max(size + low for size, _, _, low in self.own(block))

    def area(self, block: int) -> float:
        return float(sum(size * (end - start) for size, start, end, _ in self.own(block)))

    def blocked(self, block: int, taken: list[tuple[int, Offset]]) -> list[tuple[Offset, Offset]]:
        """List the ranges of offsets that a block cannot have beside the blocks in ``taken``, sorted."""
        found = list(self.ranges[block])
        for size, start, end, low in self.own(block):
            for other, offset in taken:
                found += [
                    (offset + o_low - low - size + 1, offset + o_low + o_size - low)
                    for o_size, o_start, o_end, o_low in self.own(other)
                    if o_start < end and start < o_end and size and o_size
                ]
        return sorted(found)

    def lowest(self, block: int, blocked: list[tuple[Offset, Offset]], offset: Offset) -> Offset:
        """Climb from ``offset`` to the first legal one."""
        align = self.aligned[block]
        offset = -(-offset // align) * align
        for low, high in blocked:
            if low <= offset < high:
                offset = -(-high // align) * align
        return offset

    def fit(self, order: list[int]) -> list[Offset]:
        offsets = list(self.fixed)
        taken = [(j, at) for j, at in enumerate(offsets) if at >= 0]
        for block in order:
            if offsets[block] >= 0:
                continue
            blocked = self.blocked(block, taken)
            hint = self.hints[block]
            kept = hint >= 0 and self.lowest(block, blocked, hint) == hint
            offsets[block] = hint if kept else self.lowest(block, blocked, 0)
            taken.append((block, offsets[block]))
        return offsets

    def orders(self, seed: int) -> Iterator[list[int]]:
        everything = range(len(self.spans))
        yield sorted(everything, key=lambda j: -self.height(j))
        yield sorted(everything, key=lambda j: -self.area(j))
        yield sorted(everything, key=lambda j: -self.height(j) * self.area(j))
        draw = Random(seed)
        for _ in range(_SHUFFLES):
            noise = [draw.uniform(0.5, 1) for _ in everything]
            yield sorted(everything, key=lambda j: -self.height(j) * noise[j])


def pack_blocks_in_python(table: BlockTable, *, goal: Bytes, seed: int) -> Integers:
    """Place blocks without native code.

    Args:
        table: checked by the caller.
        goal: stop at this peak.
        seed: of the shuffles.

    Returns:
        One offset per block.
    """
    blocks = _Blocks(table)
    best: list[Offset] = []
    best_peak: Bytes = -1
    for order in blocks.orders(seed):
        offsets = blocks.fit(order)
        peak = max(offset + blocks.height(j) for j, offset in enumerate(offsets))
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        if best_peak <= goal:
            break
    return np.array(best, dtype=np.int64)
