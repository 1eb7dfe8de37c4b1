"""Prove that no intermediate value of an integer kernel leaves 32 bits, whatever its input.

Idea        Interval arithmetic over the values of a program, in Python's integers: the range of each value
            follows from the ranges of those that it reads. What relates values of one row is known to a
            few kinds: the largest element is among those below it, so one of the differences is 0, and a
            sum has a term for it; a number shifted by its own length has a known length.
Source      interval arithmetic
Guarantee   A program that passes computes the same in 32 bits as in unbounded integers, for every row of
            inputs in their range: no overflow, no shift by a negative number or by more than 31, none of a
            negative number to the left, no division by 0, no table left. Nothing is shared with what
            chose its formats.
Complexity  Linear in values, twice for sums.
Gaps        Ranges are safe, not tight: a kernel may be refused that would never overflow.
"""

from typing import NamedTuple

from tightrope.core import JudgeError
from tightrope_micro.integer.program import Number, RowKind, RowProgram, Value

_SIGNED = (-(2**31), 2**31 - 1)
_UNSIGNED = (0, 2**32 - 1)
_TYPES = {
    "int8_t": (-(2**7), 2**7 - 1), "uint8_t": (0, 2**8 - 1), "int16_t": (-(2**15), 2**15 - 1),
    "uint16_t": (0, 2**16 - 1), "int32_t": _SIGNED,
}  # fmt: skip
_PAIRED = {
    RowKind.BELOW: RowKind.LARGEST, RowKind.FITTED: RowKind.FIT, RowKind.LED: RowKind.LEAD,
    RowKind.LEVEL: RowKind.EVEN,
}  # fmt: skip
"""Values that know something of their operand from another value, and which."""


