"""Cut maps into groups of channels, so that no op of a step needs a whole map in RAM at once.

Idea        Every large map becomes several storages, one per group of channels, each with pages of its own.
            What works channel by channel (batch norm and its gradients, ReLU, sums) becomes one op per group,
            with the part of a vector of channels that it needs. A convolution becomes one op per pair of
            groups: each group of inputs adds its products to each group of outputs, in the order of channels.
Source      Tiling below one tensor, as POET (ICML 2022) lacks it
Guarantee   Every element is the same sum in the same order as of whole maps: results are equal to the bit.
            Every row of a weight is updated after the last op that reads its old value.
Complexity  Linear in ops; a convolution becomes as many as there are pairs of groups.
Gaps        One image per step, no pools and no convolutions in groups. What the caller holds stays whole:
            an op reads a part of it where it lies. `judge.cuts` checks what is written here.

    channels ^  x0 --+--> y0      conv2d(x0) makes y0 and y1, conv2d(x1) adds to y0 and y1
             |  x1 --+--> y1
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final, TypeAlias

from msgspec.structs import replace

from tightrope.core import Argument, Flag, Graph, Op, Result, Storage, StorageId, View
from tightrope.core.values import EMPTY
from tightrope_micro.renumber import renumbered
from tightrope_micro.translator import contiguous, is_dense

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


class _NoFormError(Exception):
    """An op that touches a map has no form for groups of channels."""


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
        if 2 * pieces <= _MOST and channels % (2 * pieces) == 0:
            here = (1, channels // pieces, *size)
            found.update([shape] if any(view.shape == here for view in looks) else [])
    for shape in sorted(found, key=_elements, reverse=True):
        finer = {**counts, shape: 2 * counts.get(shape, 1)}
        if _written(graph, finer) is not None:
            return finer
    return None


def _elements(shape: tuple[int, ...]) -> int:
    return prod(shape)


def _shapes(graph: Graph) -> set[MapShape]:
    """Shapes of maps that ops make."""
    found = (shape_of(result.view) for op in graph.ops for result in op.results)
    return {shape for shape in found if shape is not None}


def _maps(graph: Graph, shapes: Iterable[MapShape]) -> dict[StorageId, View]:
    """Storages that hold a map of one of some shapes, and how they look."""
    wanted = set(shapes)
    views = {result.view.base: result.view for op in graph.ops for result in op.results}
    return {storage: view for storage, view in views.items() if shape_of(view) in wanted}


def with_maps_cut(graph: Graph, counts: Mapping[MapShape, int]) -> Graph:
    """Write a step with maps in groups of channels.

    Args:
        graph: of a captured step, not cut into tiles.
        counts: number of groups by shape of the map, of shapes that `finer_maps` named.
    """
    found = _written(graph, counts)
    assert found is not None
    return found


def _written(graph: Graph, counts: Mapping[MapShape, int]) -> Graph | None:
    """Write it; None where an op that touches a map has no form for groups."""
    try:
        writer = _MapWriter(graph, counts)
        for op in graph.ops:
            writer.take(op)
    except _NoFormError:
        return None
    return writer.graph_written()


@dataclass
class _MapWriter:
    """The new graph while it is written.

    Attributes:
        pieces: storage that is cut -> its looks, one per group.
        whole: storage that is cut -> its shape.
    """

    graph: Graph
    counts: Mapping[MapShape, int]
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    pieces: dict[StorageId, list[View]] = field(default_factory=dict)
    whole: dict[StorageId, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = list(self.graph.storages)
        for storage, view in _maps(self.graph, self.counts).items():
            shape = shape_of(view)
            assert shape is not None
            count = self.counts[shape]
            whole_bytes = _elements(shape) % (count * _BITS) == 0  # of signs
            if self.graph.storages[storage].resident_at_end or not whole_bytes:
                raise _NoFormError
            part = (1, shape[0] // count, *shape[1:])
            self.whole[storage] = view.shape
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
        touches = bool(self.pieces.keys() & {*op.reads, *op.creates})
        if name in _ALIKE and (touches or self._callers_map(op)):
            self._alike(op, _ALIKE[name])
        elif not touches:
            self._put(op, op.target, op.arguments, op.keywords, op.results)
        elif name in _CONVOLUTIONS:
            self._convolution(op, name)
        else:
            raise _NoFormError

    def _callers_map(self, op: Op) -> bool:
        """Whether an op reads first a map of the caller of a shape that is cut: its norms are too, then."""
        first = op.arguments[0]
        return isinstance(first, View) and shape_of(first) in self.counts and self._is_callers(first)

    def _is_callers(self, view: View) -> bool:
        return view.base != EMPTY and self.graph.storages[view.base].external

    def _alike(self, op: Op, kinds: str) -> None:
        """An op that works channel by channel: once per group."""
        values = [(v, kinds[k] if k < len(kinds) else _state(op, v)) for k, v in enumerate(op.arguments)]
        count = self._count(op, values)
        for result in op.results:
            view = result.view
            if view.base not in self.pieces:  # two rows of channels, or signs
                *rows, last = view.shape
                if self.graph.storages[view.base].resident_at_end or last % count or len(rows) > 1:
                    raise _NoFormError
                part = (*rows, last // count)
                self.whole[view.base] = view.shape
                self.pieces[view.base] = [
                    self._piece(view.base, part, k, count, view.dtype) for k in range(count)
                ]
        for k in range(count):
            arguments = tuple(self._part(value, kind, k, count) for value, kind in values)
            results = tuple(Result(r.position, self.pieces[r.view.base][k]) for r in op.results)
            self._put(op, op.target, arguments, op.keywords, results)

    def _count(self, op: Op, values: Iterable[tuple[Argument, str]]) -> int:
        """Number of groups of every map that an op touches, which has to be one."""
        shapes, found = set[tuple[int, ...]](), set[int]()
        looks = [(r.view, "m") for r in op.results]
        looks += [(v, kind) for v, kind in values if isinstance(v, View) and v.base != EMPTY]
        for view, kind in looks:
            if kind in "mr" and view.base in self.pieces:
                found.add(len(self.pieces[view.base]))
            elif kind == "m" and shape_of(view) in self.counts and self._is_callers(view):
                found.add(self.counts[view.shape[1], view.shape[2], view.shape[3]])
            if kind == "m" and len(view.shape) == 4:
                shapes.add(view.shape)
        if op.keywords or len(found) != 1 or len(shapes) > 1:
            raise _NoFormError
        return found.pop()

    def _part(self, value: Argument, kind: str, k: int, count: int) -> Argument:
        """One group's part of an argument: a piece, or as many of the elements that the caller holds."""
        if not isinstance(value, View) or value.base == EMPTY or kind == "-":
            return value
        if value.base in self.pieces:
            piece, whole = self.pieces[value.base][k], self.whole[value.base]
            if (
                len(whole) == 2 and value.shape == whole[1:] and value.offset % whole[1] == 0
            ):  # one of two rows
                row = value.offset // whole[1]
                return replace(piece, shape=piece.shape[1:], strides=(1,), offset=row * piece.shape[1])
            if value.shape != whole or value.offset:
                raise _NoFormError
            return piece
        elements = _elements(value.shape)
        if not self._is_callers(value) or kind == "r" or not is_dense(value) or elements % count:
            raise _NoFormError
        part = elements // count
        shape = (1, value.shape[1] // count, *value.shape[2:]) if kind == "m" else (part,)
        at = value.offset + k * part
        return replace(value, shape=shape, strides=contiguous(shape), offset=at)

    def _convolution(self, op: Op, name: str) -> None:
        """A convolution: once per pair of groups, those of what is read outside, of what is made inside."""
        into, out, at = _CONVOLUTIONS[name]
        weight = op.arguments[at]
        numbers = [v for v in op.arguments[at:] if isinstance(v, int) and not isinstance(v, bool)]
        others = [v for k, v in enumerate(op.arguments) if isinstance(v, View) and k not in (into, out)]
        cut = any(one.base in self.pieces for one in others)
        if not isinstance(weight, View) or op.keywords or numbers[0] != 1 or cut:
            raise _NoFormError
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
        if value.base in self.pieces and (value.shape != self.whole[value.base] or value.offset):
            raise _NoFormError
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
        """Leave out maps that are no more."""
        return renumbered(self.graph, self.ops, self.storages)


def _state(op: Op, value: Argument) -> str:
    """Tell what an op changes, a weight or its state, from other arguments."""
    return "v" if isinstance(value, View) and value.base in op.mutates else "-"


def _rows(view: View, first: int, count: int) -> View:
    """Some of a tensor's rows."""
    return replace(view, shape=(count, *view.shape[1:]), offset=view.offset + first * view.strides[0])
