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

from tightrope.core import Graph, Kind, Op, TightropeError
from tightrope.core.values import views
from tightrope_micro.renumber import renumbered


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
    kept = _needed(graph, left_out)
    touched = {s for op in kept for s in (*op.reads, *op.creates, *op.mutates)}
    inputs = [g for g in graph.parts[0].inputs if g.view is not None and g.view.base in touched]
    return renumbered(replace(graph, variants=()), kept, inputs=inputs)


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
