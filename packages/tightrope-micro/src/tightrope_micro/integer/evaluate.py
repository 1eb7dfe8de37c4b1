"""Compute an integer kernel with NumPy: the reference for its C, exact or wrapped to 32 bits.

Idea        Every value of the program for all rows at once, in 64-bit integers. Wrapped, each value is cut
            to its 32-bit type, as a kernel would compute that nobody has proved.
Source      the meaning of `program.RowKind`
Guarantee   Unwrapped, exact while values stay below 2^63.
Complexity  Values x elements.
Gaps        None known.
"""

import numpy as np
from numpy.typing import NDArray

from tightrope_micro.integer.program import RowKind, RowProgram, Value

Rows = NDArray[np.int64]


def evaluate(program: RowProgram, rows: NDArray[np.integer], *, wrapped: bool = False) -> Rows:
    """Run a kernel.

    Args:
        program: any.
        rows: inputs [number of rows, elements per row].
        wrapped: cut every value to 32 bits.

    Returns:
        Results [number of rows, elements per row].
    """
    found: list[Rows] = []
    for value in program.values:
        reads = [found[operand] for operand in value.operands]
        one = rows.astype(np.int64) if value.kind is RowKind.INPUT else _computed(value, reads)
        if wrapped:
            one = _cut(one, unsigned=value.unsigned)
        found.append(one)
    return np.broadcast_to(found[-1], rows.shape).copy()


def _cut(value: Rows, *, unsigned: bool) -> Rows:
    cut: Rows = value & 0xFFFFFFFF
    return cut if unsigned else np.where(cut >= 2**31, cut - 2**32, cut)


def _computed(value: Value, reads: list[Rows]) -> Rows:
    match value.kind:
        case RowKind.CONST | RowKind.PARAMETER:
            return np.array([value.numbers], dtype=np.int64)
        case RowKind.LOOKUP:
            table: Rows = np.array(value.numbers, dtype=np.int64)
            return table[reads[0]]
        case RowKind.LARGEST:
            largest: Rows = reads[0].max(axis=1, keepdims=True)
            return largest
        case RowKind.SUM:
            total: Rows = reads[0].sum(axis=1, keepdims=True)
            return total
        case RowKind.FIT:
            return _excess(np.abs(reads[0]).max(axis=1, keepdims=True), value.bits)
        case RowKind.LEAD:
            return _excess(reads[0], value.bits)
        case RowKind.FITTED:
            half = np.where(reads[1] > 0, np.int64(1) << np.maximum(reads[1] - 1, 0), 0)
            return (reads[0] + half) >> reads[1]
        case RowKind.LED:
            return reads[0] >> reads[1]
        case RowKind.EVEN:
            even = (value.bits - _length(reads[0])) // 2
            return np.where(reads[0] > 0, even, 0)
        case RowKind.LEVEL:
            return np.where(
                reads[1] >= 0,
                reads[0] << np.maximum(2 * reads[1], 0),
                reads[0] >> np.maximum(-2 * reads[1], 0),
            )
        case RowKind.ROOT:
            root = np.sqrt(np.maximum(reads[0], 0).astype(np.float64)).astype(np.int64)
            root -= root * root > np.maximum(reads[0], 0)
            return root + ((root + 1) * (root + 1) <= reads[0])
    return _arithmetic(value.kind, reads[0], reads[1])


def _arithmetic(kind: RowKind, one: Rows, other: Rows) -> Rows:
    match kind:
        case RowKind.ADD:
            return one + other
        case RowKind.SUB | RowKind.BELOW:
            return one - other
        case RowKind.MUL:
            return one * other
        case RowKind.SHL:
            return one << np.clip(other, 0, 63)
        case RowKind.SHR:
            return one >> np.clip(other, 0, 63)
        case RowKind.DIV:
            return one // np.where(other == 0, 1, other)
        case RowKind.AND:
            return one & other
        case RowKind.MIN:
            return np.minimum(one, other)
        case _:
            return np.maximum(one, other)


def _length(value: Rows) -> Rows:
    """Bits of positive numbers."""
    length = np.frexp(np.maximum(value, 0).astype(np.float64))[1].astype(np.int64)
    return np.where(value > 0, length, 0)


def _excess(value: Rows, bits: int) -> Rows:
    return np.maximum(_length(value) - bits, 0)
