"""Refuse malformed blocks and spaces before anything is placed."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from tightrope.core import Bytes, Offset, Space, TightropeError
from tightrope.core.units import is_whole
from tightrope.place.overlap import Rectangle, first_overlap
from tightrope.place.placer import LARGEST
from tightrope_planners.values.blocks import Block, Piece

_MAX_SPACES: Final = 1000


def check_blocks(blocks: Sequence[Block], rooms: Sequence[Space]) -> tuple[Space, ...]:
    """Refuse blocks and spaces that make no sense.

    Returns:
        The spaces, with capacities cut to what any placement can need.

    Raises:
        TightropeError: names the first block or space that is wrong, and what is wrong with it.
    """
    for room in rooms:
        if not isinstance(room, Space) or not isinstance(room.name, str) or not is_whole(room.capacity):
            raise TightropeError(f"{room!r:.200} is no Space with a name and a whole number of bytes.")
    names = {room.name for room in rooms}
    if len(names) != len(rooms) or len(rooms) > _MAX_SPACES:
        raise TightropeError(
            f"{len(rooms)} spaces with {len(names)} names: at most {_MAX_SPACES}, all different."
        )
    for room in rooms:
        if not 0 <= room.capacity <= LARGEST:
            raise TightropeError(f"space {room.name!r} has capacity {room.capacity}, outside 0..2^60.")
    for number, block in enumerate(blocks):
        if problem := _problem(block, names):
            raise TightropeError(f"block {number} has {problem}.")
    fixed = [number for number, block in enumerate(blocks) if block.fixed is not None]
    if fixed and len(rooms) > 1:
        raise TightropeError("fixed offsets need a single space: place blocks of other spaces separately.")
    _check_fixed(blocks, fixed)
    need = _need(blocks)
    if need * max(len(rooms), 1) > LARGEST:
        raise TightropeError(
            f"the blocks may need {need} bytes in each of {len(rooms)} spaces; at most 2^60 can be placed."
        )
    return tuple(replace(room, capacity=min(room.capacity, need)) for room in rooms)


def _need(blocks: Sequence[Block]) -> Bytes:
    """Sum bytes above which no first fit goes."""
    marks = [0]
    for block in blocks:
        marks += [high for _, high in block.forbidden]
        marks += [offset for offset in (block.fixed, block.hint) if offset is not None]
    return max(marks) + sum(block.height + block.alignment for block in blocks)


def _is_formed(block: object) -> bool:
    """Tell whether all fields of a block are of the kinds that they must be."""
    if not isinstance(block, Block):
        return False
    numbers = [block.alignment, *(n for n in (block.fixed, block.hint) if n is not None)]
    try:
        for low, high in block.forbidden:
            numbers += (low, high)
        for piece in block.pieces:
            numbers += (piece.size, piece.start, piece.end, piece.low)
        named = all(isinstance(name, str) for name in block.spaces)
    except (AttributeError, TypeError, ValueError):
        return False
    return named and all(map(is_whole, numbers))


def _problem(block: Block, names: set[str]) -> str:
    if not _is_formed(block):
        return f"a field of the wrong kind, where bytes, times and offsets are whole numbers: {block!r:.200}"
    if not block.pieces:
        return "no pieces"
    for piece in block.pieces:
        if piece.size < 0 or piece.low < 0 or piece.low + piece.size > LARGEST:
            return f"a piece of {piece.size} bytes at {piece.low}: neither may be negative or above 2^60"
        if not -(2**61) <= piece.start < piece.end <= 2**61:
            lifetime = f"[{piece.start}, {piece.end})"
            return f"a piece with lifetime {lifetime}: it must begin before it ends, within 2^61"
    if not 1 <= block.alignment <= LARGEST:
        return f"alignment {block.alignment}, outside 1..2^60"
    for what, offset in (("fixed offset", block.fixed), ("hint", block.hint)):
        if offset is not None and (not 0 <= offset <= LARGEST or offset % block.alignment):
            return f"{what} {offset}, negative or not a multiple of its alignment {block.alignment}"
    if any(not 0 <= low < high <= LARGEST for low, high in block.forbidden):
        return f"forbidden windows {block.forbidden[:3]}: each needs 0 <= low < high <= 2^60"
    if not set(block.spaces) <= names:
        return f"unknown spaces {sorted(set(block.spaces) - names)}; there are {sorted(names)}"
    if first_overlap([_rectangle(0, piece) for piece in block.pieces]) is not None:
        return "pieces that overlap each other"
    return ""


def _check_fixed(blocks: Sequence[Block], fixed: Sequence[int]) -> None:
    owners: list[int] = []
    rows: list[Rectangle] = []
    for number in fixed:
        offset = blocks[number].fixed
        assert offset is not None
        for piece in blocks[number].pieces:
            low = offset + piece.low
            windows = blocks[number].forbidden if piece.size else ()
            if any(low < high and start < low + piece.size for start, high in windows):
                raise TightropeError(f"block {number} is fixed at {offset}, in one of its forbidden windows.")
            owners.append(number)
            rows.append(_rectangle(offset, piece))
    if (clash := first_overlap(rows)) is not None:
        a, b = sorted(owners[row] for row in clash)
        raise TightropeError(f"fixed blocks {a} and {b} overlap in time and in address.")


def _rectangle(offset: Offset, piece: Piece) -> Rectangle:
    return offset + piece.low, piece.size, piece.start, piece.end
