"""Choose the order in which statements run, prove it by isl, and let arrays shrink.

Idea        All statements run step by step. Products start as soon as they can; pointwise statements of one
            shape then share their loops, row by row and a few lanes at a time. An array whose uses share
            the prefix (step, group, row, lanes) shrinks to these lanes; one whose uses share a step to that
            step. Products that left the loop run for a block of steps, and keep a block.
Source      fusion by shared prefixes and contraction of arrays, as polyhedral compilers have them; SIRIUS
            (MLSys 2023) has host loops in the same model
Guarantee   isl finds no pair of instances that depend on each other and are reversed, for any number of
            steps; no parallel place carries a dependence; no cell is written while it is needed.
Complexity  Pairs of statements that share an array.
Gaps        One order is tried. Tiles are those of the registers and not searched.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from tightrope.core import CaptureError
from tightrope_forms.loops.ops import ElementView, LoweredWay, Nest, Product, reads_of, touched
from tightrope_forms.values.loops import (
    Affine,
    Formula,
    LoopAccess,
    LoopArray,
    LoopProgram,
    LoopStatement,
    LoopTerm,
)

Group: TypeAlias = "list[Nest] | Product"
_TILE: Final = 32_768
"""Elements of products that left the loop and are there at once: half of a second-level cache holds them."""
_ROWS: Final = 6  # of a product in registers


class Ordered(NamedTuple):
    """A direction of a loop with its order."""

    lowered: LoweredWay
    groups: list[Group]  # what runs in one step, in order
    program: LoopProgram  # what was proved
    cells: dict[str, tuple[int, ...]]  # by array, as in `LoopArray`
    block: int  # steps for which products that left the loop run at once


def grouped(lowered: LoweredWay) -> list[Group]:
    """Put statements that can share their loops together."""
    work = lowered.work
    writers: dict[tuple[str, int], list[int]] = {}
    for number, one in enumerate(work):
        writers.setdefault((one.target.array, one.target.step), []).append(number)
    needs = [[k for view in reads_of(one) for k in writers.get((view.array, view.step), ())] for one in work]
    left, done, groups = list(range(len(work))), set[int](), list[Group]()

    def ready(number: int, group: Sequence[int] = ()) -> bool:
        inside = [k for k in needs[number] if k not in done]
        reads = reads_of(work[number])
        return all(k in group and any(view.same(work[k].target) for view in reads) for k in inside)

    while left:
        first = min((n for n in left if ready(n)), key=lambda n: (isinstance(work[n], Nest), n))
        group, one = [first], work[first]
        for n in left:
            other = work[n]
            if n != first and isinstance(one, Nest) and isinstance(other, Nest):
                group += [n] if other.value.shape == one.value.shape and ready(n, group) else []
        groups.append(one if isinstance(one, Product) else [work[n] for n in group])  # type: ignore[misc]
        done |= set(group)
        left = [n for n in left if n not in done]
    return groups


def access_of(view: ElementView, lowered: LoweredWay, places: Sequence[int], rank: int) -> LoopAccess:
    """Write a view down as affine expressions; its dimensions run along these places of a statement."""
    shape = lowered.arrays[view.array]
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    rows = [[0] * (rank + 1) for _ in shape]
    rest = int(view.meta.storage_offset())
    for k, stride in enumerate(strides):
        rows[k][0], rest = divmod(rest, stride)
    for extent, stride, place in zip(view.meta.shape, view.meta.stride(), places, strict=True):
        if extent == 1 or not stride:
            continue
        at = next(k for k, one in enumerate(strides) if shape[k] > 1 and stride % one == 0)
        rows[at][place + 1] += stride // strides[at]
    for k, row in enumerate(rows):
        last = row[0] + sum(row[p + 1] * (n - 1) for n, p in zip(view.meta.shape, places, strict=True))
        if last >= shape[k]:
            raise CaptureError(f"the access to {view.array} is not affine in its rows")
    time = [(view.step, 1, *[0] * (rank - 1))] if view.array in lowered.timed else []
    return LoopAccess(view.array, (*time, *map(tuple, rows)))


def _unit(rank: int, place: int, factor: int = 1) -> Affine:
    return tuple(factor if k == place + 1 else 0 for k in range(rank + 1))


class _StatementWriter:
    """Collects statements with their times."""

    def __init__(self, lowered: LoweredWay, direction: int, lanes: int, block: int) -> None:
        self.lowered, self.direction, self.lanes, self.block = lowered, direction, lanes, block
        self.statements: list[LoopStatement] = []
        self.places = {id(one): k for k, one in enumerate((*lowered.before, *lowered.work))}

    def head(self, rank: int, phase: int, group: int) -> list[int | LoopTerm]:
        time = LoopTerm(_unit(rank, 0, self.direction))
        block = replace(time, divisor=self.block) if self.lowered.before else 0
        return [block, phase, *((group, time) if phase == 0 else (time, group))]

    def nest(self, one: Nest, group: int, position: int) -> None:
        shape = one.value.shape
        rank, places = len(shape) + 1, range(1, len(shape) + 1)
        if rank > 4:
            raise CaptureError(f"a result with {len(shape)} dimensions has no kernel here")
        rows, last = [LoopTerm(_unit(rank, k)) for k in places[:-1]], _unit(rank, rank - 1)
        lane = (LoopTerm(last, self.lanes), position, LoopTerm(last, 1, self.lanes))
        ends = lane if shape else (0, position, 0)
        times = [*self.head(rank, 1, group), *rows, *[0] * (2 - len(rows)), *ends]
        views = [(view, places) for view in (one.target, *one.value.reads)]
        self.add("n", one, shape, views, one.value.formula, times)

    def product(self, one: Product, group: int, phase: int) -> None:
        (rows, columns), inner = one.target.meta.shape, one.left.meta.shape[1]
        panel, block = tile(rows, columns, self.lanes)
        for kind in "zm":  # the bias or 0, then what is added to it
            shape = (rows, columns, inner) if kind == "m" else (rows, columns)
            rank = len(shape) + 1
            row, column = _unit(rank, 1), _unit(rank, 2)
            formula: Formula = 0.0
            views: list[tuple[ElementView, Sequence[int]]] = [(one.target, (1, 2))]
            if kind == "m":
                views += [(one.target, (1, 2)), (one.left, (1, 3)), (one.right, (3, 2))]
                formula = ("add", 0, ("mul", 1, 2))
            elif one.bias is not None:
                views, formula = [*views, (one.bias, (1, 2))], 0
            times = [
                *self.head(rank, phase, group), LoopTerm(column, panel), LoopTerm(row, block),
                LoopTerm((1, 0, 0, 0, 1)) if kind == "m" else 0,
                LoopTerm(row, 1, block), LoopTerm(column, 1, panel),
            ]  # fmt: skip
            self.add(kind, one, shape, views, formula, times)

    def add(
        self, kind: str, one: Nest | Product, shape: tuple[int, ...],
        views: Iterable[tuple[ElementView, Sequence[int]]], formula: Formula, times: Sequence[int | LoopTerm],
    ) -> None:  # fmt: skip
        rank = len(shape) + 1
        target, *reads = (access_of(view, self.lowered, places, rank) for view, places in views)
        when = tuple(term if isinstance(term, LoopTerm) else LoopTerm((term, *[0] * rank)) for term in times)
        name, place = f"{kind}{len(self.statements)}", 2 * self.places[id(one)] + (kind == "m")
        self.statements.append(LoopStatement(name, shape, target, tuple(reads), formula, place, when))


def tile(rows: int, columns: int, lanes: int) -> tuple[int, int]:
    """Choose columns and rows of a product that stay in registers; a few rows need more columns."""
    vectors = min({1: 8, 2: 4, 3: 4}.get(rows, 2), -(-columns // lanes))
    return vectors * lanes, min(rows, _ROWS if vectors <= 2 else 3)


def ordered(lowered: LoweredWay, direction: int, lanes: int) -> Ordered:
    """Order a direction, prove it, and shrink arrays as far as that can be proved.

    Raises:
        CaptureError: isl finds that the order is not legal.
    """
    groups = grouped(lowered)
    size = sum(prod(lowered.arrays[one.target.array]) for one in lowered.before)
    block = 1 << max(4, min(9, (_TILE // size).bit_length() - 1)) if size else 1  # stays in a cache
    writer = _StatementWriter(lowered, direction, lanes, block)
    for number, product in enumerate(lowered.before):
        writer.product(product, number, 0)
    for number, group in enumerate(groups):
        if isinstance(group, Product):
            writer.product(group, number, 1)
        else:
            for position, one in enumerate(group):
                writer.nest(one, number, position)
    arrays = [
        LoopArray(name, shape, name in lowered.timed, (), name in lowered.kept)
        for name, shape in lowered.arrays.items()
    ]
    last = len(writer.statements[0].when) - 1
    bare = LoopProgram(direction, tuple(arrays), tuple(writer.statements), (last,))
    proof, cells = OrderProof(bare), dict[str, tuple[int, ...]]()
    proof.check()
    for name in lowered.timed - lowered.kept:
        for option in _options(name, lowered, groups, (lanes, block)):
            if proof.fits(name, option):
                cells[name] = option
                break
    shrunk = tuple(
        replace(one, cells=cells.get(one.name, ()), outside=one.name not in cells and one.over_time)
        for one in arrays
    )
    return Ordered(lowered, groups, replace(bare, arrays=shrunk), cells, block)


def _options(
    name: str, lowered: LoweredWay, groups: Sequence[Group], sizes: tuple[int, int]
) -> Iterable[tuple[int, ...]]:
    """List cells that an array may shrink to, fewest first."""
    rank, (lanes, block) = len(lowered.arrays[name]), sizes
    if any(one.target.array == name for one in lowered.before):
        return [(block, *[0] * rank)]
    uses = [
        (number, isinstance(group, list), view.step)
        for number, group in enumerate(groups)
        for one in (group if isinstance(group, list) else [group])
        for view in touched(one)
        if view.array == name
    ]
    in_one_nest = len(set(uses)) == 1 and uses[0][1] and rank
    return [*[(1, *[1] * (rank - 1), lanes)] * bool(in_one_nest), (1, *[0] * rank), (2, *[0] * rank)]


class OrderProof:
    """Sets and maps of a program, as isl has them; its cells are not looked at."""

    def __init__(self, program: LoopProgram) -> None:
        import islpy

        self.isl, self.program = islpy, program
        every = program.statements
        deepest, boxes = max(len(one.extents) for one in every), list[str]()
        for one in every:
            limits = [f"0 <= i{k} < {extent}" for k, extent in enumerate(one.extents)]
            boxes.append(f"{_tuple(one)} : {' and '.join(['0 <= t < T', *limits])}")
        domain = islpy.UnionSet(f"[T] -> {{ {'; '.join(boxes)} }}")

        def relation(pairs: Iterable[tuple[LoopStatement, str, Iterable[str]]]) -> Any:
            parts = [f"{_tuple(one)} -> {name}[{', '.join(index)}]" for one, name, index in pairs]
            return islpy.UnionMap(f"[T] -> {{ {'; '.join(parts)} }}").intersect_domain(domain)

        def dims(one: LoopStatement) -> list[str]:
            return [f"i{k}" if k < len(one.extents) else "0" for k in range(deepest)]

        self.writes = relation((one, one.target.array, map(_affine, one.target.index)) for one in every)
        self.reads = relation((one, x.array, map(_affine, x.index)) for one in every for x in one.reads)
        self.new = relation((one, "", map(_term, one.when)) for one in every)
        written = relation((x, "", [f"{program.direction}*t", str(x.place), *dims(x)]) for x in every)
        self.earlier = written.lex_lt_union_map(written)
        read_back, write_back = self.reads.reverse(), self.writes.reverse()
        self.flow = self.writes.apply_range(read_back).intersect(self.earlier)
        others = self.writes.apply_range(write_back).union(self.reads.apply_range(write_back))
        self.needs = self.flow.union(others.intersect(self.earlier))

    def check(self) -> None:
        """Refuse an order that reverses a dependence, and a place that is parallel and carries one.

        Raises:
            CaptureError: says which.
        """
        if not self.needs.intersect(self.new.lex_ge_union_map(self.new)).is_empty():
            raise CaptureError("isl finds a dependence that the order reverses")
        times = self.needs.apply_domain(self.new).apply_range(self.new)
        width = range(len(self.program.statements[0].when))
        a, b = (f"[{', '.join(f'{side}{k}' for k in width)}]" for side in "ab")
        for at in self.program.parallel:
            apart = " and ".join([*(f"a{k} = b{k}" for k in range(at)), f"a{at} != b{at}"])
            if not times.intersect(self.isl.UnionMap(f"{{ {a} -> {b} : {apart} }}")).is_empty():
                raise CaptureError(f"isl finds a dependence along place {at}, which is said to be parallel")

    def fits(self, name: str, cells: Sequence[int]) -> bool:
        """Tell whether no cell of an array is written between a write and a read of another element."""
        (array,) = (one for one in self.program.arrays if one.name == name)
        size = len(cells)
        assert size == len(array.shape) + array.over_time
        x, y = [f"x{k}" for k in range(size)], [f"y{k}" for k in range(size)]
        alike = " and ".join(
            f"(x{k} - y{k}) mod {cell} = 0" if cell else f"x{k} = y{k}" for k, cell in enumerate(cells)
        )
        other = " or ".join(f"x{k} != y{k}" for k in range(size))
        clash = self.isl.UnionMap(
            f"{{ {name}[{', '.join(x)}] -> {name}[{', '.join(y)}] : {alike} and ({other}) }}"
        )
        only = self.isl.UnionSet(f"{{ {name}[{', '.join(x)}] }}")
        reads, writes = self.reads.intersect_range(only), self.writes.intersect_range(only)
        flow = writes.apply_range(reads.reverse()).intersect(self.earlier)
        overwritten = reads.apply_range(clash).apply_range(writes.reverse())  # read -> write of another
        same = overwritten.domain().identity()
        by_reads, by_writes = (self.new.intersect_domain(one.domain()) for one in (reads, writes))
        late = overwritten.subtract(same).intersect(by_reads.lex_ge_union_map(by_writes))
        given = reads.domain().subtract(flow.range())  # what comes from outside is there from the beginning
        between = flow.apply_range(late).subtract(by_writes.lex_gt_union_map(by_writes))
        return bool(between.is_empty() and late.intersect_domain(given).is_empty())


def _tuple(one: LoopStatement) -> str:
    return f"{one.name}[{', '.join(['t', *(f'i{k}' for k in range(len(one.extents)))])}]"


def _affine(one: Affine) -> str:
    names = ["t", *(f"i{k}" for k in range(len(one) - 2))]
    return " + ".join([str(one[0]), *(f"{k}*{name}" for k, name in zip(one[1:], names, strict=True) if k)])


def _term(one: LoopTerm) -> str:
    text = _affine(one.affine)
    text = f"floor(({text})/{one.divisor})" if one.divisor > 1 else f"({text})"
    return f"({text} mod {one.modulo})" if one.modulo else text
