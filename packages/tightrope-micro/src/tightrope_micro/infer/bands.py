"""Patch order: the first layers of a net row band by row band, so that no whole map of theirs is ever there.

Idea        Take the first ops up to one map that alone is read behind them. For every band of its rows, find
            the rows that each map before it needs (a window's halo more, from behind to front), and compute
            those alone. Rows that two bands need are computed twice. The band is put into its place.
Source      MCUNetV2 (NeurIPS 2021), patch-based inference; Alwani et al. (MICRO 2016), fused layers
Guarantee   Every element is computed by the same kernel from the same numbers in the same order: results have
            the same bits. Where no ops can be cut, there is no form.
Complexity  Linear in ops and bands per form.
Gaps        Rows alone, not columns; the last map of the stretch and the input are whole.

    rows of the input    |=====|           a band of the result and what it needs:
    rows of a map         |===|            one row more at each end per window of three
    rows of the result     |=|
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from tightrope.core import Argument, Flag, Graph, Items, Op, OpId, Result, Storage, StorageId, View
from tightrope.core.values import EMPTY, ITEM_BYTES
from tightrope_micro.renumber import renumbered
from tightrope_micro.translator import contiguous, whole_numbers

_CONVOLUTIONS: Final = ("conv2d", "conv2d_add", "q_conv2d", "q_conv2d_add")
_POOLS: Final = ("max_pool2d_only", "q_max_pool2d")
_PLAIN: Final = (
    "add",
    "curve",
    "relu",
    "q_add",
    "q_gelu",
    "q_narrow",
    "q_relu_int16",
    "q_relu_int8",
    "q_table",
    "q_widen",
)
_NUM_BANDS: Final = (2, 4, 8, 16)


class MapRows(NamedTuple):
    """Rows of a map, half open."""

    first: int
    end: int

    def hull(self, other: "MapRows") -> "MapRows":
        """The smallest range that has both."""
        return MapRows(min(self.first, other.first), max(self.end, other.end))


@dataclass(frozen=True)
class BandedGraph:
    """A form of a graph.

    Attributes:
        graph: with the first ops in bands.
        last: op up to which they are cut.
        bands: number of bands.
    """

    graph: Graph
    last: OpId
    bands: int


def banded_forms(graph: Graph) -> Iterator[BandedGraph]:
    """Iterate over forms of a graph: every place to end a stretch of bands, and 2, 4, 8 and 16 bands.

    Args:
        graph: of inference.
    """
    for last in _ends(graph):
        rows = graph.ops[last].results[0].view.shape[2]
        for bands in _NUM_BANDS:
            if bands <= rows:
                yield BandedGraph(_BandWriter(graph, last, bands).written(), last, bands)


def _ends(graph: Graph) -> list[OpId]:
    """Ops of which the result alone of all before it is read behind them, where all of them can be cut."""
    found: list[OpId] = []
    made: set[StorageId] = set()
    kept = {view.base for view in graph.parts[0].outputs if isinstance(view, View)}
    for op in graph.ops:
        name = op.target.removeprefix("micro.")
        if name not in (*_CONVOLUTIONS, *_POOLS, *_PLAIN) or not _is_map(op):
            break
        made.update(op.creates)
        inputs = {s.id for s in graph.storages if s.external}
        behind = {s for other in graph.ops[op.id + 1 :] for s in other.reads} | kept
        if behind & (made | inputs) == set(op.creates) and op.id:
            found.append(op.id)
    return found


def _is_map(op: Op) -> bool:
    views = [v for v in op.arguments if isinstance(v, View) and v.base != EMPTY]
    return len(op.creates) == 1 and all(
        len(v.shape) == 4 and v.shape[0] == 1 for v in (*views, op.results[0].view)
    )


def _window(op: Op) -> tuple[int, int, int, int]:
    """Height, stride and padding of an op's window, and the position of the padding; 1, 1, 0 without one."""
    name = op.target.removeprefix("micro.")
    at = [k for k, value in enumerate(op.arguments) if isinstance(value, Items)]
    if name in _POOLS:
        kernel, stride, padding = (whole_numbers(op.arguments[k])[0] for k in at[:3])
        return kernel, stride, padding, at[2]
    if name in _CONVOLUTIONS:
        weight = next(v for v in op.arguments if isinstance(v, View) and v.base == EMPTY)
        stride, padding = (whole_numbers(op.arguments[k])[0] for k in at[:2])
        return weight.shape[2], stride, padding, at[1]
    return 1, 1, 0, -1


def _windowed(op: Op) -> int:
    """The storage that an op looks at through its window; -1 without one."""
    name = op.target.removeprefix("micro.")
    if name not in (*_CONVOLUTIONS, *_POOLS):
        return -1
    view = op.arguments[1 if name.endswith("_add") else 0]
    assert isinstance(view, View)
    return view.base


