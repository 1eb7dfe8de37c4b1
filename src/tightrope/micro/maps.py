"""Cut maps into groups of channels, so that no op of a step needs a whole map in RAM at once.

Idea        Every large map becomes several storages, one per group of channels, each with pages of its own.
            What works channel by channel (batch norm and its gradients, ReLU, sums) becomes one op per group,
            with the part of a vector of channels that it needs. A convolution becomes one op per pair of
            groups: each group of inputs adds its products to each group of outputs, in the order of channels.
Source      Tiling below one tensor, as POET (ICML 2022) lacks it
Guarantee   Every element is the same sum in the same order as of whole maps: results are equal to the bit.
            Every row of a weight is updated after the last op that reads its old value.
Complexity  Linear in ops; a convolution becomes as many as there are pairs of groups.
Gaps        One image per step, no pools and no convolutions in groups.

    channels ^  x0 --+--> y0      conv2d(x0) makes y0 and y1, conv2d(x1) adds to y0 and y1
             |  x1 --+--> y1
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from tightrope.core import Argument, Flag, Graph, Op, Result, Storage, StorageId, View
from tightrope.core.values import EMPTY, Part
from tightrope.lower import with_writes
from tightrope.micro.translator import contiguous, is_dense

MapShape: TypeAlias = tuple[int, int, int]
"""Channels, height and width."""
_BITS: Final = 8
_MOST: Final = 4
"""Groups of one map; a convolution between two maps becomes as many ops as there are pairs."""
_ALIKE: Final[Mapping[str, str]] = {
    "add": "mm",
    "batch_norm": "mrvv",
    "batch_norm_input": "mmrrv",
    "batch_norm_running": "rvv",
    "batch_norm_stats": "m",
    "batch_norm_sums": "mmr",
    "channel_sum_sgd": "mvv",
    "channel_sum_adamw": "mvv",
    "relu": "m",
    "relu_backward": "mm",
    "signs": "m",
    "signs_backward": "mm",
    "vector_sgd": "rvv",
    "vector_adamw": "rvv",
}
"""Op that works channel by channel -> its arguments: a map or its signs, a vector, or rows of channels."""
_CONVOLUTIONS: Final = {
    "conv2d": (0, None, 1),
    "conv2d_input": (None, 0, 1),
    "conv2d_weight_sgd": (1, 0, 2),
    "conv2d_weight_adamw": (1, 0, 2),
}
"""Op -> which argument is the input, the output or its gradient, the weight; None: it is made."""


def shape_of(view: View) -> MapShape | None:
    """Channels, height and width of a whole map of one image; None of anything else."""
    if len(view.shape) != 4 or view.shape[0] != 1 or view.offset or not is_dense(view):
        return None
    return view.shape[1], view.shape[2], view.shape[3]


def finer_maps(graph: Graph, witness: Op, counts: Mapping[MapShape, int]) -> Mapping[MapShape, int] | None:
    """Twice as many groups of the largest maps that an op looks at; None where none can be cut further.

    Args:
        graph: of the step, of whole maps.
        witness: an op of the graph with maps in ``counts`` groups.
        counts: groups per shape.
    """
    looks = [v for v in (*witness.arguments, *(r.view for r in witness.results)) if isinstance(v, View)]
    found = set()
    for shape in _shapes(graph):
        channels, *size = shape
        pieces = counts.get(shape, 1)
        whole_bytes = _elements(shape) % (2 * pieces * _BITS) == 0  # of signs
        if 2 * pieces <= _MOST and channels % (2 * pieces) == 0 and whole_bytes:
            here = (1, channels // pieces, *size)
            found.update([shape] if any(view.shape == here for view in looks) else [])
    able = [shape for shape in sorted(found, key=_elements) if _can_be_cut(graph, shape)]
    return {**counts, able[-1]: 2 * counts.get(able[-1], 1)} if able else None


def _elements(shape: MapShape) -> int:
    return shape[0] * shape[1] * shape[2]


def _shapes(graph: Graph) -> set[MapShape]:
    """Shapes of maps that ops make."""
    found = (shape_of(result.view) for op in graph.ops for result in op.results)
    return {shape for shape in found if shape is not None}


def _maps(graph: Graph, shapes: Iterable[MapShape]) -> dict[StorageId, View]:
    """Storages that hold a map of one of some shapes, and how they look."""
    wanted = set(shapes)
    views = {result.view.base: result.view for op in graph.ops for result in op.results}
    return {storage: view for storage, view in views.items() if shape_of(view) in wanted}


def _can_be_cut(graph: Graph, shape: MapShape) -> bool:
    """Whether every op that touches a map of a shape has a form for groups of channels."""
    maps = _maps(graph, [shape])
    if any(graph.storages[storage].resident_at_end for storage in maps):
        return False
    return all(_has_form(op, maps) for op in graph.ops if maps.keys() & {*op.reads, *op.creates})


def _has_form(op: Op, maps: Mapping[StorageId, View]) -> bool:
    name = op.target.removeprefix("micro.")
    looks = [v for v in (*op.arguments, *(r.view for r in op.results)) if isinstance(v, View)]
    if op.keywords or any(v.base in maps and shape_of(v) is None for v in looks):
        return False
    if name in _CONVOLUTIONS:
        at = _CONVOLUTIONS[name][2]
        weight = op.arguments[at]
        groups = next(v for v in op.arguments[at:] if isinstance(v, int) and not isinstance(v, bool))
        return isinstance(weight, View) and groups == 1
    return name in _ALIKE


def with_maps_cut(graph: Graph, counts: Mapping[MapShape, int]) -> Graph:
    """Write a step with maps in groups of channels.

    Args:
        graph: of a captured step, not cut into tiles.
        counts: number of groups by shape of the map, of shapes that `finer_maps` named.
    """
    writer = _MapWriter(graph, counts)
    for op in graph.ops:
        writer.take(op)
    return writer.graph_written()


@dataclass
class _MapWriter:
    """The new graph while it is written.

    Attributes:
        pieces: storage that is cut -> its looks, one per group.
    """

    graph: Graph
    counts: Mapping[MapShape, int]
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    pieces: dict[StorageId, list[View]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = list(self.graph.storages)
        for storage, view in _maps(self.graph, self.counts).items():
            shape = shape_of(view)
            assert shape is not None
            count = self.counts[shape]
            part = (1, shape[0] // count, *shape[1:])
            self.pieces[storage] = [self._piece(storage, part, k, count) for k in range(count)]

    def _piece(
        self, old: StorageId, shape: tuple[int, ...], k: int, count: int, dtype: str = "float32"
    ) -> View:
        one, number = self.graph.storages[old], len(self.storages)
        label = f"{one.label} group {k} of {count}"
        self.storages.append(replace(one, id=number, bytes=one.bytes // count, label=label))
        return View(number, dtype, shape, contiguous(shape))

    def take(self, op: Op) -> None:
        """Write an op: once, per group, or per pair of groups."""
        name = op.target.removeprefix("micro.")
        if not self.pieces.keys() & {*op.reads, *op.creates}:
            self._put(op, op.target, op.arguments, op.keywords, op.results)
        elif name in _CONVOLUTIONS:
            self._convolution(op, name)
        else:
            self._alike(op, _ALIKE[name])

    def _alike(self, op: Op, kinds: str) -> None:
        """An op that works channel by channel: once per group."""
        first = op.arguments[0]
        assert isinstance(first, View)
        count = len(self.pieces[first.base])
        for result in op.results:
            if result.view.base not in self.pieces:  # two rows of channels, or signs
                *rows, last = result.view.shape
                self.pieces[result.view.base] = [
                    self._piece(result.view.base, (*rows, last // count), k, count, result.view.dtype)
                    for k in range(count)
                ]
        for k in range(count):
            arguments = tuple(
                self._part(value, kinds[at] if at < len(kinds) else _state(op, value), k, count)
                for at, value in enumerate(op.arguments)
            )
            results = tuple(Result(r.position, self.pieces[r.view.base][k]) for r in op.results)
            self._put(op, op.target, arguments, op.keywords, results)

    def _part(self, value: Argument, kind: str, k: int, count: int) -> Argument:
        if not isinstance(value, View) or value.base == EMPTY or kind == "-":
            return value
        if value.base in self.pieces:
            piece = self.pieces[value.base][k]
            if len(piece.shape) == 2 and len(value.shape) == 1:  # one of two rows
                row = value.offset // value.shape[0]
                return replace(piece, shape=piece.shape[1:], strides=(1,), offset=row * piece.shape[1])
            return piece
        channels = value.shape[0] // count
        return _rows(value, k * channels, channels)

    def _convolution(self, op: Op, name: str) -> None:
        """A convolution: once per pair of groups, those of what is read outside, of what is made inside."""
        into, out, at = _CONVOLUTIONS[name]
        weight = op.arguments[at]
        assert isinstance(weight, View)
        made = op.results[0].view if op.results else None
        inputs = self._groups(made if into is None else op.arguments[into])
        outputs = self._groups(made if out is None else op.arguments[out])
        pairs = [(x, y) for x in inputs for y in outputs]
        if name != "conv2d":
            pairs = [(x, y) for y in outputs for x in inputs]
        there: set[StorageId] = set()
        for (x, skip), (y, first) in pairs:
            rows = y.shape[1]
            arguments = list(op.arguments)
            for position, value in enumerate(arguments):
                is_row = position == at or _state(op, value) == "v" or (name == "conv2d" and position == 2)
                if isinstance(value, View) and value.base != EMPTY and is_row:
                    arguments[position] = _rows(value, first, rows)
            for argument, piece in ((into, x), (out, y)):
                if argument is not None:
                    arguments[argument] = piece
            keywords: tuple[tuple[str, Argument], ...] = (
                ("first", 0), ("rows", rows), ("channel", skip), ("channels", weight.shape[1]),
            )  # fmt: skip
            target = x if name == "conv2d_input" else y
            if made is None:
                self._put(op, op.target, tuple(arguments), keywords, ())
            elif target.base in there:
                if name == "conv2d":
                    arguments[2] = None
                keywords = (*keywords, ("added", 1), ("out", target))
                self._put(op, f"{op.target}.into", tuple(arguments), keywords, ())
            else:
                there.add(target.base)
                self._put(op, op.target, tuple(arguments), keywords, (Result(-1, target),))

    def _groups(self, value: Argument) -> list[tuple[View, int]]:
        """Groups of a map, and the first channel of each."""
        assert isinstance(value, View)
        found, first = [], 0
        for piece in self.pieces.get(value.base, [value]):
            found.append((piece, first))
            first += piece.shape[1]
        return found

    def _put(
        self,
        op: Op,
        target: str,
        arguments: tuple[Argument, ...],
        keywords: tuple[tuple[str, Argument], ...],
        results: tuple[Result, ...],
    ) -> None:
        looks = {v.base for v in arguments if isinstance(v, View) and v.base != EMPTY}
        into = {v.base for _, v in keywords if isinstance(v, View)}
        changed = tuple(sorted({*op.mutates} & looks | into))
        self.ops.append(
            replace(
                op, id=len(self.ops), name=f"{op.name}_{len(self.ops)}", target=target,
                reads=tuple(sorted(looks | into)), creates=tuple(r.view.base for r in results),
                mutates=changed, flags=Flag.IN_PLACE | Flag.NEVER_RECOMPUTE if changed else Flag.NONE,
                arguments=arguments, keywords=keywords, results=results, over=-1,
            )
        )  # fmt: skip

    def graph_written(self) -> Graph:
        """Leave out maps that are no more, and number what is left again."""
        number: dict[StorageId, StorageId] = {}
        kept: list[Storage] = []
        for storage in self.storages:
            if storage.id not in self.pieces:
                number[storage.id] = len(kept)
                kept.append(replace(storage, id=len(kept)))

        def moved(value: Argument) -> Argument:
            if not isinstance(value, View) or value.base == EMPTY:
                return value
            return replace(value, base=number[value.base])

        def all_of(storages: tuple[StorageId, ...]) -> tuple[StorageId, ...]:
            return tuple(sorted(number[storage] for storage in storages))

        ops = [
            replace(
                op, reads=all_of(op.reads), mutates=all_of(op.mutates),
                creates=tuple(number[storage] for storage in op.creates),
                arguments=tuple(map(moved, op.arguments)),
                keywords=tuple((name, moved(value)) for name, value in op.keywords),
                results=tuple(replace(r, view=replace(r.view, base=number[r.view.base])) for r in op.results),
            )
            for op in self.ops
        ]  # fmt: skip
        part = self.graph.parts[0]
        inputs = tuple(
            replace(one, view=replace(one.view, base=number[one.view.base])) if one.view else one
            for one in part.inputs
        )
        parts = (Part(len(ops), inputs, tuple(map(moved, part.outputs))),)
        return with_writes(replace(self.graph, ops=tuple(ops), storages=tuple(kept), parts=parts))


def _state(op: Op, value: Argument) -> str:
    """Tell what an op changes, a weight or its state, from other arguments."""
    return "v" if isinstance(value, View) and value.base in op.mutates else "-"


def _rows(view: View, first: int, count: int) -> View:
    """Some of a tensor's rows."""
    return replace(view, shape=(count, *view.shape[1:]), offset=view.offset + first * view.strides[0])
