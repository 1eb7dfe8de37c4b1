"""Offsets for blocks: gaps, aliases, buckets, forbidden addresses, several spaces, hints.

Idea        All spaces become one line of addresses with walls between them; a wall, a forbidden
            window and a space that a block may not use are all ranges of offsets that it may not
            have. First fit in several orders, then squeaky wheel until the effort is used up.
            Blocks that are single rectangles in one space go to `place`, which searches and proves.
Source      first fit, Garey, Graham and Ullman (1972); squeaky wheel, Joslin and Clements (1999)
Guarantee   Pieces that are alive together never overlap; alignments, windows, spaces and fixed
            offsets hold. ``infeasible`` rests on a sum of bytes alive at one instant.
Complexity  one pass is O(pieces log^2 pieces) on traces of training steps
Gaps        No search over blocks of several pieces: small gaps to the bound can remain.

    address ^ space b   | wall | space a     a block of 5 bytes may not begin in the last 4 before a wall
            +-----------+------+---------->
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import lcm
from typing import NamedTuple, TypeAlias

import numpy as np

from tightrope.core import Bytes, NativeError, Offset, Space, TightropeError
from tightrope.native.solvers.packer import Integers
from tightrope.place.options import check_effort, check_whole
from tightrope.place.placer import LARGEST, WORK_PER_SECOND, Status, place
from tightrope_planners.place.blocks_check import check_blocks
from tightrope_planners.place.fallback_blocks import pack_blocks_in_python
from tightrope_planners.solvers.blocks import BlockTable, pack_blocks
from tightrope_planners.values.blocks import Block

Range: TypeAlias = tuple[Offset, Offset]


@dataclass(frozen=True, slots=True)
class BlockPlacement:
    """Addresses for blocks.

    Attributes:
        offsets: one per block, inside its space; -1 = no room was found for it.
        spaces: index of every block's space, in the order given; -1 = no room.
        peaks: largest address used in every space.
        lower_bound: largest number of bytes alive at one instant, over all spaces together.
        status: ``optimal`` = all placed, and the sum of the peaks is the bound or proved smallest;
            ``feasible`` = all placed; ``infeasible`` = proved that not all fit; ``time_limit`` =
            not all were placed, and that is not proved to be impossible.
        witness: indices of the blocks alive at the instant that sets ``lower_bound``.
        cpu_seconds: processor time spent.
    """

    offsets: tuple[Offset, ...]
    spaces: tuple[int, ...]
    peaks: tuple[Bytes, ...]
    lower_bound: Bytes
    status: Status
    witness: tuple[int, ...]
    cpu_seconds: float


def place_blocks(
    blocks: Sequence[Block],
    *,
    spaces: Sequence[Space] = (),
    capacity: Bytes | None = None,
    stop_at: Bytes | None = None,
    seconds: float = 1.0,
    seed: int = 0,
) -> BlockPlacement:
    """Give every block a space and an offset.

    Guarantees: see `BlockPlacement`; equal arguments give equal answers unless the clock stops the
    run, which happens after four times ``seconds``.

    Args:
        blocks: what to place.
        spaces: where, preferred ones first; empty = one space without limit.
        capacity: of the one space when no spaces are given; None = without limit.
        stop_at: a peak that is low enough; None = the capacity, or as low as possible where there is none.
        seconds: limit on the effort, counted as in `place`.
        seed: of the random orders.

    Returns:
        The best placement found.

    Raises:
        TightropeError: a malformed block or space, or fixed blocks that overlap.

    Example:
        >>> ring = Block.alias(64, ((0, 1), (2, 3)))
        >>> place_blocks([ring, Block.of(64, 1, 2)]).offsets
        (0, 0)
    """
    check_effort(seconds, seed)
    for name, limit in (("capacity", capacity), ("stop_at", stop_at)):
        if limit is not None:
            check_whole(name, limit)
    try:
        blocks, spaces = tuple(blocks), tuple(spaces)
    except TypeError as error:
        raise TightropeError(f"blocks and spaces must be sequences: {error}.") from error
    if capacity is not None and spaces:
        raise TightropeError("give a capacity or spaces, not both: every space has its own capacity.")
    found = _placed(blocks, spaces, capacity, stop_at, seconds, seed)
    enough = max(found.lower_bound, stop_at or 0, capacity or 0)
    hinted = any(block.hint is not None for block in blocks)
    if hinted and (-1 in found.spaces or sum(found.peaks) > enough):
        free = _placed([replace(b, hint=None) for b in blocks], spaces, capacity, stop_at, seconds, seed)
        found = min(found, free, key=lambda one: (one.spaces.count(-1), sum(one.peaks)))
    return found


def _placed(
    blocks: Sequence[Block],
    spaces: Sequence[Space],
    capacity: Bytes | None,
    stop_at: Bytes | None,
    seconds: float,
    seed: int,
) -> BlockPlacement:
    """Place blocks with their hints, whatever these cost."""
    begun = time.thread_time()
    rooms = tuple(spaces) or (Space("memory", LARGEST if capacity is None else capacity),)
    line = _Line(check_blocks(blocks, rooms), lcm(*(block.alignment for block in blocks)))
    bound, witness = _largest_load(blocks)
    wanted = [capacity, None if stop_at is None else max(stop_at, bound)]
    goal = min((limit for limit in wanted if limit is not None), default=None)
    if not spaces and all(map(_plain, blocks)):
        found = _searched(blocks, goal, seconds, seed)
    else:
        enough = max(bound, min(goal, line.end) if goal is not None else line.end if spaces else 0)
        found = _Found(_packed(blocks, line, enough, seconds, seed))
    seats = [line.seat(at, block) for at, block in zip(found.offsets, blocks, strict=True)]
    homes, offsets = tuple(home for home, _ in seats), tuple(offset for _, offset in seats)
    peaks = [0] * len(rooms)
    for block, offset, home in zip(blocks, offsets, homes, strict=True):
        if home >= 0:
            peaks[home] = max(peaks[home], offset + block.height)
    proved = found.smallest or sum(peaks) == bound
    status: Status = "optimal" if proved else "feasible"
    if -1 in homes:
        refuted = found.refuted and goal == capacity
        status = "infeasible" if refuted or _proves_misfit(blocks, rooms, bound) else "time_limit"
    return BlockPlacement(offsets, homes, tuple(peaks), bound, status, witness, time.thread_time() - begun)


class _Found(NamedTuple):
    """Offsets on the line; whether their peak is proved smallest, or what was asked for refuted."""

    offsets: Sequence[Offset]
    smallest: bool = False
    refuted: bool = False


class _Line:
    """All spaces one after another, with walls between them."""

    def __init__(self, rooms: tuple[Space, ...], alignment: Bytes) -> None:
        self.rooms = rooms
        step = alignment if len(rooms) > 1 else 1
        lengths = [-(-room.capacity // step) * step for room in rooms]
        self.bases = [0, *accumulate(lengths)]
        if len(rooms) > 1 and self.end > LARGEST:
            raise TightropeError(f"spaces that begin at multiples of {step}, as alignments ask, pass 2^60.")

    @property
    def end(self) -> Offset:
        """First address behind the last space: what lies there found no room."""
        return self.bases[-1]

    def forbidden(self, block: Block) -> list[Range]:
        """List the offsets on the line that a block may not have, ascending and disjoint."""
        found: list[Range] = []
        for number, (base, room) in enumerate(zip(self.bases, self.rooms, strict=False)):
            if block.spaces and room.name not in block.spaces:
                found.append((base - block.height + 1, self.bases[number + 1]))
                continue
            found.append((base + room.capacity - block.height + 1, self.bases[number + 1]))
            for low, high in block.forbidden:
                found += [
                    (base + low - piece.low - piece.size + 1, base + high - piece.low)
                    for piece in block.pieces
                    if piece.size
                ]
        return _joined(found)

    def seat(self, offset: Offset, block: Block) -> tuple[int, Offset]:
        """Tell which space holds a block, and its offset there; -1, -1 = it lies behind the last.

        A block without bytes may stand on a wall: then it is moved to the first space that it may use.
        """
        first, height = -1, block.height
        for number, (base, room) in enumerate(zip(self.bases, self.rooms, strict=False)):
            if block.spaces and room.name not in block.spaces:
                continue
            if 0 <= offset - base <= room.capacity - height:
                return number, offset - base
            first = number if first < 0 else first
        return (-1, -1) if height else (first, 0)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    joined: list[Range] = []
    for low, high in sorted((max(0, low), high) for low, high in ranges if max(0, low) < high):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def _plain(block: Block) -> bool:
    """Tell whether a block is one rectangle, free to lie anywhere."""
    only = block.pieces[0]
    return len(block.pieces) == 1 and only.low == 0 and not block.forbidden and block.hint is None


def _searched(blocks: Sequence[Block], goal: Bytes | None, seconds: float, seed: int) -> _Found:
    found = place(
        [(b.pieces[0].size, b.pieces[0].start, b.pieces[0].end) for b in blocks],
        capacity=goal,
        seconds=seconds,
        seed=seed,
        alignments=[b.alignment for b in blocks],
        fixed={j: b.fixed for j, b in enumerate(blocks) if b.fixed is not None},
    )
    return _Found(found.offsets, found.status == "optimal", found.status == "infeasible")


def _packed(
    blocks: Sequence[Block], line: "_Line", goal: Bytes, seconds: float, seed: int
) -> Sequence[Offset]:
    if not blocks:
        return ()
    table = _table(blocks, [line.forbidden(block) for block in blocks])
    effort = min(seconds, 1e6)
    try:
        offsets, _ = pack_blocks(
            table,
            goal=goal,
            work=int(effort * WORK_PER_SECOND),
            milliseconds=int(effort * 4000) + 50,
            seed=seed % 2**62,
        )
    except NativeError:
        offsets = pack_blocks_in_python(table, goal=goal, seed=seed)
    result: list[Offset] = offsets.tolist()
    return result


def _table(blocks: Sequence[Block], ranges: list[list[Range]]) -> BlockTable:
    pieces = [piece for block in blocks for piece in block.pieces]
    rows = np.array([(p.size, p.start, p.end, p.low) for p in pieces], dtype=np.int64).T
    flat = np.array([pair for found in ranges for pair in found], dtype=np.int64).reshape(-1, 2).T
    return BlockTable(
        first=_positions(len(block.pieces) for block in blocks),
        pieces=(rows[0], rows[1], rows[2], rows[3]),
        aligned=_column(block.alignment for block in blocks),
        fixed=_column(-1 if block.fixed is None else block.fixed for block in blocks),
        hints=_column(-1 if block.hint is None else block.hint for block in blocks),
        ranges=_positions(map(len, ranges)),
        forbidden=(flat[0], flat[1]),
    )


def _column(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _positions(counts: Iterable[int]) -> Integers:
    return np.array([0, *accumulate(counts)], dtype=np.int64)


def _largest_load(blocks: Sequence[Block]) -> tuple[Bytes, tuple[int, ...]]:
    """Sum the bytes alive at one instant, largest sum; and which blocks those are."""
    change: dict[int, int] = {}
    for block in blocks:
        for piece in block.pieces:
            change[piece.start] = change.get(piece.start, 0) + piece.size
            change[piece.end] = change.get(piece.end, 0) - piece.size
    load = largest = 0
    instant = min(change, default=0)
    for now in sorted(change):
        load += change[now]
        if load > largest:
            largest, instant = load, now
    witness = (
        number
        for number, block in enumerate(blocks)
        if any(piece.start <= instant < piece.end and piece.size for piece in block.pieces)
    )
    return largest, tuple(witness)


def _proves_misfit(blocks: Sequence[Block], rooms: Sequence[Space], bound: Bytes) -> bool:
    """Tell whether a sum shows that not all blocks fit: of all, of one space's own, or of one block."""
    by_name: Mapping[str, Bytes] = {room.name: room.capacity for room in rooms}
    if bound > sum(by_name.values()):
        return True
    for name, capacity in by_name.items():
        own = [block for block in blocks if block.spaces == (name,) or len(by_name) == 1]
        if _largest_load(own)[0] > capacity:
            return True
    return any(block.height > max(by_name[n] for n in block.spaces or by_name) for block in blocks)
