"""Call the native placer of blocks: arrays in, offsets out."""

import ctypes
from dataclasses import dataclass

import numpy as np

from tightrope.core import Bytes
from tightrope.native.solvers.packer import Integers, native_function


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """Blocks as columns.

    Attributes:
        first: position of every block's first piece, and the number of pieces.
        pieces: sizes, starts, ends and distances from the block's offset.
        aligned: alignments.
        fixed: offsets that must be, -1 = none.
        hints: offsets that should be, -1 = none.
        ranges: position of every block's first forbidden range, and the number of ranges.
        forbidden: half-open ranges of forbidden block offsets; ascending and disjoint within a block.
    """

    first: Integers
    pieces: tuple[Integers, Integers, Integers, Integers]
    aligned: Integers
    fixed: Integers
    hints: Integers
    ranges: Integers
    forbidden: tuple[Integers, Integers]


def pack_blocks(
    table: BlockTable, *, goal: Bytes, work: int, milliseconds: int, seed: int
) -> tuple[Integers, Bytes]:
    """Place blocks natively.

    Args:
        table: checked by the caller.
        goal: stop at this peak.
        work: units of counted work.
        milliseconds: of processor time, a safety stop.
        seed: of the random orders, at least 0.

    Returns:
        One offset per block, and the peak.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    columns = (
        table.first, *table.pieces, table.aligned, table.fixed, table.hints, table.ranges, *table.forbidden,
    )  # fmt: skip
    arrays = [np.ascontiguousarray(column, dtype=np.int64) for column in columns]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    offsets = np.zeros(len(table.aligned), dtype=np.int64)
    options = np.array([goal, work, milliseconds, seed], dtype=np.int64)
    results = np.zeros(1, dtype=np.int64)
    native_function("tightrope_pack_blocks", 4)(
        len(offsets), pointers, *(array.ctypes.data for array in (options, offsets, results))
    )
    return offsets, int(results[0])
