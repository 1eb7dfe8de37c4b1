"""Leave updates out of a step: what only they need goes too.

Idea        A parameter that is not updated needs no gradient; what was computed for it alone, back to
            where no kept update needs it, is dropped, and its state is no longer held. Walk back from the
            loss, the kept updates and running statistics, and keep the ops that they read from.
Source      Sparse update: Lin et al., On-Device Training Under 256KB Memory (NeurIPS 2022)
Guarantee   What is kept computes the same bits; `tightrope_micro.judge.sparse` derives it again.
Complexity  Linear in ops.
Gaps        A parameter is updated whole or not at all: no share of its channels.
"""

from collections.abc import Collection

from msgspec.structs import replace

from tightrope.core import Argument, Graph, Input, Kind, Op, Result, Storage, StorageId, TightropeError, View
from tightrope.core.values import EMPTY, Part, views
from tightrope.lower import with_writes


def updates_of(graph: Graph) -> dict[str, int]:
    """Find the update of every parameter: its name -> the op.

    Args:
        graph: of a captured step.
    """
    return {
        graph.storages[storage].module: op.id
        for op in graph.ops
        for storage in op.mutates
        if graph.storages[storage].kind == Kind.PARAMETER
    }


def with_updates_of(graph: Graph, names: Collection[str]) -> Graph:
    """Write the step in which the named parameters alone are updated.

    Args:
        graph: of a captured step, not cut into tiles.
        names: of parameters.

    Raises:
        TightropeError: one of them is not updated in the step.
    """
    known = updates_of(graph)
    for name in names:
        if name not in known:
            raise TightropeError(
                f"no parameter {name!r} is updated in the step; there are {', '.join(known)}."
            )
    left_out = {op for name, op in known.items() if name not in set(names)}
    return _Pruned(graph, _needed(graph, left_out)).graph()


def _needed(graph: Graph, left_out: Collection[int]) -> list[Op]:
    """Ops that the loss, running statistics or a kept update need."""
    live = {view.base for value in graph.parts[0].outputs for view in views(value)}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        kinds = {graph.storages[storage].kind for storage in op.mutates}
        is_end = bool(kinds & {Kind.PARAMETER, Kind.BUFFER}) and op.id not in left_out
        if is_end or live.intersection(
            (*op.creates, *(s for s in op.mutates if not kinds & {Kind.PARAMETER}))
        ):
            kept.append(op)
            live.update(op.reads)
    return kept[::-1]


class _Pruned:
    """The new graph: the kept ops, on the storages that they touch."""

    def __init__(self, graph: Graph, kept: list[Op]) -> None:
        self.old, self.kept = graph, kept
        touched = {s for op in kept for s in (*op.reads, *op.creates, *op.mutates)}
        self.number = {storage: at for at, storage in enumerate(sorted(touched))}
        given = [g for g in graph.parts[0].inputs if g.view is not None and g.view.base in touched]
        self.position = {g.view.base: at for at, g in enumerate(given) if g.view is not None}
        self.given = given

    def graph(self) -> Graph:
        """Write it."""
        part = self.old.parts[0]
        inputs = tuple(Input(g.name, self._view(g.view)) for g in self.given if g.view is not None)
        outputs = tuple(self._argument(value) for value in part.outputs)
        ops = tuple(self._op(at, op) for at, op in enumerate(self.kept))
        made = replace(
            self.old, ops=ops, storages=tuple(map(self._storage, self.number)), variants=(),
            parts=(Part(len(ops), inputs, outputs),),
        )  # fmt: skip
        return with_writes(made)

    def _storage(self, storage: StorageId) -> Storage:
        return replace(self.old.storages[storage], id=self.number[storage])

    def _view(self, view: View) -> View:
        if view.base == EMPTY:
            return view
        base = self.number[view.base]
        return View(
            base,
            view.dtype,
            view.shape,
            view.strides,
            view.offset,
            view.bits,
            self.position.get(view.base, -1),
        )

    def _argument(self, value: Argument) -> Argument:
        return self._view(value) if isinstance(value, View) else value

    def _op(self, at: int, op: Op) -> Op:
        def moved(storages: tuple[StorageId, ...]) -> tuple[StorageId, ...]:
            return tuple(self.number[storage] for storage in storages)

        return replace(
            op, id=at, reads=moved(op.reads), creates=moved(op.creates), mutates=moved(op.mutates), over=-1,
            arguments=tuple(map(self._argument, op.arguments)),
            results=tuple(Result(one.position, self._view(one.view)) for one in op.results),
        )  # fmt: skip
