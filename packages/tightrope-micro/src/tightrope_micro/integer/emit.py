"""Write an integer kernel as C: loops over a row, in 32-bit arithmetic alone.

Idea        What belongs to a row is computed in order; every sum, maximum and shift of a row is one loop
            over its elements. Terms of a sum that are read again are kept in a scratch row.
Source      the meaning of `program.RowKind`, as in `evaluate`
Guarantee   For a program that `proof` passes, the numbers of `evaluate`: no overflow, no undefined shift.
            Right shifts of negative numbers round down, as gcc and clang define them.
Complexity  One loop per reduction, and one for the result.
Gaps        Cheap values of an element are computed again in each loop that reads them.
"""

from tightrope.core import Bytes
from tightrope_micro.integer.program import REDUCTIONS, Number, RowKind, RowProgram, Value

_WORD = 4
HEADER = """#include <stdint.h>

static inline int32_t tr_length(uint32_t a) {
#ifdef __GNUC__
  return a == 0 ? 0 : 32 - __builtin_clz(a);
#else
  int32_t bits = 0;
  for (; a != 0; a >>= 1) ++bits;
  return bits;
#endif
}

static inline int32_t tr_excess(uint32_t a, int32_t bits) {
  const int32_t more = tr_length(a) - bits;
  return more > 0 ? more : 0;
}

static inline int32_t tr_even(uint32_t a, int32_t bits) {
  const int32_t room = bits - tr_length(a);
  return a == 0 ? 0 : room >= 0 ? room / 2 : -((1 - room) / 2);
}

static inline uint32_t tr_root(uint32_t a) {
  uint32_t root = 0;
  for (uint32_t bit = 1u << 15; bit != 0; bit >>= 1)
    if ((root | bit) <= a / (root | bit)) root |= bit;
  return root;
}
"""
_SIGNS = {
    RowKind.ADD: "+", RowKind.SUB: "-", RowKind.BELOW: "-", RowKind.MUL: "*", RowKind.SHL: "<<",
    RowKind.SHR: ">>", RowKind.DIV: "/", RowKind.AND: "&",
}  # fmt: skip


def emitted(program: RowProgram) -> str:
    """Write a kernel as ``void name(const source *x, target *y, uint32_t rows)``; `HEADER` comes first."""
    return _Emitter(program).text()


def stack_bytes(program: RowProgram) -> Bytes:
    """Bytes of the rows that a kernel keeps on the stack."""
    return _WORD * program.length * len(_Emitter(program).kept)


