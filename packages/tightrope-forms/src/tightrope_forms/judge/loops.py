"""Judge a loop program: its order against that in which it was written, and its shared cells.

Idea        By isl: no instance that depends on another runs before it, or at once; no cell is written
            again before the last read of what it held. By counting: with few steps every instance is
            run in both orders, in shared cells, and every read must find what it found as written.
Guarantee   The proof holds for any number of steps. What runs by numbers gives the values themselves.
Complexity  Pairs of statements that share an array; instances of a few steps.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any, Final

from tightrope.core import JudgeError
from tightrope_forms.values.loops import Affine, Formula, LoopAccess, LoopArray, LoopProgram, LoopStatement

MOST_INSTANCES: Final = 400_000
Instance = tuple[LoopStatement, tuple[int, ...]]
Element = tuple[str, tuple[int, ...]]


def _text(affine: Affine, names: Sequence[str]) -> str:
    return " + ".join([str(affine[0]), *(f"{k}*{n}" for k, n in zip(affine[1:], names, strict=True) if k)])


def _names(one: LoopStatement, prime: str) -> list[str]:
    return [f"{prime}t", *(f"{prime}i{k}" for k in range(len(one.extents)))]


def _inside(one: LoopStatement, prime: str) -> list[str]:
    names = _names(one, prime)
    limits = ["T", *map(str, one.extents)]
    return [f"0 <= {name} < {limit}" for name, limit in zip(names, limits, strict=True)]


def _time(one: LoopStatement, prime: str, *, written: int = 0) -> list[str]:
    names = _names(one, prime)
    if written:
        return [f"{written}*{names[0]}", str(one.place), *names[1:]]
    found = []
    for term in one.when:
        if not any(term.affine[1:]) and not term.modulo:
            found.append(str(term.affine[0] // term.divisor))
            continue
        text = f"floor(({_text(term.affine, names)})/{term.divisor})" if term.divisor > 1 else (
            f"({_text(term.affine, names)})"
        )  # fmt: skip
        found.append(f"({text} mod {term.modulo})" if term.modulo else text)
    return found


def _before(first: Sequence[str], second: Sequence[str], *, equal: bool = False) -> str:
    """Write down that one time vector is before another; numbers are compared at once."""
    cases, alike = list[str](), list[str]()
    for a, b in zip_longest(first, second, fillvalue="0"):
        numbers = [int(one) for one in (a, b) if one.lstrip("-").isdecimal()]
        if len(numbers) == 2 and numbers[0] != numbers[1]:
            cases += [" and ".join(alike) or "0 = 0"] if numbers[0] < numbers[1] else []
            break
        if len(numbers) < 2:
            cases.append(" and ".join([*alike, f"{a} < {b}"]))
            alike.append(f"{a} = {b}")
    else:
        cases += [" and ".join(alike) or "0 = 0"] if equal else []
    return f"({' or '.join(f'({case})' for case in cases) or '0 = 1'})"


def _empty(text: str) -> bool:
    import islpy

    return bool(islpy.Set(text).is_empty())


def _same(one: LoopAccess, a: list[str], two: LoopAccess, b: list[str], cells: Sequence[int] = ()) -> str:
    parts = []
    for k, (x, y) in enumerate(zip(one.index, two.index, strict=True)):
        first, second, cell = _text(x, a), _text(y, b), cells[k] if cells else 0
        parts.append(
            f"(({first}) - ({second})) mod {cell} = 0"
            if cell > 1
            else "0 = 0"
            if cell
            else f"{first} = {second}"
        )
    return " and ".join(parts) or "0 = 0"


def judge_by_isl(program: LoopProgram) -> int:
    """Prove the order and the cells of a program for any number of steps.

    Returns:
        How many pairs of accesses were looked at.

    Raises:
        JudgeError: names two statements, and what is wrong between them.
    """
    looked, width = 0, {len(one.when) for one in program.statements}
    if len(width) > 1:
        raise JudgeError("statements have time vectors of different lengths.")
    arrays = {one.name: one for one in program.arrays}
    writers: dict[str, list[LoopStatement]] = {}
    readers: dict[str, list[tuple[LoopStatement, LoopAccess]]] = {}
    for one in program.statements:
        writers.setdefault(one.target.array, []).append(one)
        for read in one.reads:
            readers.setdefault(read.array, []).append((one, read))
    for name, written in writers.items():
        used = readers.get(name, [])
        pairs = [(w, w.target, s, a) for w in written for s, a in [*used, *((v, v.target) for v in written)]]
        pairs += [(s, a, w, w.target) for w in written for s, a in used]
        for one, first, two, second in pairs:
            _judge_pair(program, one, first, two, second)
            looked += 1
        looked += _judge_cells(program, arrays[name], written, used)
    return looked


def _judge_pair(
    program: LoopProgram, one: LoopStatement, first: LoopAccess, two: LoopStatement, second: LoopAccess
) -> None:
    a, b = _names(one, "a"), _names(two, "b")
    facts = [*_inside(one, "a"), *_inside(two, "b"), _same(first, a, second, b)]
    facts.append(
        _before(_time(one, "a", written=program.direction), _time(two, "b", written=program.direction))
    )
    new = _time(one, "a"), _time(two, "b")
    head = f"[T] -> {{ [{', '.join([*a, *b])}] : {' and '.join(facts)} and "
    if not _empty(f"{head}{_before(new[1], new[0], equal=True)} }}"):
        raise JudgeError(f"{two.name} needs {first.array} after {one.name}, and the order reverses them.")
    for at in program.parallel:
        same = " and ".join(f"{x} = {y}" for x, y in zip(new[0][:at], new[1][:at], strict=True)) or "0 = 0"
        if not _empty(f"{head}{same} and {new[0][at]} < {new[1][at]} }}"):
            raise JudgeError(f"place {at} is said to be parallel; {two.name} needs {one.name} along it.")


def _judge_cells(
    program: LoopProgram,
    array: LoopArray,
    written: Sequence[LoopStatement],
    used: Sequence[tuple[LoopStatement, LoopAccess]],
) -> int:
    """Refuse cells that are written between a write and a read of another of their elements."""
    if not any(array.cells):
        return 0
    if array.outside:
        raise JudgeError(f"{array.name} is needed outside of the loop, and not all of it is kept.")
    looked = 0
    for w, (r, access), v in product(written, used, written):
        a, b, c = _names(w, "a"), _names(r, "b"), _names(v, "c")
        facts = [*_inside(w, "a"), *_inside(r, "b"), *_inside(v, "c"), _same(w.target, a, access, b)]
        facts.append(_same(v.target, c, access, b, array.cells))
        facts.append(f"not ({_same(v.target, c, access, b)})")
        order = [_before(_time(w, "a"), _time(v, "c"), equal=True)]
        order.append(_before(_time(v, "c"), _time(r, "b"), equal=v is not r))
        order.append(_before(_time(w, "a"), _time(r, "b")))
        text = " and ".join([*facts, *order])
        if not _empty(f"[T] -> {{ [{', '.join([*a, *b, *c])}] : {text} }}"):
            raise JudgeError(f"{v.name} writes a cell of {array.name} that {r.name} still reads.")
        looked += 1
    for (r, access), v in product(used, written):
        if not _kept_from_outside(program, array, (r, access), v, written):
            raise JudgeError(f"{v.name} writes a cell of {array.name} that {r.name} reads from outside.")
    return looked


def _kept_from_outside(
    program: LoopProgram, array: LoopArray, use: tuple[LoopStatement, LoopAccess], v: LoopStatement,
    written: Sequence[LoopStatement],
) -> bool:  # fmt: skip
    """Tell whether what no statement wrote before a read is still in its cell then."""
    import islpy

    (r, access), order = use, program.direction
    b, c = _names(r, "b"), _names(v, "c")
    outside = islpy.Set(f"[T] -> {{ [{', '.join(b)}] : {' and '.join(_inside(r, 'b'))} }}")
    for w in written:
        a = _names(w, "a")
        facts = [*_inside(w, "a"), *_inside(r, "b"), _same(w.target, a, access, b)]
        facts.append(_before(_time(w, "a", written=order), _time(r, "b", written=order)))
        outside -= islpy.Set(
            f"[T] -> {{ [{', '.join(b)}] : exists ({', '.join(a)} : {' and '.join(facts)}) }}"
        )
    facts = [*_inside(r, "b"), *_inside(v, "c"), _same(v.target, c, access, b, array.cells)]
    facts += [
        f"not ({_same(v.target, c, access, b)})",
        _before(_time(v, "c"), _time(r, "b"), equal=v is not r),
    ]
    late = islpy.Map(f"[T] -> {{ [{', '.join(b)}] -> [{', '.join(c)}] : {' and '.join(facts)} }}")
    return bool(late.intersect_domain(outside).is_empty())


def _at(affine: Affine, point: Sequence[int]) -> int:
    return affine[0] + sum(k * x for k, x in zip(affine[1:], point, strict=True))


def _element(access: LoopAccess, point: Sequence[int]) -> Element:
    return access.array, tuple(_at(one, point) for one in access.index)


def _instances(program: LoopProgram, steps: int) -> Iterator[Instance]:
    for one in program.statements:
        for point in product(range(steps), *map(range, one.extents)):
            yield one, point


def _when(instance: Instance) -> tuple[int, ...]:
    one, point = instance
    values = (_at(term.affine, point) // term.divisor for term in one.when)
    return tuple(v % t.modulo if t.modulo else v for v, t in zip(values, one.when, strict=True))


_OPS: Final[dict[str, Callable[..., float]]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a, "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "tanh": math.tanh, "exp": math.exp,
    "relu": lambda a: max(a, 0.0), "abs": abs, "max": max, "min": min, "sqrt": math.sqrt, "log": math.log,
    "sign": lambda a: float((a > 0) - (a < 0)), "above": lambda a, b, c, d: c if a > b else d,
}  # fmt: skip


def _value(formula: Formula, reads: Sequence[float]) -> float:
    if isinstance(formula, tuple):
        return _OPS[str(formula[0])](*(_value(one, reads) for one in formula[1:]))  # type: ignore[arg-type]
    return reads[formula] if isinstance(formula, int) else formula


def interpret(
    program: LoopProgram, steps: int, values: Mapping[Element, float], *, written: bool = False
) -> dict[Element, float]:
    """Run every instance by numbers, in the proved order and in shared cells, or as it was written.

    Args:
        program: to run.
        steps: of the loop.
        values: of elements that come from outside.
        written: run in the order as written, every element in a cell of its own.

    Returns:
        The values of all elements that are there at the end.

    Raises:
        JudgeError: a read finds another element in its cell; there are too many instances.
    """
    every = sorted(_instances(program, steps), key=_key(program, written))
    if len(every) > MOST_INSTANCES:
        raise JudgeError(f"{len(every)} instances are too many: the most is {MOST_INSTANCES}.")
    arrays = {one.name: one for one in program.arrays}

    def cell(element: Element) -> Element:
        moduli = () if written else arrays[element[0]].cells
        if not moduli:
            return element
        return element[0], tuple(x % m if m else x for x, m in zip(element[1], moduli, strict=True))

    held: dict[Element, tuple[Element, float]] = {cell(one): (one, value) for one, value in values.items()}
    for one, point in every:
        found = []
        for access in one.reads:
            element = _element(access, point)
            there = held.get(cell(element))
            if there is None or there[0] != element:
                raise JudgeError(f"{one.name} at {point} reads {element}, and its cell holds another.")
            found.append(there[1])
        target = _element(one.target, point)
        held[cell(target)] = (target, _value(one.formula, found))
    return dict(held.values())


def _key(program: LoopProgram, written: bool) -> Callable[[Instance], Any]:
    if not written:
        return _when
    return lambda one: (program.direction * one[1][0], one[0].place, one[1][1:])


def judge_by_counting(program: LoopProgram, steps: int, values: Mapping[Element, float]) -> int:
    """Run a program in both orders; every element must come from the same instances, with equal values.

    Returns:
        How many elements were compared.

    Raises:
        JudgeError: names an element that differs.
    """
    ours, theirs = (interpret(program, steps, values, written=written) for written in (False, True))
    outside = {one.name for one in program.arrays if one.outside}
    wanted = [key for key in theirs if key[0] in outside or key in ours]
    for key in wanted:
        if ours.get(key) != theirs[key]:
            raise JudgeError(f"{key} is {ours.get(key)} in the new order and {theirs[key]} as written.")
    return len(wanted)
