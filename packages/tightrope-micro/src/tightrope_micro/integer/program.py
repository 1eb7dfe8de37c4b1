"""Integer kernels that work row by row, as values that can be proved, evaluated and written as C.

Idea        A kernel is a list of values. A value is one number per element of a row, or one per row (sums,
            largest elements, shifts that depend on the row). One list has three readers: `proof` bounds
            every value for all inputs there can be, `evaluate` computes it with NumPy, `emit` writes C.
Source      straight-line programs, as in any compiler; the kernels themselves are in `kernels`
Guarantee   A list is in order: a value reads earlier ones alone.
Complexity  Linear in values.
Gaps        One input and one output per kernel; parameters are constants.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Number = int
"""Position of a value in its program."""


class RowKind(StrEnum):
    """What a value is; letters are its operands, s and k shifts."""

    INPUT = "input"
    CONST = "const"
    PARAMETER = "parameter"  # one number per element
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    SHL = "shl"
    SHR = "shr"  # rounds down
    DIV = "div"  # rounds down
    AND = "and"
    MIN = "min"
    MAX = "max"
    LOOKUP = "lookup"  # table[a]
    LARGEST = "largest"  # of the row
    BELOW = "below"  # a - b, where a is the largest of b in the row
    SUM = "sum"  # over the row
    FIT = "fit"  # smallest s with (largest absolute value >> s) < 2^bits
    FITTED = "fitted"  # a >> s, rounded, with s = fit of a
    LEAD = "lead"  # smallest s with (a >> s) < 2^bits
    LED = "led"  # a >> s, with s = lead of a
    EVEN = "even"  # k with 2^(bits - 2) <= a * 4^k < 2^bits; 0 for 0
    LEVEL = "level"  # a * 4^k, rounded down, with k = even of a
    ROOT = "root"  # of a, rounded down


PER_ROW = frozenset((RowKind.CONST, RowKind.LARGEST, RowKind.SUM, RowKind.FIT, RowKind.LEAD, RowKind.EVEN))
"""One number per row whatever they read; the others where all that they read is."""
REDUCTIONS = frozenset((RowKind.LARGEST, RowKind.SUM, RowKind.FIT))


class Value(NamedTuple):
    """One value.

    Attributes:
        kind: see there.
        operands: numbers of earlier values.
        bits: of FIT, FITTED, LEAD, LED, EVEN and LEVEL.
        numbers: low and high of INPUT, the number of CONST, the table of LOOKUP, or PARAMETER's numbers.
        unsigned: whether it is a ``uint32_t``; else an ``int32_t``.
        per_element: whether it differs from element to element.
    """

    kind: RowKind
    operands: tuple[Number, ...] = ()
    bits: int = 0
    numbers: tuple[int, ...] = ()
    unsigned: bool = False
    per_element: bool = True


@dataclass
class RowProgram:
    """A kernel over rows.

    Attributes:
        name: of the C function.
        length: elements per row.
        source: type of the elements that it reads, such as ``int8_t``.
        target: likewise of those that it writes.
        values: in order; the last is the result.

    Example:
        >>> twice = RowProgram("twice", 4, "int8_t", "int16_t")
        >>> x = twice.given(-128, 127)
        >>> twice.add(RowKind.ADD, x, x)
        1
    """

    name: str
    length: int
    source: str
    target: str
    values: list[Value] = field(default_factory=list)

    def given(self, low: int, high: int) -> Number:
        """Add the input, of any number from ``low`` to ``high``."""
        return self._append(Value(RowKind.INPUT, numbers=(low, high)))

    def const(self, number: int, *, unsigned: bool = False) -> Number:
        """Add a number."""
        return self._append(Value(RowKind.CONST, numbers=(number,), unsigned=unsigned, per_element=False))

    def parameter(self, numbers: tuple[int, ...]) -> Number:
        """Add numbers, one per element of a row."""
        return self._append(Value(RowKind.PARAMETER, numbers=numbers))

    def lookup(self, table: tuple[int, ...], at: Number) -> Number:
        """Add the entry of a table."""
        return self._append(Value(RowKind.LOOKUP, (at,), numbers=table, per_element=self._varies((at,))))

    def add(self, kind: RowKind, *operands: Number, bits: int = 0, unsigned: bool = False) -> Number:
        """Add a value computed from earlier ones."""
        varies = kind not in PER_ROW and self._varies(operands)
        return self._append(Value(kind, operands, bits, (), unsigned, varies))

    def _varies(self, operands: tuple[Number, ...]) -> bool:
        return any(self.values[operand].per_element for operand in operands)

    def _append(self, value: Value) -> Number:
        self.values.append(value)
        return len(self.values) - 1