@dataclass
class _BandWriter:
    graph: Graph
    last: OpId
    num: int
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)

    def written(self) -> Graph:
        graph = self.graph
        self.storages = list(graph.storages)
        made = graph.ops[self.last].results[0].view
        height = made.shape[2]
        for band in range(self.num):
            self._band(MapRows(height * band // self.num, height * (band + 1) // self.num), made, band)
        for op in graph.ops[self.last + 1 :]:
            self.ops.append(replace(op, id=len(self.ops), name=f"{op.name}_{len(self.ops)}"))
        return renumbered(graph, self.ops, self.storages)

    def _needs(self, rows: MapRows) -> dict[StorageId, MapRows]:
        """Rows of every map that a band of the last one needs."""
        need = {self.graph.ops[self.last].creates[0]: rows}
        for op in reversed(self.graph.ops[: self.last + 1]):
            mine = need.get(op.creates[0])
            if mine is None:
                continue
            kernel, stride, padding, _ = _window(op)
            for view in {v.base: v for v in op.arguments if isinstance(v, View) and v.base != EMPTY}.values():
                wanted = mine
                if view.base == _windowed(op):
                    first, end = mine.first * stride - padding, (mine.end - 1) * stride - padding + kernel
                    wanted = MapRows(max(first, 0), min(end, view.shape[2]))
                if self.graph.storages[view.base].external:
                    wanted = MapRows(0, view.shape[2])
                need[view.base] = wanted.hull(need[view.base]) if view.base in need else wanted
        return need

    def _band(self, rows: MapRows, whole: View, band: int) -> None:
        need = self._needs(rows)
        here: dict[StorageId, View] = {}
        for op in self.graph.ops[: self.last + 1]:
            if op.creates[0] not in need:
                continue
            mine, (_, stride, padding, at) = need[op.creates[0]], _window(op)
            arguments: list[Argument] = list(op.arguments)
            for position, value in enumerate(arguments):
                if not isinstance(value, View) or value.base == EMPTY:
                    continue
                view = here.get(value.base, value)
                if value.base == _windowed(op):
                    arguments[at] = Items(
                        (
                            padding + need[value.base].first - mine.first * stride,
                            whole_numbers(op.arguments[at])[1],
                        )
                    )
                elif need[value.base] != mine:
                    view = self._part(op, view, need[value.base], mine)
                arguments[position] = view
            old = op.results[0].view
            here[op.creates[0]] = self._put(op, op.target, tuple(arguments), self._map(old, mine, op))
        found = here[whole.base]
        last = self.graph.ops[self.last]
        keywords: tuple[tuple[str, Argument], ...] = (("first", rows.first), ("rows", whole.shape[2]))
        if band:
            keywords = (*keywords, ("out", whole))
            self._append(last, "micro.put_rows.into", (found,), keywords, ())
        else:
            self._append(last, "micro.put_rows", (found,), keywords, (Result(-1, whole),))

    def _part(self, op: Op, view: View, has: MapRows, wants: MapRows) -> View:
        """Copy the rows of a map that are wanted of those that are there."""
        _, channels, height, width = view.shape
        shape = (1, channels, wants.end - wants.first, width)
        flat = View(view.base, view.dtype, (channels * height * width,), (1,), input=view.input)
        arguments = (
            flat, Items(shape), Items((channels * height * width, height * width, width, 1)),
            (wants.first - has.first) * width,
        )  # fmt: skip
        made = self._storage(view.dtype, shape, op)
        return self._put(op, "micro.gather", arguments, made)

    def _map(self, view: View, rows: MapRows, op: Op) -> View:
        shape = (1, view.shape[1], rows.end - rows.first, view.shape[3])
        return self._storage(view.dtype, shape, op)

    def _storage(self, dtype: str, shape: tuple[int, ...], op: Op) -> View:
        strides = contiguous(shape)
        number = len(self.storages)
        label = f"{dtype}[{'x'.join(map(str, shape))}]"
        self.storages.append(
            Storage(
                number, shape[0] * strides[0] * ITEM_BYTES[dtype], alignment=4, label=label, module=op.module
            )
        )
        return View(number, dtype, shape, strides)

    def _put(self, op: Op, target: str, arguments: tuple[Argument, ...], made: View) -> View:
        self._append(op, target, arguments, (), (Result(-1, made),))
        return made

    def _append(
        self,
        op: Op,
        target: str,
        arguments: tuple[Argument, ...],
        keywords: tuple[tuple[str, Argument], ...],
        results: tuple[Result, ...],
    ) -> None:
        values = [*arguments, *(value for _, value in keywords)]
        reads = {value.base for value in values if isinstance(value, View) and value.base != EMPTY}
        changed = tuple(value.base for _, value in keywords if isinstance(value, View))
        self.ops.append(
            replace(
                op, id=len(self.ops), name=f"{op.name}_{len(self.ops)}", target=target, arguments=arguments,
                keywords=keywords, results=results, reads=tuple(sorted(reads)), mutates=changed, over=-1,
                creates=tuple(result.view.base for result in results),
                flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE if changed else Flag.NONE,
            )
        )  # fmt: skip
