"""Several calls of a model as one graph, with control at the caller in between.

Idea        A training step that calls models several times (two branches of a siamese net, the pieces
            of a model with graph breaks, micro-batches) is a sequence of turns: forwards and backwards
            of captured graphs. Their ops follow each other in that order; what the caller holds for
            the whole step is one storage however often it is handed over.
Guarantee   No op of one call reads what another call makes, so calls may come back in any order. Every
            op reads what it reads in its own graph.
Complexity  Linear in ops.

    turns    forward 0     forward 1     backward 1    backward 0
    parts    [ ops | R ]   [ ops | R ]   [ ops | R ]   [ ops ]        R: control goes to the caller
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

from msgspec.structs import replace

from tightrope.core import Flag, Graph, Input, Op, Part, Phase, Result, Storage, StorageId, View
from tightrope.core.graph import RETURN
from tightrope.core.values import EMPTY, Argument, Items, views


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of a training step.

    Attributes:
        call: number of the call, by its forward.
        graph: which captured graph it is of.
        back: whether it is the backward.
    """

    call: int
    graph: int
    back: bool


@dataclass(frozen=True)
class JoinedCalls:
    """One graph of several calls.

    Attributes:
        graph: the calls as parts.
        storages: (call, storage of its own graph) -> storage.
    """

    graph: Graph
    storages: Mapping[tuple[int, StorageId], StorageId]


def join(
    graphs: Mapping[int, Graph],
    turns: Sequence[Turn],
    *,
    identity: Mapping[tuple[int, StorageId], Hashable] | None = None,
    dropped: Set[tuple[int, int]] = frozenset(),
) -> JoinedCalls:
    """Put the calls of a training step into one graph.

    Args:
        graphs: captured graphs of two parts each, by number.
        turns: in order; every call has a forward, and a backward after it.
        identity: (graph, storage of the caller) -> what it is: equal ones are one storage. Others are
            one for each call.
        dropped: (call, output) of gradients that the caller lets go of before the next turn; others
            stay to the end.

    Example:
        >>> ops = (Op(0, "a", "a", (0,), (1,)), Op(1, "return", RETURN, (1,)), Op(2, "b", "b", (1,), (2,)))
        >>> one = Graph(ops, tuple(Storage(i, 64, external=not i) for i in range(3)), (), (Part(2), Part(3)))
        >>> order = [Turn(0, 0, False), Turn(1, 0, False), Turn(1, 0, True), Turn(0, 0, True)]
        >>> [part.end for part in join({0: one}, order).graph.parts]
        [2, 4, 6, 7]
    """
    joining = _CallJoiner(graphs, identity or {}, dropped)
    for number, turn in enumerate(turns):
        joining.add(turn, last=number == len(turns) - 1)
    return joining.finish()


