"""The graph of many equal layers from the graph of a few of them.

Idea        With a layer more, a graph has one more block of equal ops in its forward and one in its backward.
            Two stretches are found in which every op equals the one a period later, in what it does and, one
            layer on, in what it reads. Blocks go in at one place of each; whoever stands behind
            that place in the forward counts positions from the end, whoever stands before it from the start.
Source      the inverse of the cut in ``plan/layers.py``
Guarantee   Where the layers that were left out are as those that stand here, the result is the graph that
            the whole model gives, names of ops and inputs apart (`tests/capture/test_alike.py` compares
            them). Where layers make tensors of numbers, the order of inputs differs, and empty ones are not
            repeated. Where no layers are found to repeat, the result is None.
Complexity  Linear in ops, for each of a few periods.
Gaps        One forward and one backward, each with one stretch. What a layer holds for the caller may not be
            written in place.

    forward  | head | F0 F1 F2 | tail |      longer: | head | F0 F1 F1 F1 F2 | tail |
    backward | tail | B2 B1 B0 | head |              | tail | B2 B1 B1 B1 B0 | head |
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from tightrope.core import Graph, Input, Op, OpId, Part, Result, Storage, StorageId, View
from tightrope.core.values import Argument, Items, views

_MOST_PERIODS: Final = 12
_Key: TypeAlias = tuple[StorageId, int]
"""A storage of the short graph, and the number of its copy; 0 = itself."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Equal layers that were left out.

    Attributes:
        container: path of the module that holds the layers by number.
        count: how many are gone, from between two that stand.
    """

    container: str
    count: int

    def layer(self, module: str) -> int:
        """Read the number of the layer off the path of a module in it, -1 outside.

        >>> Gone("net.layers", 5).layer("net.layers.3.mlp")
        3
        """
        first = f"{self.container}." if self.container else ""
        number = module.removeprefix(first).partition(".")[0] if module.startswith(first) else ""
        return int(number) if number.isdecimal() else -1

    def moved(self, module: str, layers: int) -> str:
        """Name the same module so many layers later.

        >>> Gone("net.layers", 5).moved("net.layers.3.mlp", 2)
        'net.layers.5.mlp'
        """
        number = self.layer(module)
        if number < 0 or not layers:
            return module
        first = f"{self.container}." if self.container else ""
        return f"{first}{number + layers}{module[len(first) + len(str(number)) :]}"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Ops ``[start, end)`` of which each equals the one ``period`` later; blocks go in before ``start``."""

    start: OpId
    end: OpId
    period: int

    def located(self, position: int, count: int) -> tuple[OpId, int]:
        """Find the op, and the number of its copy, that stands at a position among ``count`` more blocks."""
        behind = position - self.start
        if behind < 0:
            return position, 0
        if behind < count * self.period:
            return self.start + behind % self.period, 1 + behind // self.period
        return position - count * self.period, 0


def lengthened(graph: Graph, gone: Gone) -> Graph | None:
    """Put the layers back that were left out of a model before its step was captured.

    Args:
        graph: with three or more equal layers on end, and with costs where they are known. ``Op.over`` is
            left out.
        gone: what was left out.

    Returns:
        None where no repeated layers are found.
    """
    wiring = _Wiring(graph)
    found = _found(graph, gone, wiring)
    if found is None or not _plain(graph, found):
        return None
    return _Longer(graph, gone, wiring, found).graph()


@dataclass(frozen=True, slots=True)
class _Repeats:
    """Where layers repeat.

    Attributes:
        forward: ops of the first part.
        backward: ops of the second part; its first block belongs to the last layer.
        own: storages that every layer has of its own.
    """

    forward: _Stretch
    backward: _Stretch
    own: frozenset[StorageId]