class _Emitter:
    def __init__(self, program: RowProgram) -> None:
        self.program, self.lines = program, list[str]()
        self.kept = self._kept()

    def text(self) -> str:
        one, values = self.program, self.program.values
        self.lines = [
            *self._tables(),
            f"void {one.name}(const {one.source} *x, {one.target} *y, uint32_t rows) {{",
        ]
        self.lines += [f"  {self._type(values[k])} s{k}[{one.length}];" for k in sorted(self.kept)]
        self.lines.append(
            f"  for (uint32_t row = 0; row < rows; ++row, x += {one.length}, y += {one.length}) {{"
        )
        filled: set[Number] = set()
        for number, value in enumerate(values):
            if value.kind in REDUCTIONS:
                self._reduce(number, value, filled)
            elif not value.per_element and value.kind is not RowKind.CONST:
                one_row = self._element(number, value, filled)
                self.lines.append(f"    const {self._type(value)} v{number} = {one_row};")
        self._loop(len(values) - 1, filled, [f"      y[i] = ({one.target})v{len(values) - 1};"])
        return "\n".join([*self.lines, "  }", "}", ""])

    def _tables(self) -> list[str]:
        return [
            f"static const {_smallest(value.numbers)} {self.program.name}_t{number}[{len(value.numbers)}] = "
            f"{{{', '.join(map(str, value.numbers))}}};"
            for number, value in enumerate(self.program.values)
            if value.kind in (RowKind.PARAMETER, RowKind.LOOKUP)
        ]

    def _kept(self) -> set[Number]:
        """Terms of sums that are read again, and what is read for sums of squares."""
        values = self.program.values
        after = {
            number: max((k for k, v in enumerate(values) if number in v.operands), default=number)
            for number in range(len(values))
        }
        found: set[Number] = set()
        for number, value in enumerate(values):
            if value.kind is RowKind.SUM:
                (term,) = value.operands
                found |= {k for k in (term, *values[term].operands) if values[k].kind is not RowKind.INPUT
                          and values[k].per_element and after[k] > number}  # fmt: skip
        return found

    def _reduce(self, number: Number, value: Value, filled: set[Number]) -> None:
        (term,) = value.operands
        read, kind = self._read(term), self._type(value)
        if value.kind is RowKind.SUM:
            self.lines.append(f"    {kind} v{number} = 0;")
            body = [f"      v{number} += ({kind}){read};"]
        elif value.kind is RowKind.LARGEST:
            self.lines.append(f"    {kind} v{number} = INT32_MIN;")
            body = [f"      if ({read} > v{number}) v{number} = {read};"]
        else:
            self.lines.append(f"    uint32_t m{number} = 0;")
            size = f"(uint32_t)({read} < 0 ? -{read} : {read})"
            body = [f"      if ({size} > m{number}) m{number} = {size};"]
        self._loop(term, filled, body)
        if value.kind is RowKind.FIT:
            self.lines.append(f"    const int32_t v{number} = tr_excess(m{number}, {value.bits});")

    def _loop(self, last: Number, filled: set[Number], body: list[str]) -> None:
        """Compute an element's values up to one of them, and do something with it."""
        needed: list[Number] = []
        self._need(last, needed, filled)
        self.lines.append(f"    for (uint32_t i = 0; i < {self.program.length}; ++i) {{")
        for number in needed:
            value = self.program.values[number]
            self.lines.append(
                f"      const {self._type(value)} v{number} = {self._element(number, value, filled)};"
            )
            if number in self.kept and number not in filled:
                self.lines.append(f"      s{number}[i] = v{number};")
        self.lines += [*body, "    }"]
        filled |= self.kept & set(needed)

    def _need(self, number: Number, needed: list[Number], filled: set[Number]) -> None:
        value = self.program.values[number]
        if number in needed or not value.per_element:
            return
        if number not in filled:
            for operand in value.operands:
                self._need(operand, needed, filled)
        needed.append(number)

    def _element(self, number: Number, value: Value, filled: set[Number]) -> str:
        if number in filled:
            return f"s{number}[i]"
        if value.kind is RowKind.INPUT:
            return "x[i]"
        if value.kind is RowKind.PARAMETER:
            return f"(int32_t){self.program.name}_t{number}[i]"
        if value.kind is RowKind.LOOKUP:
            return f"{self.program.name}_t{number}[{self._read(value.operands[0])}]"
        return self._value(value)

    def _value(self, value: Value) -> str:
        kind, reads = self._type(value), [self._read(operand) for operand in value.operands]
        match value.kind:
            case RowKind.LEAD:
                return f"tr_excess((uint32_t){reads[0]}, {value.bits})"
            case RowKind.EVEN:
                return f"tr_even((uint32_t){reads[0]}, {value.bits})"
            case RowKind.LEVEL:
                return f"{reads[1]} >= 0 ? {reads[0]} << (2 * {reads[1]}) : {reads[0]} >> (-2 * {reads[1]})"
            case RowKind.ROOT:
                return f"tr_root((uint32_t){reads[0]})"
            case RowKind.LED:
                return f"{reads[0]} >> {reads[1]}"
            case RowKind.FITTED:
                return f"({reads[0]} + ({reads[1]} > 0 ? 1 << ({reads[1]} - 1) : 0)) >> {reads[1]}"
            case RowKind.MIN | RowKind.MAX:
                one, other = (f"({kind}){read}" for read in reads)
                return f"{one} {'<' if value.kind is RowKind.MIN else '>'} {other} ? {one} : {other}"
            case RowKind.SHR | RowKind.SHL:
                return f"({kind}){reads[0]} {_SIGNS[value.kind]} {reads[1]}"
        return f"({kind}){reads[0]} {_SIGNS[value.kind]} ({kind}){reads[1]}"

    def _read(self, number: Number) -> str:
        value = self.program.values[number]
        if value.kind is not RowKind.CONST:
            return f"v{number}"
        (constant,) = value.numbers
        return f"{constant}u" if value.unsigned else f"({constant})"

    def _type(self, value: Value) -> str:
        return "uint32_t" if value.unsigned else "int32_t"


def _smallest(numbers: tuple[int, ...]) -> str:
    """The smallest type that holds a table."""
    for bits in (8, 16):
        if -(2 ** (bits - 1)) <= min(numbers) and max(numbers) < 2 ** (bits - 1):
            return f"int{bits}_t"
    return "int32_t"
