"""A graph with other ops: what none of them touches is left out, and numbers are given again."""

from collections.abc import Sequence

from msgspec.structs import replace

from tightrope.core import Argument, Graph, Input, Op, Storage, StorageId, View
from tightrope.core.values import EMPTY, Part
from tightrope.lower import with_writes


def renumbered(
    graph: Graph,
    ops: Sequence[Op],
    storages: Sequence[Storage] | None = None,
    inputs: Sequence[Input] | None = None,
) -> Graph:
    """Return the graph of one part with other ops, and only what they touch and the caller gives.

    Args:
        graph: whose part, name and environment it has.
        ops: in order; what they read, create and mutate are places in ``storages``.
        storages: those of the graph, and new ones behind them; default: those of the graph.
        inputs: that are left; default: all.
    """
    known = graph.storages if storages is None else storages
    given = tuple(
        one for one in (graph.parts[0].inputs if inputs is None else inputs) if one.view is not None
    )
    place = {one.view.base: at for at, one in enumerate(given) if one.view is not None}
    kept = {*place, *(s for op in ops for s in (*op.reads, *op.creates, *op.mutates))}
    number = {old: new for new, old in enumerate(sorted(kept))}

    def looked(view: View) -> View:
        return replace(view, base=number[view.base], input=place[view.base] if view.input >= 0 else -1)

    def moved(value: Argument) -> Argument:
        return looked(value) if isinstance(value, View) and value.base != EMPTY else value

    def all_of(touched: tuple[StorageId, ...]) -> tuple[StorageId, ...]:
        return tuple(sorted(number[storage] for storage in touched))

    made = tuple(
        replace(
            op, id=at, over=-1, reads=all_of(op.reads), mutates=all_of(op.mutates),
            creates=tuple(number[storage] for storage in op.creates),
            arguments=tuple(map(moved, op.arguments)),
            keywords=tuple((name, moved(value)) for name, value in op.keywords),
            results=tuple(replace(one, view=looked(one.view)) for one in op.results),
        )
        for at, op in enumerate(ops)
    )  # fmt: skip
    left = tuple(replace(one, view=looked(one.view)) for one in given if one.view is not None)
    parts = (Part(len(made), left, tuple(map(moved, graph.parts[0].outputs))),)
    there = tuple(replace(known[old], id=new) for old, new in number.items())
    return with_writes(replace(graph, ops=made, storages=there, parts=parts))