class _Wiring:
    """Which op makes each storage, or reads it first where it is the caller's, and by which of its looks.

    Attributes:
        bases: per op, what its arguments look into and what it makes, those of its variant behind.
        origin: per storage the op, -1 = nobody reads it.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bases = tuple(self._of(op) for op in graph.ops)
        self.origin = [-1] * len(graph.storages)
        for op, bases in zip(graph.ops, self.bases, strict=True):
            for storage in bases:
                if storage >= 0 and self.origin[storage] < 0:
                    self.origin[storage] = op.id

    def _of(self, op: Op) -> tuple[StorageId, ...]:
        again = (self.graph.op(op.variant),) if op.variant >= 0 else ()
        found: list[StorageId] = []
        for one in (op, *again):
            looks = [view.base for view in _looks(one)]
            found += [*(looks or one.reads), *one.creates]
        return tuple(found)

    def peer(self, storage: StorageId, op: OpId) -> StorageId:
        """Find what is to ``op`` as ``storage`` is to the op that it comes of."""
        return self.bases[op][self.bases[self.origin[storage]].index(storage)]

    def is_shifted(self, one: StorageId, other: StorageId, by: int) -> bool:
        """Tell whether two storages come of ops that stand so far apart, by the same look."""
        at, later = self.origin[one], self.origin[other]
        return later - at == by and self.bases[later].index(other) == self.bases[at].index(one)


def _looks(op: Op) -> Iterator[View]:
    for argument in (*op.arguments, *(value for _, value in op.keywords)):
        yield from views(argument)


def _found(graph: Graph, gone: Gone, wiring: _Wiring) -> _Repeats | None:
    """Find both stretches: on marks alone first, then without the ops that read something else."""
    if len(graph.parts) != 2:
        return None
    turn, marks = graph.parts[0].end, _marks(graph)
    layers = [gone.layer(op.module) for op in graph.ops]
    forward = _repeated(marks, layers, range(turn), 1)
    backward = _repeated(marks, layers, range(turn, len(marks)), -1)
    while forward is not None and backward is not None:
        compared = _Compared(graph, wiring, forward, backward)
        closer = _longest(compared.same, forward), _longest(compared.same, backward)
        if closer == (forward, backward):
            own = compared.own | {s.id for s in graph.storages if not s.external and compared.is_inside(s.id)}
            return None if own & compared.shared else _Repeats(forward, backward, frozenset(own))
        forward, backward = closer
    return None


def _marks(graph: Graph) -> list[object]:
    """What an op does, but for which storages it does it to."""

    def unbased(argument: Argument) -> Argument:
        if isinstance(argument, View):
            return replace(argument, base=min(argument.base, 0), input=-1)
        return Items(tuple(map(unbased, argument.items))) if isinstance(argument, Items) else argument

    def kind(storage: Storage) -> object:
        return storage.bytes, storage.kind, storage.resident_at_end, storage.outside, storage.external

    def mark(op: Op) -> tuple[object, ...]:
        looks = (*op.arguments, *(value for _, value in op.keywords), *(made.view for made in op.results))
        touched = [kind(graph.storages[view.base]) for view in _looks(op) if view.base >= 0]
        return (
            op.target, int(op.flags), op.phase, tuple(map(unbased, looks)),
            tuple(name for name, _ in op.keywords), tuple(made.position for made in op.results),
            len(op.mutates), tuple(touched),
            tuple(kind(graph.storages[storage]) for storage in op.creates),
        )  # fmt: skip

    known: dict[object, int] = {}
    twins = ((op, graph.op(op.variant) if op.variant >= 0 else None) for op in graph.ops)
    return [known.setdefault((mark(op), again and mark(again)), len(known)) for op, again in twins]


def _repeated(marks: Sequence[object], layers: Sequence[int], among: range, step: int) -> _Stretch | None:
    """Find the longest stretch in which every op equals that of the next layer, a period later."""
    latest: dict[object, int] = {}
    gaps: Counter[int] = Counter()
    for at in among:
        if marks[at] in latest:
            gaps[at - latest[marks[at]]] += 1
        latest[marks[at]] = at

    def is_next(at: int, period: int) -> bool:
        here, there = layers[at], layers[at + period]
        return marks[at] == marks[at + period] and (there == here + step if here >= 0 else there < 0)

    found: list[_Stretch] = []
    for period, _ in gaps.most_common(_MOST_PERIODS):
        same = {at: is_next(at, period) for at in range(among.start, among.stop - period)}
        longest = _longest(same, _Stretch(among.start, among.stop, period))
        found += [longest] if longest is not None else []
    return max(found, key=lambda one: one.end - one.start, default=None)


def _longest(same: Mapping[OpId, bool], within: _Stretch) -> _Stretch | None:
    """Find the longest part of a stretch whose ops all have an equal, two blocks at least."""
    best = start = within.start
    length = 0
    for at in range(within.start, within.end - within.period):
        if not same[at]:
            start = at + 1
        elif at + 1 - start > length:
            best, length = start, at + 1 - start
    return _Stretch(best, best + length + within.period, within.period) if length >= within.period else None


class _Compared:
    """Whether ops of two stretches read what their equals read, one layer on.

    Attributes:
        same: by op that has an equal.
        own: storages that differ from layer to layer.
        shared: storages that do not.
    """

    def __init__(self, graph: Graph, wiring: _Wiring, forward: _Stretch, backward: _Stretch) -> None:
        self._graph, self._wiring, self._stretches = graph, wiring, (forward, backward)
        self.own: set[StorageId] = set()
        self.shared: set[StorageId] = set()
        turn = graph.parts[0].end
        self.same: dict[OpId, bool] = {}
        for stretch in self._stretches:
            ahead = stretch.period if stretch is forward else -forward.period
            shifts = ahead, backward.period
            for at in range(stretch.start, stretch.end - stretch.period):
                self.same[at] = self._pair(at, at + stretch.period, turn, shifts)

    def is_inside(self, storage: StorageId) -> bool:
        """Tell whether a storage comes of an op in a stretch."""
        origin = self._wiring.origin[storage]
        return any(one.start <= origin < one.end for one in self._stretches)

    def _pair(self, at: OpId, later: OpId, turn: OpId, shifts: tuple[int, int]) -> bool:
        own, shared = set(), set()
        for one, other in zip(self._wiring.bases[at], self._wiring.bases[later], strict=True):
            if one == other:
                if one >= 0 and not self._graph.storages[one].external and self.is_inside(one):
                    return False
                shared.add(one)
            elif min(one, other) < 0 or not self._wiring.is_shifted(
                one, other, shifts[self._wiring.origin[one] >= turn]
            ):
                return False
            else:
                own |= {one, other}
        self.own |= own
        self.shared |= shared
        return True


class _Longer:
    """Writes the graph with all layers.

    Whoever reads something stands in a *frame*: positions of the forward lie so many layers later, and
    positions of the backward as many less than all, as the reader's layer is from where blocks went in.
    """

    def __init__(self, graph: Graph, gone: Gone, wiring: _Wiring, found: _Repeats) -> None:
        self.short, self.gone, self.wiring, self.found = graph, gone, wiring, found
        self.turn = graph.parts[0].end
        self.order = list(self._order())
        self.storages = self._storages()
        self.number = {key: number for number, key in enumerate(self.storages)}
        self.inputs = self._inputs()
        self.input = {key: number for number, key in enumerate(key for part in self.inputs for key in part)}

    def _frame(self, op: OpId) -> int:
        """Of an op that stands in the short graph."""
        late = self.found.forward.start <= op < self.found.backward.start
        return self.gone.count if late else 0

    def _order(self) -> Iterator[tuple[Op, int, int]]:
        """List ops in the new order, with the number of the copy and its frame."""
        count = self.gone.count
        for op in self.short.ops:
            for stretch in (self.found.forward, self.found.backward):
                for copy in range(1, count + 1) if op.id == stretch.start else ():
                    frame = copy - 1 if stretch is self.found.forward else count + 1 - copy
                    block = self.short.ops[stretch.start : stretch.start + stretch.period]
                    yield from ((one, copy, frame) for one in block)
            yield op, 0, self._frame(op.id)

    def _is_copied(self, storage: StorageId) -> bool:
        origin, stretch = self.wiring.origin[storage], self.found.forward
        if origin >= self.turn:
            stretch = self.found.backward
        return storage in self.found.own and stretch.start <= origin < stretch.start + stretch.period

    def _with_copies(self, storages: Sequence[StorageId | None]) -> Iterator[tuple[int, int]]:
        """List positions of the caller's storages; copies for one layer stand before those for the next."""
        copied = [
            at for at, storage in enumerate(storages) if storage is not None and self._is_copied(storage)
        ]
        for at in range(len(storages)):
            for copy in range(1, self.gone.count + 1) if copied and at == copied[0] else ():
                yield from ((one, copy) for one in copied)
            yield at, 0

    def _storages(self) -> list[_Key]:
        outer = [storage.id for storage in self.short.storages if storage.external]
        keys = [(outer[at], copy) for at, copy in self._with_copies(outer)]
        return keys + [(made, copy) for op, copy, _ in self.order for made in op.creates]

    def _inputs(self) -> list[list[tuple[int, int]]]:
        """List, per part, inputs as numbers of the short graph's and of the copy."""
        parts, before = [], 0
        for part in self.short.parts:
            bases = [None if given.view is None else given.view.base for given in part.inputs]
            parts.append([(before + at, copy) for at, copy in self._with_copies(bases)])
            before += len(bases)
        return parts

    def key(self, storage: StorageId, frame: int) -> _Key:
        """What stands for a storage of the short graph where somebody reads it."""
        if storage not in self.found.own:
            return storage, 0
        origin, forward, backward = self.wiring.origin[storage], self.found.forward, self.found.backward
        if origin < self.turn:
            op, copy = forward.located(origin + frame * forward.period, self.gone.count)
        else:
            later = (self.gone.count - frame) * backward.period
            op, copy = backward.located(origin + later, self.gone.count)
        return (storage if op == origin else self.wiring.peer(storage, op)), copy

    def _view(self, view: View, frame: int) -> View:
        if view.base < 0:
            return view
        storage, copy = self.key(view.base, frame)
        given = -1 if view.input < 0 else self.input[self._through(view, storage), copy]
        return replace(view, base=self.number[storage, copy], input=given)

    def _through(self, view: View, storage: StorageId) -> int:
        """Find the input of another layer's storage that stands for the one a view goes through."""
        given = [one.view for part in self.short.parts for one in part.inputs]
        if storage == view.base:
            return view.input
        mine, other = (
            [at for at, one in enumerate(given) if one is not None and one.base == base]
            for base in (view.base, storage)
        )
        return other[mine.index(view.input)]

    def _argument(self, argument: Argument, frame: int) -> Argument:
        if isinstance(argument, View):
            return self._view(argument, frame)
        if isinstance(argument, Items):
            return Items(tuple(self._argument(item, frame) for item in argument.items))
        return argument

    def _op(self, op: Op, copy: int, frame: int, identity: OpId, variant: OpId) -> Op:
        made = {storage: self.number[storage, copy] for storage in op.creates}
        looked = {storage: self.number[self.key(storage, frame)] for storage in op.reads}
        return replace(
            op,
            id=identity,
            name=f"{op.name}_layer_{copy}" if copy else op.name,
            module=self.gone.moved(op.module, frame),
            reads=tuple(sorted(looked.values())),
            creates=tuple(made[storage] for storage in op.creates),
            mutates=tuple(sorted(looked[storage] for storage in op.mutates)),
            allocations=tuple(
                replace(one, storage=made[one.storage]) if one.storage >= 0 else one for one in op.allocations
            ),
            arguments=tuple(self._argument(value, frame) for value in op.arguments),
            keywords=tuple((name, self._argument(value, frame)) for name, value in op.keywords),
            results=tuple(
                Result(one.position, replace(one.view, base=made[one.view.base])) for one in op.results
            ),
            variant=variant,
            over=-1,
        )

    def graph(self) -> Graph:
        """Write all of it."""
        ops: list[Op] = []
        again: list[Op] = []
        for op, copy, frame in self.order:
            variant = -1
            if op.variant >= 0:
                variant = len(self.order) + len(again)
                again.append(self._op(self.short.op(op.variant), copy, frame, variant, -1))
            ops.append(self._op(op, copy, frame, len(ops), variant))
        frames = {(op.id, copy): frame for op, copy, frame in self.order}
        storages = []
        for number, (storage, copy) in enumerate(self.storages):
            old, origin = self.short.storages[storage], self.wiring.origin[storage]
            frame = 0 if old.external else frames[origin, copy]
            storages.append(replace(old, id=number, module=self.gone.moved(old.module, frame)))
        return replace(
            self.short, ops=tuple(ops), storages=tuple(storages), variants=tuple(again), parts=self._parts()
        )

    def _parts(self) -> tuple[Part, ...]:
        given = [one for part in self.short.parts for one in part.inputs]
        ends = [number + 1 for number, (op, _, _) in enumerate(self.order) if op.id + 1 == self.turn]
        outputs = [
            tuple(self._argument(value, self._frame(self.turn - 1)) for value in self.short.parts[0].outputs),
            tuple(
                self._gradient(at, copy)
                for at, copy in self.inputs[0]
                if at < len(self.short.parts[1].outputs)
            ),
        ]
        inputs = [tuple(self._input(given[at], at, copy) for at, copy in part) for part in self.inputs]
        return (
            replace(self.short.parts[0], end=ends[-1], inputs=inputs[0], outputs=outputs[0]),
            replace(self.short.parts[1], end=len(self.order), inputs=inputs[1], outputs=outputs[1]),
        )

    def _input(self, given: Input, at: int, copy: int) -> Input:
        if given.view is None or given.view.base < 0:
            return given
        view = replace(given.view, base=self.number[given.view.base, copy])
        if view.input >= 0:
            view = replace(view, input=self.input[at, copy])
        return Input(f"{given.name}_layer_{copy}" if copy else given.name, view)

    def _gradient(self, at: int, copy: int) -> Argument:
        """What is returned for an input: it stands in the frame of its layer."""
        given = self.short.parts[0].inputs[at].view
        frame = 0
        if given is not None and given.base in self.found.own:
            origin, count = self.wiring.origin[given.base], self.gone.count
            if origin < self.turn:
                late = origin >= self.found.forward.start
                frame = copy - 1 if copy else count * late
            else:
                late = origin < self.found.backward.start
                frame = count + 1 - copy if copy else count * late
        return self._argument(self.short.parts[1].outputs[at], frame)


def _plain(graph: Graph, found: _Repeats) -> bool:
    """Tell whether no layer writes to what the caller holds or hands such a thing out."""
    outer = {storage.id for storage in graph.storages if storage.external} & found.own
    written = {storage for op in graph.ops for storage in op.mutates}
    handed = {view.base for value in graph.parts[0].outputs for view in views(value)}
    few = len(graph.parts[1].outputs) <= len(graph.parts[0].inputs)
    return few and outer.isdisjoint(written | handed)
