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
from itertools import chain
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

from tightrope.core import CaptureError
from tightrope_forms.loops.ops import ElementView, LoweredWay, Nest, Product, reads_of
from tightrope_forms.values.loops import Affine, LoopAccess, LoopArray, LoopProgram, LoopStatement, LoopTerm

Group: TypeAlias = "list[Nest] | Product"
_TILE: Final = 32_768
"""Elements of products that left the loop and are there at once: half of a second-level cache holds them."""
_ROWS: Final = 6  # of a product in registers


class Ordered(NamedTuple):
    """A direction of a loop with its order.

    Attributes:
        groups: what runs in one step, in order.
        program: what was proved.
        cells: by array, as in `LoopArray`.
        block: steps for which products that left the loop run at once.
    """

    lowered: LoweredWay
    groups: list[Group]
    program: LoopProgram
    cells: dict[str, tuple[int, ...]]
    block: int


def grouped(lowered: LoweredWay) -> list[Group]:
    """Put statements that can share their loops together."""
    work = lowered.work
    writers: dict[tuple[str, int], list[int]] = {}
    for number, one in enumerate(work):
        writers.setdefault((one.target.array, one.target.step), []).append(number)
    needs = [[k for view in reads_of(one) for k in writers.get((view.array, view.step), ())] for one in work]
    left, done, groups = list(range(len(work))), set[int](), list[Group]()

    def ready(number: int, group: Sequence[int] = ()) -> bool:
        return all(
            k in done or (k in group and any(view.same(work[k].target) for view in reads_of(work[number])))
            for k in needs[number]
        )

    while left:
        first = min((n for n in left if ready(n)), key=lambda n: (isinstance(work[n], Nest), n))
        group, one = [first], work[first]
        if isinstance(one, Nest):
            for n in left:
                other = work[n]
                if (
                    n not in group
                    and isinstance(other, Nest)
                    and other.value.shape == one.value.shape
                    and ready(n, group)
                ):
                    group.append(n)
        groups.append(one if isinstance(one, Product) else [work[n] for n in group])  # type: ignore[misc]
        done |= set(group)
        left = [n for n in left if n not in done]
    return groups


def access_of(view: ElementView, lowered: LoweredWay, places: Sequence[int], rank: int) -> LoopAccess:
    """Write a view down as affine expressions.

    Args:
        view: any.
        lowered: which has the shape of its array.
        places: the dimension of the statement, from 1, along which each dimension of the view runs.
        rank: of the statement, time included.

    Raises:
        CaptureError: it crosses rows of its array.
    """
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


def _terms(rank: int, *terms: int | LoopTerm) -> tuple[LoopTerm, ...]:
    return tuple(one if isinstance(one, LoopTerm) else LoopTerm((one, *[0] * rank)) for one in terms)