class _CallJoiner:
    """The graph while it is written; lives for one call of `join`."""

    def __init__(
        self,
        graphs: Mapping[int, Graph],
        identity: Mapping[tuple[int, StorageId], Hashable],
        dropped: Set[tuple[int, int]],
    ) -> None:
        self.graphs, self.identity, self.dropped = graphs, identity, dropped
        self.storages: list[Storage] = []
        self.number: dict[tuple[int, StorageId], StorageId] = {}
        self.shared: dict[Hashable, StorageId] = {}
        self.inputs: dict[tuple[int, int], int] = {}
        self.num_inputs = 0
        self.ops: list[Op] = []
        self.variants: list[tuple[int, Op, int, int]] = []
        self.parts: list[Part] = []

    def add(self, turn: Turn, *, last: bool) -> None:
        graph = self.graphs[turn.graph]
        call, which = turn.call, turn.graph
        if not turn.back:
            self._bring(call, which, graph)
        part = graph.parts[turn.back]
        begin = graph.parts[0].end if turn.back else 0
        first = len(graph.parts[0].inputs) if turn.back else 0
        for position in range(len(part.inputs)):
            self.inputs[call, first + position] = self.num_inputs
            self.num_inputs += 1
        for op in graph.ops[begin : part.end]:
            self._op(call, which, op)
        outputs = tuple(self._argument(call, value) for value in part.outputs)
        if turn.back and not last:
            self._hand_over(call, outputs)
        given = tuple(
            Input(i.name, None if i.view is None else self._view(call, i.view)) for i in part.inputs
        )
        self.parts.append(Part(len(self.ops), given, outputs, call))

    def _bring(self, call: int, which: int, graph: Graph) -> None:
        for storage in graph.storages:
            key = self.identity.get((which, storage.id)) if storage.external else None
            if key is not None and key in self.shared:
                self.number[call, storage.id] = self.shared[key]
                continue
            self.number[call, storage.id] = len(self.storages)
            if key is not None:
                self.shared[key] = len(self.storages)
            self.storages.append(replace(storage, id=len(self.storages)))

    def _op(self, call: int, which: int, op: Op) -> None:
        if op.variant >= 0:
            self.variants.append((call, self.graphs[which].op(op.variant), len(self.ops), which))
        self.ops.append(self._moved(call, op, len(self.ops)))

    def _moved(self, call: int, op: Op, number: int) -> Op:
        def ids(storages: Sequence[StorageId]) -> tuple[StorageId, ...]:
            return tuple(self.number[call, storage] for storage in storages)

        allocations = tuple(
            replace(item, storage=self.number[call, item.storage] if item.storage >= 0 else -1)
            for item in op.allocations
        )
        return replace(
            op,
            id=number,
            reads=tuple(sorted(set(ids(op.reads)))),
            creates=ids(op.creates),
            mutates=ids(op.mutates),
            allocations=allocations,
            variant=-1,
            over=self.number[call, op.over] if op.over >= 0 else -1,
            arguments=tuple(self._argument(call, value) for value in op.arguments),
            keywords=tuple((name, self._argument(call, value)) for name, value in op.keywords),
            results=tuple(Result(r.position, self._view(call, r.view)) for r in op.results),
        )

    def _hand_over(self, call: int, outputs: tuple[Argument, ...]) -> None:
        """End a backward that is not the last turn: its gradients go to the caller."""
        for position, value in enumerate(outputs):
            if (call, position) in self.dropped:
                for view in views(value):
                    if view.base != EMPTY and not self.storages[view.base].external:
                        self.storages[view.base] = replace(self.storages[view.base], resident_at_end=False)
        reads = {view.base for value in outputs for view in views(value)} - {EMPTY}
        flags = Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE
        op = Op(len(self.ops), "return_to_caller", RETURN, tuple(sorted(reads)), flags=flags)
        self.ops.append(replace(op, phase=Phase.BACKWARD))

    def _view(self, call: int, view: View) -> View:
        if view.base == EMPTY:
            return view
        given = self.inputs[call, view.input] if view.input >= 0 else -1
        return replace(view, base=self.number[call, view.base], input=given)

    def _argument(self, call: int, value: Argument) -> Argument:
        if isinstance(value, View):
            return self._view(call, value)
        if isinstance(value, Items):
            return Items(tuple(self._argument(call, item) for item in value.items))
        return value

    def finish(self) -> JoinedCalls:
        again: list[Op] = []
        for call, variant, base, _ in self.variants:
            number = len(self.ops) + len(again)
            again.append(self._moved(call, variant, number))
            self.ops[base] = replace(self.ops[base], variant=number)
        first = next(iter(self.graphs.values()))
        names = dict.fromkeys(graph.name for graph in self.graphs.values())
        graph = Graph(
            tuple(self.ops), tuple(self.storages), tuple(again), tuple(self.parts), " + ".join(names),
            first.environment, first.alignment,
        )  # fmt: skip
        return JoinedCalls(graph, self.number)
