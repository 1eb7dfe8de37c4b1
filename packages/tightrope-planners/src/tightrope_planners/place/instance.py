"""Placement instances as they come from files, and their placement."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tightrope.core import Bytes, Offset, TightropeError
from tightrope.place.options import PlaceOptions, check_effort, check_whole
from tightrope.place.overlap import Rectangle, first_overlap
from tightrope.place.placer import LARGEST, Interval, Placement, place
from tightrope_planners.place.blocks import place_blocks
from tightrope_planners.values.blocks import Block, Piece

Gap: TypeAlias = tuple[int, int, Bytes, Bytes]
"""From a start to an end, a buffer needs only its bytes ``[low, high)``; none where both are 0."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Buffers read from a file.

    Attributes:
        buffers: (size in bytes, start, end), half-open, in file order.
        names: the ``id`` column, or the row numbers.
        alignments: one per buffer; 1 where the file has none.
        offsets: one per buffer; -1 where the file has none.
        hints: offsets that buffers should have, -1 = none; empty where the file has none.
        gaps: stretches in which a buffer needs fewer bytes; empty where the file has none.
        groups: indices of buffers that must lie one right above the other.
        table: header and cells as they stood in the file, where writing needs them.
    """

    buffers: tuple[Interval, ...]
    names: tuple[str, ...]
    alignments: tuple[Bytes, ...]
    offsets: tuple[Offset, ...]
    hints: tuple[Offset, ...] = ()
    gaps: tuple[tuple[Gap, ...], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    table: tuple[tuple[str, ...], ...] = field(default=(), compare=False, repr=False)

    @property
    def plain(self) -> bool:
        """Whether every buffer is one rectangle of its own."""
        return not (self.groups or any(self.gaps) or any(hint >= 0 for hint in self.hints))


def place_instance(
    instance: Instance,
    *,
    capacity: Bytes | None = None,
    minimize: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
    options: PlaceOptions | None = None,
) -> Placement:
    """Place an instance; offsets that it has stay fixed.

    Args:
        instance: what to place.
        capacity: bytes to fit into.
        minimize: keep lowering the peak after the capacity is reached.
        seconds: limit on the effort, see `place`.
        seed: of the random orders.
        options: techniques to switch off.

    Returns:
        The placement. With ``minimize`` and a capacity, the status says whether the smallest peak
        found fits: ``infeasible`` only when that is proved.

    Raises:
        TightropeError: a buffer is malformed, or two given offsets overlap.

    Example:
        >>> place_instance(Instance(((64, 0, 2),), ("a",), (1,), (-1,))).peak
        64
    """
    check_effort(seconds, seed)
    if capacity is not None:
        check_whole("capacity", capacity)
    _check(instance)
    goal = None if minimize else capacity
    if instance.plain:
        placement = place(
            instance.buffers,
            capacity=goal,
            seconds=seconds,
            seed=seed,
            alignments=instance.alignments,
            fixed={index: offset for index, offset in enumerate(instance.offsets) if offset >= 0},
            options=options,
        )
    else:
        placement = _place_blocks(instance, seconds, seed, goal)
    if capacity is not None and placement.peak > capacity and placement.status != "infeasible":
        proved = placement.status == "optimal" or placement.lower_bound > capacity
        placement = replace(placement, status="infeasible" if proved else "time_limit")
    return placement


def _check(instance: Instance) -> None:
    """Refuse numbers out of range and given offsets that overlap, by the names of the buffers."""
    hints = instance.hints or (-1,) * len(instance.buffers)
    columns = (instance.names, instance.buffers, instance.alignments, instance.offsets, hints)
    if len(set(map(len, columns))) != 1:
        raise TightropeError(
            f"an instance has one name, alignment, offset (and hint) per buffer, not {[*map(len, columns)]}."
        )
    for name, (size, start, end), alignment, *wanted in zip(*columns, strict=True):
        if problem := _problem(size, start, end, alignment, wanted):
            raise TightropeError(f"buffer {name!r:.60} has {problem}.")
    rows: list[Rectangle] = []
    owners: list[int] = []
    for index in (j for j, offset in enumerate(instance.offsets) if offset >= 0):
        for piece in _pieces(instance, index):
            rows.append((instance.offsets[index] + piece.low, piece.size, piece.start, piece.end))
            owners.append(index)
    if (clash := first_overlap(rows)) is not None:
        first, second = (
            f"{instance.names[j]!r:.60} at {instance.offsets[j]}" for j in map(owners.__getitem__, clash)
        )
        raise TightropeError(f"buffers {first} and {second} overlap in time and in address.")


def _problem(size: Bytes, start: int, end: int, alignment: Bytes, offsets: Sequence[Offset]) -> str:
    if not 0 <= size <= LARGEST:
        return f"{size} bytes, not 0..2^60"
    if not -(2**61) <= start < end <= 2**61:
        return f"lifetime [{start}, {end}): it must begin before it ends, within 2^61"
    if not 1 <= alignment <= LARGEST:
        return f"alignment {alignment}, not 1..2^60"
    for offset in offsets:
        if offset > LARGEST or (offset >= 0 and offset % alignment):
            return f"offset or hint {offset}: it must be a multiple of {alignment}, and at most 2^60"
    return ""


def _place_blocks(instance: Instance, seconds: float, seed: int, goal: Bytes | None) -> Placement:
    """Place blocks without a wall at the capacity, so that every buffer gets an address."""
    members, blocks = _blocks(instance)
    found = place_blocks(blocks, seconds=seconds, seed=seed, stop_at=goal)
    offsets = [0] * len(instance.buffers)
    for indices, block, offset in zip(members, blocks, found.offsets, strict=True):
        low = 0
        for index in indices:
            offsets[index] = offset + low
            low += _step(instance, index, block)
    witness = tuple(sorted(index for number in found.witness for index in members[number]))
    return Placement(
        offsets=tuple(offsets),
        peak=found.peaks[0],
        lower_bound=found.lower_bound,
        status=found.status,
        witness=witness,
        cpu_seconds=found.cpu_seconds,
        method="first fit and squeaky wheel of blocks",
    )


def _blocks(instance: Instance) -> tuple[list[tuple[int, ...]], list[Block]]:
    """Turn buffers into blocks; also list which buffers each block holds, lowest first."""
    grouped = {index for group in instance.groups for index in group}
    members = [*instance.groups, *((j,) for j in range(len(instance.buffers)) if j not in grouped)]
    return members, [_block(instance, indices) for indices in members]


def _block(instance: Instance, indices: Sequence[int]) -> Block:
    first = indices[0]
    whole = Block((Piece(0, 0, 1),), alignment=max(instance.alignments[j] for j in indices))
    pieces: list[Piece] = []
    low = 0
    for index in indices:
        pieces += [replace(piece, low=piece.low + low) for piece in _pieces(instance, index)]
        low += _step(instance, index, whole)
    return replace(
        whole,
        pieces=tuple(pieces),
        fixed=None if instance.offsets[first] < 0 else instance.offsets[first],
        hint=instance.hints[first] if instance.hints and instance.hints[first] >= 0 else None,
    )


def _step(instance: Instance, index: int, block: Block) -> Bytes:
    """Distance from a member of a group to the next one above it."""
    return -(-instance.buffers[index][0] // block.alignment) * block.alignment


def _pieces(instance: Instance, index: int) -> list[Piece]:
    """Cut a buffer at its gaps."""
    size, start, end = instance.buffers[index]
    pieces: list[Piece] = []
    for begin, finish, low, high in sorted(instance.gaps[index]) if instance.gaps else ():
        if start < begin:
            pieces.append(Piece(size, start, begin))
        if low < high:
            pieces.append(Piece(high - low, begin, finish, low))
        start = finish
    if start < end:
        pieces.append(Piece(size, start, end))
    return pieces or [Piece(0, start - 1, end)]
