"""What is left of a call when its forward has run: a graph that begins from what is still there.

Idea        The storages that are live become inputs, like the caller's own. The ops of the backward
            follow, and before them every forward op whose result they need and that is gone: through
            its recompute variant where it has one. The result is a graph like any other, so it is
            planned, placed and judged like any other.
Guarantee   Every value is computed by the op, from the values, that the whole graph has for it.
Complexity  Linear in ops.
"""

from collections.abc import Mapping, Set

from msgspec.structs import replace

from tightrope.core import (
    Bytes,
    Flag,
    Graph,
    Input,
    Kind,
    Op,
    OpId,
    Part,
    Result,
    Storage,
    StorageId,
    TightropeError,
    View,
    round_up,
)
from tightrope.core.graph import RETURN
from tightrope.core.values import EMPTY, Argument, Items, views

_UNKNOWN = -2
_NEVER = Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE


def droppable(graph: Graph) -> frozenset[StorageId]:
    """List what the first part makes and does not hand over that may be made again after it."""
    return frozenset(s for s in _can_be_made(graph) if not graph.storages[s].resident_at_end)


def _can_be_made(graph: Graph) -> set[StorageId]:
    """List what the first part makes that may be made again after it: nothing behind it has changed."""
    end = graph.boundaries[0]
    changed: dict[StorageId, OpId] = {}
    for op in graph.ops[:end]:
        for storage in op.mutates:
            changed[storage] = op.id
    found: set[StorageId] = set()
    for op in graph.ops[:end]:
        way = _again(graph, op)
        if way is not None and not any(changed.get(s, -1) > op.id for s in (*way.reads, *op.creates)):
            found.update(way.creates)
    return found


def can_go(graph: Graph, live: Set[StorageId]) -> frozenset[StorageId]:
    """List the live storages that may be given up: all that stays, and the caller's, makes them again."""
    can = droppable(graph)
    there = {s for s in live if s not in can} | {s.id for s in graph.storages if s.external}
    gone: set[StorageId] = set()
    for op in graph.ops[: graph.boundaries[0]]:
        way = _again(graph, op)
        for storage in op.creates:
            if way is not None and storage in can and storage in way.creates and there.issuperset(way.reads):
                there.add(storage)
                gone.update({storage} & live)
            elif storage in live:
                there.add(storage)
    return frozenset(gone)


def staying(graph: Graph) -> Bytes:
    """Sum up what the first part has to leave for the second, whatever else is given up; 0 = one part."""
    if len(graph.parts) != 2:
        return 0
    made = frozenset(s for op in graph.ops[: graph.boundaries[0]] for s in op.creates)
    stays = made - can_go(graph, made)
    ways = _ways(graph, stays)
    made_again = {storage for op in ways for storage in op.creates}
    read = {s for op in (*ways, *graph.ops[graph.boundaries[0] :]) for s in op.reads}
    found = [graph.storages[s] for s in (stays - made_again) & read]
    return sum(round_up(one.size) for one in found if not one.resident_at_end)


def loses_results(graph: Graph) -> bool:
    """Tell whether the first part makes what no one can make again, and what the second part does not read.

    A backward that starts from other outputs may need it: none could be made from what the first part left.
    """
    forward, backward = graph.ops[: graph.boundaries[0]], graph.ops[graph.boundaries[0] :]
    late = {storage for op in backward for storage in op.reads}
    early = {storage for op in forward if op.target != RETURN for storage in op.reads}
    can = _can_be_made(graph)
    for op in forward:
        made = {s for s in op.creates if graph.storages[s].kind is not Kind.RANDOM_STATE}
        plain = _again(graph, op) is op and early.isdisjoint(made - can)
        if made and not plain and late.isdisjoint(made):
            return True
    return False


def same_storages(one: Graph, other: Graph) -> dict[StorageId, StorageId]:
    """Map what the first part of a graph makes to what that of another makes, where both compute the same.

    Args:
        one: of two parts.
        other: of the same forward, with another backward.
    """
    given = {item.name: item.view.base for item in other.parts[0].inputs if item.view is not None}
    inputs = [item for item in one.parts[0].inputs if item.view is not None and item.name in given]
    found = {item.view.base: given[item.name] for item in inputs if item.view is not None}
    every = {storage.id: storage.id for storage in other.storages}
    named = {op.name: op for op in other.ops[: other.boundaries[0]]}
    for op in one.ops[: one.boundaries[0]]:
        twin = named.get(op.name)
        if twin is not None and _called(op, found) == _called(twin, every):
            found.update(zip(op.creates, twin.creates, strict=True))
    return found


def _called(op: Op, number: Mapping[StorageId, StorageId]) -> object:
    """What an op is called with, in storages of another graph, and how its results are laid out."""

    def moved(value: Argument) -> Argument:
        if isinstance(value, View) and value.base != EMPTY:
            return replace(value, base=number.get(value.base, _UNKNOWN), input=-1)
        return Items(tuple(moved(item) for item in value.items)) if isinstance(value, Items) else value

    keywords = [(name, moved(value)) for name, value in op.keywords]
    results = [(result.position, replace(result.view, base=0)) for result in op.results]
    return op.target, [moved(value) for value in op.arguments], keywords, results