class _StatementWriter:
    """Collects statements with their times."""

    def __init__(self, lowered: LoweredWay, direction: int, lanes: int, block: int) -> None:
        self.lowered, self.direction, self.lanes, self.block = lowered, direction, lanes, block
        self.statements: list[LoopStatement] = []
        self.places = {id(one): k for k, one in enumerate((*lowered.before, *lowered.work))}

    def head(self, rank: int, phase: int, group: int) -> list[int | LoopTerm]:
        block = LoopTerm(_unit(rank, 0, self.direction), self.block)
        if not self.lowered.before:
            block = LoopTerm((0, *[0] * rank))
        time = LoopTerm(_unit(rank, 0, self.direction))
        return [block, phase, group, time] if phase == 0 else [block, phase, time, group]

    def nest(self, one: Nest, group: int, position: int) -> None:
        shape = one.value.shape
        rank, places = len(shape) + 1, list(range(1, len(shape) + 1))
        rows: list[int | LoopTerm] = [LoopTerm(_unit(rank, k)) for k in places[:-1]]
        if len(rows) > 2:
            raise CaptureError(f"a result with {len(shape)} dimensions has no kernel here")
        lane: list[int | LoopTerm] = [0, position, 0]
        if shape:
            last = _unit(rank, rank - 1)
            lane = [LoopTerm(last, self.lanes), position, LoopTerm(last, 1, self.lanes)]
        times = [*self.head(rank, 1, group), *rows, *[0] * (2 - len(rows)), *lane]
        target = access_of(one.target, self.lowered, places, rank)
        reads = tuple(access_of(view, self.lowered, places, rank) for view in one.value.reads)
        self.add(
            f"n{len(self.statements)}", shape, target, reads, one.value.formula, one, _terms(rank, *times)
        )

    def product(self, one: Product, group: int, phase: int) -> None:
        rows, columns = one.target.meta.shape
        inner = one.left.meta.shape[1]
        panel, block = tile(rows, columns, self.lanes)
        for inside in (False, True):
            rank, shape = (4, (rows, columns, inner)) if inside else (3, (rows, columns))
            row, column = _unit(rank, 1), _unit(rank, 2)
            k = LoopTerm((1, 0, 0, 0, 1)) if inside else 0
            times = [
                *self.head(rank, phase, group), LoopTerm(column, panel), LoopTerm(row, block), k,
                LoopTerm(row, 1, block), LoopTerm(column, 1, panel),
            ]  # fmt: skip
            target = access_of(one.target, self.lowered, (1, 2), rank)
            reads: tuple[LoopAccess, ...]
            if inside:
                left = access_of(one.left, self.lowered, (1, 3), rank)
                reads = (target, left, access_of(one.right, self.lowered, (3, 2), rank))
                formula: Any = ("add", 0, ("mul", 1, 2))
            else:
                reads = () if one.bias is None else (access_of(one.bias, self.lowered, (1, 2), rank),)
                formula = 0.0 if one.bias is None else 0
            name = f"{'m' if inside else 'z'}{len(self.statements)}"
            self.add(name, shape, target, reads, formula, one, _terms(rank, *times))

    def add(
        self, name: str, shape: tuple[int, ...], target: LoopAccess, reads: tuple[LoopAccess, ...],
        formula: Any, one: Any, times: tuple[LoopTerm, ...],
    ) -> None:  # fmt: skip
        place = 2 * self.places[id(one)] + (name[0] == "m")
        self.statements.append(LoopStatement(name, shape, target, reads, formula, place, times))


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
    block = _block(lowered)
    writer = _StatementWriter(lowered, direction, lanes, block)
    for number, product in enumerate(lowered.before):
        writer.product(product, number, 0)
    for number, group in enumerate(groups):
        if isinstance(group, Product):
            writer.product(group, number, 1)
        else:
            for position, one in enumerate(group):
                writer.nest(one, number, position)
    width = len(writer.statements[0].when)
    bare = LoopProgram(
        direction,
        tuple(
            LoopArray(name, shape, name in lowered.timed, (), name in lowered.kept)
            for name, shape in lowered.arrays.items()
        ),
        tuple(writer.statements), (width - 1,),
    )  # fmt: skip
    proof = OrderProof(bare)
    proof.check()
    cells = {}
    for name in lowered.timed - lowered.kept:
        for option in _options(name, lowered, groups, (lanes, block)):
            if proof.fits(name, option):
                cells[name] = option
                break
    arrays = tuple(
        LoopArray(
            one.name,
            one.shape,
            one.over_time,
            cells.get(one.name, ()),
            one.name not in cells and one.over_time,
        )
        for one in bare.arrays
    )
    return Ordered(
        lowered, groups, LoopProgram(direction, arrays, bare.statements, bare.parallel), cells, block
    )