class IntegerRange(NamedTuple):
    """Whole numbers from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def bits(self) -> int:
        """Bits that a signed number of it may take."""
        return 1 + max((-1 - self.low if self.low < 0 else self.low).bit_length(), self.high.bit_length())


def proved(program: RowProgram) -> tuple[IntegerRange, ...]:
    """Bound every value of a program.

    Raises:
        JudgeError: says which value may leave its type, or be computed from what it must not, and its range.

    Example:
        >>> square = RowProgram("square", 4, "int16_t", "int32_t")
        >>> x = square.given(-32768, 32767)
        >>> at = square.add(RowKind.MUL, x, x)
        >>> proved(square)[at].bits
        32
        >>> square.add(RowKind.SUM, at)
        2
        >>> proved(square)
        Traceback (most recent call last):
        tightrope.core.errors.JudgeError: integer kernel square: value 2, sum, from 0 to 4294967296, ...
    """
    ranges: list[IntegerRange] = []
    for number, value in enumerate(program.values):
        found = _bounded(program, value, ranges)
        for operand in value.operands:
            if operand >= number:
                _fail(program, number, "reads a later value", found)
        low, high = _UNSIGNED if value.unsigned else _SIGNED
        if value.unsigned and any(ranges[operand].low < 0 for operand in value.operands):
            _fail(program, number, "is unsigned and reads what may be negative", found)
        if found.low < low or found.high > high:
            _fail(program, number, f"leaves {'uint32_t' if value.unsigned else 'int32_t'}", found)
        if wrong := _wrong_operands(program, value, [ranges[operand] for operand in value.operands]):
            _fail(program, number, wrong, found)
        ranges.append(found)
    low, high = _TYPES[program.target]
    if ranges[-1].low < low or ranges[-1].high > high:
        _fail(program, len(ranges) - 1, f"leaves {program.target}", ranges[-1])
    return tuple(ranges)


def _fail(program: RowProgram, number: Number, what: str, found: IntegerRange) -> None:
    raise JudgeError(
        f"integer kernel {program.name}: value {number}, {program.values[number].kind}, from {found.low} to "
        f"{found.high}, {what}."
    )


def _wrong_operands(program: RowProgram, value: Value, ranges: list[IntegerRange]) -> str:
    if value.kind in _PAIRED:
        of, by = value.operands[::-1] if value.kind is RowKind.BELOW else value.operands
        maker = program.values[by]
        if (maker.kind, maker.operands, maker.bits) != (_PAIRED[value.kind], (of,), value.bits):
            return f"is not given the {_PAIRED[value.kind]} of what it reads"
    match value.kind:
        case RowKind.FITTED if max(abs(ranges[0].low), abs(ranges[0].high)) > 2**30:
            return "rounds what has no room for it"
        case RowKind.SHL | RowKind.SHR:
            if ranges[1].low < 0 or ranges[1].high > 31:
                return f"shifts by {ranges[1].low} to {ranges[1].high}"
            if value.kind is RowKind.SHL and ranges[0].low < 0:
                return "shifts to the left what may be negative"
        case RowKind.DIV if ranges[1].low < 1:
            return "divides by what may be 0 or negative"
        case RowKind.LOOKUP if ranges[0].low < 0 or ranges[0].high >= len(value.numbers):
            return f"reads entry {ranges[0].low} to {ranges[0].high} of {len(value.numbers)}"
        case RowKind.LEAD | RowKind.LED | RowKind.EVEN | RowKind.LEVEL | RowKind.ROOT if ranges[0].low < 0:
            return "takes the length or root of what may be negative"
    return ""


def _bounded(program: RowProgram, value: Value, ranges: list[IntegerRange]) -> IntegerRange:
    reads = [ranges[operand] for operand in value.operands if operand < len(ranges)]
    match value.kind:
        case RowKind.INPUT:
            low, high = _TYPES[program.source]
            return IntegerRange(max(low, value.numbers[0]), min(high, value.numbers[1]))
        case RowKind.LOOKUP:  # outside of the table, `_wrong_operands` refuses
            found = value.numbers[max(reads[0].low, 0) : reads[0].high + 1] or value.numbers
            return IntegerRange(min(found), max(found))
        case RowKind.CONST | RowKind.PARAMETER:
            return IntegerRange(min(value.numbers), max(value.numbers))
        case RowKind.LARGEST:
            return reads[0]
        case RowKind.BELOW:
            return IntegerRange(0, reads[1].high - reads[1].low)
        case RowKind.SUM:
            return _sum(program, value, ranges)
        case RowKind.FIT | RowKind.LEAD:
            most, least = max(abs(reads[0].low), abs(reads[0].high)), 0
            if value.kind is RowKind.LEAD:
                least = max(reads[0].low, 0)
            return IntegerRange(*(max(0, size.bit_length() - value.bits) for size in (least, most)))
        case RowKind.FITTED:
            return IntegerRange(-(1 << value.bits), 1 << value.bits)
        case RowKind.LED:
            full = 1 << (value.bits - 1)
            return IntegerRange(min(reads[0].low, full), min(reads[0].high, 2 * full - 1))
        case RowKind.EVEN:
            sizes = [size.bit_length() for size in (max(reads[0].low, 1), max(reads[0].high, 1))]
            least, most = ((value.bits - size) // 2 for size in reversed(sizes))
            return IntegerRange(min(least, 0), max(most, 0))
        case RowKind.LEVEL:
            return IntegerRange((1 << (value.bits - 2)) if reads[0].low > 0 else 0, (1 << value.bits) - 1)
        case RowKind.ROOT:
            return IntegerRange(_root(max(reads[0].low, 0)), _root(max(reads[0].high, 0)))
        case RowKind.MUL if value.operands[0] == value.operands[1]:
            ends = (reads[0].low ** 2, reads[0].high ** 2)
            return IntegerRange(0 if reads[0].low <= 0 <= reads[0].high else min(ends), max(ends))
    return _arithmetic(value.kind, reads[0], reads[1])


def _arithmetic(kind: RowKind, one: IntegerRange, other: IntegerRange) -> IntegerRange:
    match kind:
        case RowKind.ADD:
            return IntegerRange(one.low + other.low, one.high + other.high)
        case RowKind.SUB:
            return IntegerRange(one.low - other.high, one.high - other.low)
        case RowKind.MIN:
            return IntegerRange(min(one.low, other.low), min(one.high, other.high))
        case RowKind.MAX:
            return IntegerRange(max(one.low, other.low), max(one.high, other.high))
        case RowKind.AND:
            return IntegerRange(0, other.high if one.low < 0 else min(one.high, other.high))
        case RowKind.SHL | RowKind.SHR:
            by = [min(max(shift, 0), 64) for shift in other]
            ends = [a << b if kind is RowKind.SHL else a >> b for a in one for b in by]
        case RowKind.DIV:
            ends = [a // max(b, 1) for a in one for b in other]
        case _:
            ends = [a * b for a in one for b in other]
    return IntegerRange(min(ends), max(ends))


def _sum(program: RowProgram, value: Value, ranges: list[IntegerRange]) -> IntegerRange:
    """Bound a sum; where its terms depend on how far below the largest they are, one of them is at 0."""
    (term,) = value.operands
    low, high = ranges[term]
    at_top = list[IntegerRange]()
    for number in range(term + 1):
        one = program.values[number]
        at_top.append(IntegerRange(0, 0) if one.kind is RowKind.BELOW else _bounded(program, one, at_top))
    top = at_top[term]
    if low < 0:  # on its way from 0 to the last term
        return IntegerRange(program.length * low, max(0, program.length * high))
    return IntegerRange((program.length - 1) * low + max(low, top.low), program.length * high)


def _root(number: int) -> int:
    root = 0
    for bit in reversed(range((number.bit_length() + 1) // 2 + 1)):
        if (root | 1 << bit) ** 2 <= number:
            root |= 1 << bit
    return root