def remainder(graph: Graph, live: Set[StorageId]) -> Graph:
    """Turn the second part of a graph into a graph of one part.

    Args:
        graph: of two parts, whose first has run.
        live: storages that it made and that are still there.

    Returns:
        A graph whose inputs are those of the live storages that it reads, named ``live_`` and their
        number, then the inputs of both parts.

    Raises:
        TightropeError: something that is gone cannot be made again.

    Example:
        >>> from tightrope.core.graph import RETURN
        >>> made = (Result(-1, View(1, "float32", (16,), (1,))),)
        >>> ops = (
        ...     Op(0, "a", "a", (0,), (1,), results=made),
        ...     Op(1, "return", RETURN),
        ...     Op(2, "b", "b", (1,), (2,)),
        ... )
        >>> one = Graph(ops, tuple(Storage(i, 64, external=not i) for i in range(3)), (), (Part(2), Part(3)))
        >>> [op.name for op in remainder(one, {1}).ops], [op.name for op in remainder(one, set()).ops]
        (['b'], ['a', 'b'])
    """
    ways = _ways(graph, live)
    made = {storage for op in ways for storage in op.creates}
    return _Rest(graph, live - made).build(ways, graph.ops[graph.boundaries[0] :])


def _ways(graph: Graph, live: Set[StorageId]) -> list[Op]:
    """What runs again before the second part, in base order."""
    end = graph.boundaries[0]
    can = _can_be_made(graph)
    maker = {storage: op for op in graph.ops[:end] for storage in op.creates}
    wanted: dict[OpId, Op] = {}
    waiting = [s for op in graph.ops[end:] for s in (*op.reads, *_variant_reads(graph, op))]
    waiting += [view.base for value in graph.parts[1].outputs for view in views(value)]
    while waiting:
        storage = waiting.pop()
        if storage in live or storage not in maker or maker[storage].id in wanted:
            continue
        way = _again(graph, maker[storage])
        if storage not in can or way is None:
            raise TightropeError(f"storage {storage} is gone and cannot be recomputed.")
        wanted[maker[storage].id] = way
        waiting.extend(way.reads)
    return [wanted[op] for op in sorted(wanted)]


def _again(graph: Graph, op: Op) -> Op | None:
    """What runs when an op is recomputed; None where nothing may."""
    if op.variant >= 0:
        return graph.op(op.variant)
    return None if op.flags & _NEVER or op.mutates else op


def _variant_reads(graph: Graph, op: Op) -> tuple[StorageId, ...]:
    return graph.op(op.variant).reads if op.variant >= 0 else ()


class _Rest:
    """The graph while it is written; storages keep their order."""

    def __init__(self, graph: Graph, live: Set[StorageId]) -> None:
        self.graph, self.there = graph, live
        self.live: list[StorageId] = []
        self.again: set[StorageId] = set()
        self.number: dict[StorageId, StorageId] = {}

    def build(self, ways: list[Op], rest: tuple[Op, ...]) -> Graph:
        self.again = {s for op in ways for s in op.creates}
        made = self.again.union(s for op in rest for s in op.creates)
        reads = {s for op in (*ways, *rest) for s in (*op.reads, *_variant_reads(self.graph, op))}
        reads |= {view.base for value in self.graph.parts[1].outputs for view in views(value)}
        self.live = sorted(reads & self.there)
        self.first = len(self.live)
        kept = [s for s in self.graph.storages if s.external or s.id in self.live or s.id in made]
        self.number = {storage.id: position for position, storage in enumerate(kept)}
        storages = tuple(self._storage(storage) for storage in kept)
        ops = [self._op(op, number) for number, op in enumerate((*ways, *rest))]
        variants: list[Op] = []
        for number, op in enumerate((*ways, *rest)):
            if op.variant >= 0 and number >= len(ways):
                ops[number] = replace(ops[number], variant=len(ops) + len(variants))
                variants.append(self._op(self.graph.op(op.variant), len(ops) + len(variants)))
        inputs = [Input(f"live_{s}", self._live_view(s)) for s in self.live]
        inputs += [
            Input(given.name, None if given.view is None else self._view(given.view))
            for part in self.graph.parts
            for given in part.inputs
        ]
        outputs = tuple(self._argument(value) for value in self.graph.parts[1].outputs)
        return replace(
            self.graph,
            ops=tuple(ops),
            storages=storages,
            variants=tuple(variants),
            parts=(Part(len(ops), tuple(inputs), outputs),),
            name=f"{self.graph.name} (rest)",
        )

    def _storage(self, storage: Storage) -> Storage:
        there = storage.id in self.live or storage.id in self.again
        return replace(
            storage,
            id=self.number[storage.id],
            external=storage.external or storage.id in self.live,
            outside=storage.outside and not there,
            resident_at_end=storage.resident_at_end and not there,
        )

    def _live_view(self, storage: StorageId) -> View:
        maker = next(op for op in self.graph.ops if storage in op.creates)
        view = next(result.view for result in maker.results if result.view.base == storage)
        return self._view(view)

    def _op(self, op: Op, number: int) -> Op:
        return replace(
            op,
            id=number,
            reads=tuple(sorted(self.number[s] for s in op.reads)),
            creates=tuple(self.number[s] for s in op.creates),
            mutates=tuple(self.number[s] for s in op.mutates),
            allocations=tuple(
                replace(item, storage=self.number[item.storage] if item.storage >= 0 else -1)
                for item in op.allocations
            ),
            variant=-1,
            over=-1 if op.over < 0 or op.over in self.live else self.number[op.over],
            arguments=tuple(self._argument(value) for value in op.arguments),
            keywords=tuple((name, self._argument(value)) for name, value in op.keywords),
            results=tuple(Result(r.position, self._view(r.view)) for r in op.results),
        )

    def _view(self, view: View) -> View:
        if view.base == EMPTY:
            return view
        if view.base in self.live:
            given = self.live.index(view.base)
        else:
            given = self.first + view.input if view.input >= 0 else -1
        return replace(view, base=self.number[view.base], input=given)

    def _argument(self, value: Argument) -> Argument:
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, Items):
            return Items(tuple(self._argument(item) for item in value.items))
        return value