def _block(lowered: LoweredWay) -> int:
    """Choose a power of 2 of steps whose products stay in a cache."""
    size = sum(prod(lowered.arrays[one.target.array]) for one in lowered.before)
    return 1 << max(4, min(9, (_TILE // size).bit_length() - 1)) if size else 1


def _options(
    name: str, lowered: LoweredWay, groups: Sequence[Group], sizes: tuple[int, int]
) -> Iterable[tuple[int, ...]]:
    """List cells that an array may shrink to, fewest first."""
    rank, (lanes, block) = len(lowered.arrays[name]), sizes
    if any(one.target.array == name for one in lowered.before):
        return [(block, *[0] * rank)]
    using = [
        g for g in groups if any(name in names for names in map(_names, [g] if isinstance(g, Product) else g))
    ]
    steps = {view.step for one in lowered.work for view in (*reads_of(one), one.target) if view.array == name}
    if len(using) == 1 and isinstance(using[0], list) and rank and len(steps) == 1:
        return [(1, *[1] * (rank - 1), lanes), (1, *[0] * rank), (2, *[0] * rank)]
    return [(1, *[0] * rank), (2, *[0] * rank)]


def _names(one: Nest | Product) -> set[str]:
    return {view.array for view in (*reads_of(one), one.target)}


class OrderProof:
    """Sets and maps of a program, as isl has them.

    Args:
        program: of which cells are not looked at.
    """

    def __init__(self, program: LoopProgram) -> None:
        import islpy

        self.isl, self.program = islpy, program
        self.writes = self._map((one, one.target) for one in program.statements)
        self.reads = self._map((one, read) for one in program.statements for read in one.reads)
        self.new = self._union(
            f"{_tuple(one)} -> [{', '.join(map(_term, one.when))}]" for one in program.statements
        )
        deepest = max(len(one.extents) for one in program.statements)
        before = []
        for one in program.statements:
            dims = [f"i{k}" if k < len(one.extents) else "0" for k in range(deepest)]
            before.append(
                f"{_tuple(one)} -> [{', '.join([f'{program.direction}*t', str(one.place), *dims])}]"
            )
        written = self._union(before)
        domain = self._union(f"{_tuple(one)} : {_box(one)}" for one in program.statements)
        domain = domain if isinstance(domain, islpy.UnionSet) else islpy.UnionSet(domain)
        self.writes, self.reads, self.new, written = (
            one.intersect_domain(domain) for one in (self.writes, self.reads, self.new, written)
        )
        self.earlier = written.lex_lt_union_map(written)
        read_back, write_back = self.reads.reverse(), self.writes.reverse()
        self.flow = self.writes.apply_range(read_back).intersect(self.earlier)
        others = self.writes.apply_range(write_back).union(self.reads.apply_range(write_back))
        self.needs = self.flow.union(others.intersect(self.earlier))

    def _union(self, parts: Iterable[str]) -> Any:
        text = f"[T] -> {{ {'; '.join(parts)} }}"
        return self.isl.UnionMap(text) if "->" in text[6:] else self.isl.UnionSet(text)

    def _map(self, pairs: Iterable[tuple[LoopStatement, LoopAccess]]) -> Any:
        return self._union(
            f"{_tuple(one)} -> {access.array}[{', '.join(_affine(x) for x in access.index)}]"
            for one, access in pairs
        )

    def _times(self, pairs: Any) -> Any:
        return pairs.apply_domain(self.new).apply_range(self.new)

    def _width(self) -> int:
        return len(self.program.statements[0].when)

    def check(self) -> None:
        """Refuse an order that reverses a dependence, and a place that is parallel and carries one.

        Raises:
            CaptureError: says which.
        """
        times, names = (
            self._times(self.needs),
            [[f"{side}{k}" for k in range(self._width())] for side in "ab"],
        )
        a, b = (f"[{', '.join(side)}]" for side in names)
        back = " or ".join(
            " and ".join([*(f"a{k} = b{k}" for k in range(at)), f"a{at} > b{at}"])
            for at in range(self._width())
        )
        same = " and ".join(f"a{k} = b{k}" for k in range(self._width()))
        wrong = self.isl.UnionMap(f"{{ {a} -> {b} : {back} or ({same}) }}")
        if not times.intersect(wrong).is_empty():
            raise CaptureError("isl finds a dependence that the order reverses")
        for at in self.program.parallel:
            prefix = " and ".join([*(f"a{k} = b{k}" for k in range(at)), f"a{at} != b{at}"])
            if not times.intersect(self.isl.UnionMap(f"{{ {a} -> {b} : {prefix} }}")).is_empty():
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


def _box(one: LoopStatement) -> str:
    limits = chain(["0 <= t < T"], (f"0 <= i{k} < {extent}" for k, extent in enumerate(one.extents)))
    return " and ".join(limits)


def _affine(one: Affine) -> str:
    names = ["t", *(f"i{k}" for k in range(len(one) - 2))]
    return " + ".join([str(one[0]), *(f"{k}*{name}" for k, name in zip(one[1:], names, strict=True) if k)])


def _term(one: LoopTerm) -> str:
    text = _affine(one.affine)
    text = f"floor(({text})/{one.divisor})" if one.divisor > 1 else f"({text})"
    return f"({text} mod {one.modulo})" if one.modulo else text
