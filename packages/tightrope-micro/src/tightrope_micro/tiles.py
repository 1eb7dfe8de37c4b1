"""Cut weights into rows, so that no layer needs its whole weight in RAM at once.

Idea        A weight's first dimension is its outputs. Some rows of it, a *tile*, give some outputs, their
            part of the input's gradient, and their own update. So every op of the weight becomes one op per
            tile: the first makes the result, the others write into it; and every tile is a storage with a
            page of its own.
Source      Tiling below one tensor, as POET (ICML 2022) lacks it
Guarantee   The kernels add up in the same order as without tiles, so the results are equal to the bit. Every
            row of a weight is updated after the last op that reads its old value.
Complexity  Linear in ops and tiles.
Gaps        Rows of weights alone; `maps` cuts what ops make. A convolution in groups stays whole.

    weight  | tile 0 | tile 1 | tile 2 |      conv2d(x, tile 0) makes y, conv2d(x, tile 1) writes into y
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec.structs import replace

from tightrope.core import (
    Argument,
    Bytes,
    Flag,
    Graph,
    Input,
    Items,
    Kind,
    Op,
    Result,
    Storage,
    StorageId,
    View,
)
from tightrope.core.values import EMPTY, Part
from tightrope.lower import with_writes

_WEIGHT_AT = {
    "micro.conv2d": 1,
    "micro.conv2d_input": 1,
    "micro.conv2d_weight_adamw": 2,
    "micro.conv2d_weight_sgd": 2,
    "micro.linear": 1,
    "micro.linear_input": 1,
    "micro.linear_weight_adamw": 2,
    "micro.linear_weight_sgd": 2,
}
"""Op -> which argument is the weight."""


@dataclass(frozen=True)
class TiledGraph:
    """A graph whose weights are cut.

    Attributes:
        graph: to plan.
        origin: storage of the caller -> of which storage of the whole graph it is a part, and its first byte.
        whole: the graph without tiles.
        counts: weight of the whole graph -> number of tiles, where it is more than one.
    """

    graph: Graph
    origin: Mapping[StorageId, tuple[StorageId, Bytes]]
    whole: Graph
    counts: Mapping[StorageId, int]

    def finer(self, witness: int, over: Bytes = 0) -> Mapping[StorageId, int] | None:
        """More tiles of the largest weight that an op reads; None where none can be cut further.

        Args:
            witness: the op.
            over: bytes by which it needs too much: tiles are halved until that is saved, or they are rows.
        """
        rows = rows_of(self.whole)
        op = self.graph.ops[witness]
        reads = [s for s in op.reads if s in self.origin]
        can = {self.origin[s][0] for s in reads}
        can = {s for s in can if s in rows and 2 * self.counts.get(s, 1) <= rows[s]}
        if not can:
            return None
        chosen = max(can, key=lambda s: (self.whole.storages[s].bytes // self.counts.get(s, 1), s))
        found = {**self.counts, chosen: 2 * self.counts.get(chosen, 1)}
        while 2 * found[chosen] <= rows[chosen] and self.saved(witness, found) < over:
            found[chosen] *= 2
        return found

    def saved(self, witness: int, counts: Mapping[StorageId, int]) -> Bytes:
        """Bytes by which the reads of an op are fewer with other numbers of tiles."""
        found = 0
        for storage in self.graph.ops[witness].reads:
            for weight, count in counts.items():
                if storage in self.origin and self._cut_with(storage, weight):
                    size, before = self.graph.storages[storage].bytes, self.counts.get(weight, 1)
                    found += size - size * before // count
        return found

    def _cut_with(self, storage: StorageId, weight: StorageId) -> bool:
        """Whether a storage is a tile of a weight, or of its state."""
        name, of = self.whole.storages[self.origin[storage][0]].module, self.whole.storages[weight].module
        return name == of or name.startswith(f"{of}.")


def rows_of(graph: Graph) -> dict[StorageId, int]:
    """Weights that can be cut, and how many rows each has."""
    found: dict[StorageId, int] = {}
    never: set[StorageId] = set()
    given = {one.view.base: one.view.shape for one in graph.parts[0].inputs if one.view is not None}
    for op in graph.ops:
        at = _WEIGHT_AT.get(op.target.removesuffix(".into"))
        weight = op.arguments[at] if at is not None else None
        whole = isinstance(weight, View) and _groups(op) == 1
        for storage in op.reads:
            if graph.storages[storage].kind != Kind.PARAMETER:
                continue
            if whole and isinstance(weight, View) and storage == weight.base:
                found[storage] = given[storage][0]
            else:
                never.add(storage)
    return {storage: rows for storage, rows in found.items() if storage not in never}


def _range(view: View) -> tuple[int, int]:
    """The first of the rows that a view looks at, and the one behind the last."""
    first = view.offset // view.strides[0] if view.strides else 0
    return first, first + view.shape[0]


def _groups(op: Op) -> int:
    if "conv2d" not in op.target:
        return 1
    numbers = [value for value in op.arguments if isinstance(value, int) and not isinstance(value, bool)]
    return numbers[0] if numbers else 1


def tile(graph: Graph, counts: Mapping[StorageId, int]) -> TiledGraph:
    """Cut weights into tiles.

    Args:
        graph: of ops of the C library.
        counts: weight -> number of tiles; a weight that is not named stays whole.
    """
    writer = _TileWriter(graph, counts)
    for op in graph.ops:
        writer.take(op)
    part = graph.parts[0]
    outputs = tuple(writer.view(value) for value in part.outputs if isinstance(value, View))
    parts = (Part(len(writer.ops), tuple(writer.inputs), outputs),)
    made = replace(graph, ops=tuple(writer.ops), storages=tuple(writer.storages), parts=parts)
    return TiledGraph(with_writes(made), writer.origin, graph, dict(counts))


@dataclass
class _TileWriter:
    """The new graph while it is written.

    Attributes:
        known: storage of the whole graph -> its new ones, one per tile.
        cuts: storage that is cut -> first row of each tile, and the number of rows behind them.
    """

    graph: Graph
    counts: Mapping[StorageId, int]
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    known: dict[StorageId, list[StorageId]] = field(default_factory=dict)
    origin: dict[StorageId, tuple[StorageId, Bytes]] = field(default_factory=dict)
    cuts: dict[StorageId, tuple[int, ...]] = field(default_factory=dict)
    given: dict[StorageId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = rows_of(self.graph)
        for storage, count in self.counts.items():
            self.cuts[storage] = tuple(rows[storage] * k // count for k in range(count + 1))
        for op in self.graph.ops:
            at = _WEIGHT_AT.get(op.target.removesuffix(".into"))
            weight = op.arguments[at] if at is not None else None
            if isinstance(weight, View) and weight.base in self.cuts and op.mutates:
                for other in op.mutates:
                    if self.graph.storages[other].home:
                        self.cuts.setdefault(other, self.cuts[weight.base])
        shapes = {g.view.base: g.view for g in self.graph.parts[0].inputs if g.view is not None}
        for one in self.graph.storages:
            self._copy(one, shapes.get(one.id))

    def _copy(self, storage: Storage, view: View | None) -> None:
        cuts = self.cuts.get(storage.id, (0, 1))
        pieces: list[StorageId] = []
        for first, end in pairwise(cuts):
            number = len(self.storages)
            size, at, label = storage.bytes, 0, storage.label
            if storage.id in self.cuts and view is not None:
                size, at = storage.bytes * (end - first) // cuts[-1], storage.bytes * first // cuts[-1]
                label = f"{storage.label} rows {first} to {end - 1}"
            self.storages.append(replace(storage, id=number, bytes=size, label=label))
            pieces.append(number)
            if view is not None:
                self.origin[number] = storage.id, at
                shape = (end - first, *view.shape[1:]) if storage.id in self.cuts else view.shape
                self.given[number] = len(self.inputs)
                name = f"{storage.module or 'input'}_{len(self.inputs)}"
                strides = view.strides
                self.inputs.append(
                    Input(name, View(number, view.dtype, shape, strides, input=len(self.inputs)))
                )
        self.known[storage.id] = pieces

    def view(self, view: View, tile: int = 0) -> View:
        """The same look into the new graph; into one tile where the storage is cut."""
        if view.base == EMPTY:
            return view
        number = self.known[view.base][tile if view.base in self.cuts else 0]
        shape = view.shape
        offset = view.offset
        if view.base in self.cuts:
            cuts, (first, end) = self.cuts[view.base], _range(view)
            low, high = max(first, cuts[tile]), min(end, cuts[tile + 1])
            shape, offset = (high - low, *shape[1:]), (low - cuts[tile]) * view.strides[0]
        return View(number, view.dtype, shape, view.strides, offset, view.bits, self.given.get(number, -1))

    def take(self, op: Op) -> None:
        """Write an op: once, or once per tile of its weight."""
        at = _WEIGHT_AT.get(op.target.removesuffix(".into"))
        weight = op.arguments[at] if at is not None else None
        if not isinstance(weight, View) or weight.base not in self.cuts:
            arguments = tuple(self._argument(value, 0) for value in op.arguments)
            named = tuple((name, self._argument(value, 0)) for name, value in op.keywords)
            into = next((value for _, value in named if isinstance(value, View)), None)
            self._put(op, op.target, arguments, named, op.results, into=into)
            return
        cuts, (begin, end) = self.cuts[weight.base], _range(weight)
        made = next((value for _, value in op.keywords if isinstance(value, View)), None)
        for tile, first in enumerate(cuts[:-1]):
            if not max(first, begin) < min(cuts[tile + 1], end):
                continue
            arguments = tuple(self._argument(value, tile) for value in op.arguments)
            keywords: tuple[tuple[str, Argument], ...] = (
                ("first", max(first, begin) - begin), ("rows", end - begin),
                *((k, v) for k, v in op.keywords if k not in ("first", "rows", "out")),
            )  # fmt: skip
            whole = made if made is not None else op.results[0].view if op.results else None
            if whole is not None and (made is not None or first > begin):
                out = self.view(whole)
                target = f"{op.target.removesuffix('.into')}.into"
                self._put(op, target, arguments, (*keywords, ("out", out)), (), into=out)
            else:
                self._put(op, op.target, arguments, keywords, op.results)

    def _argument(self, value: Argument, tile: int) -> Argument:
        if isinstance(value, View):
            return self.view(value, tile)
        assert not isinstance(value, Items) or not any(isinstance(item, View) for item in value.items)
        return value

    def _put(
        self,
        op: Op,
        target: str,
        arguments: tuple[Argument, ...],
        keywords: tuple[tuple[str, Argument], ...],
        results: tuple[Result, ...],
        *,
        into: View | None = None,
    ) -> None:
        found = tuple(Result(result.position, self.view(result.view)) for result in results)
        looks = {v.base: v for v in (*arguments, into) if isinstance(v, View) and v.base != EMPTY}
        old = set(op.mutates)
        changed = [s for s in looks if s in self.origin and self.origin[s][0] in old]
        changed += [into.base] if into is not None else []
        self.ops.append(
            replace(
                op, id=len(self.ops), name=f"{op.name}_{len(self.ops)}", target=target,
                reads=tuple(sorted(looks)), creates=tuple(result.view.base for result in found),
                mutates=tuple(sorted(changed)),
                flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE if changed else Flag.NONE,
                arguments=arguments, keywords=keywords, results=found, over=-1,
            )
        )  # fmt: skip
