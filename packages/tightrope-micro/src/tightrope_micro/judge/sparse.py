"""Check that a step in which some updates are left out is the whole step without them.

Idea        Ops and storages are named by what a reader sees: an op by its name, what the caller holds by
            its name, what an op makes by that op and the position of the result. Each op of the smaller
            step has to be one of the whole step, with equal arguments under these names, in the same
            order; what it reads has to be made before it, and every change in place that the whole step
            makes before it to what it reads has to be there. The named parameters, running statistics and
            the loss have to be as the whole step leaves them.
Guarantee   A step that passes gives the loss, the named parameters and the running statistics the bits
            that the whole step gives them; and changes no other parameter.
Complexity  Linear in ops and arguments.
Gaps        Names of ops have to be distinct.
"""

from collections.abc import Collection
from typing import Any

from tightrope.core import Graph, Items, JudgeError, Kind, Op, StorageId, View


def check_sparse(whole: Graph, sparse: Graph, names: Collection[str]) -> None:
    """Check ``sparse`` against the whole step.

    Args:
        whole: as captured.
        sparse: in which the named parameters alone are updated.
        names: of parameters.

    Raises:
        JudgeError: says what differs.
    """
    theirs, ours = _Names(whole), _Names(sparse)
    known = {op.name: at for at, op in enumerate(whole.ops)}
    if len(known) != len(whole.ops):
        raise JudgeError("two ops of the whole step have one name, so that a smaller one cannot be judged.")
    last, there = -1, {op.name for op in sparse.ops}
    for op in sparse.ops:
        at = known.get(op.name, -1)
        if at <= last:
            raise JudgeError(f"op {op.name!r} is not in the whole step, or at another place there.")
        if ours.told(op) != theirs.told(whole.ops[at]):
            raise JudgeError(f"op {op.name!r} computes something else than in the whole step.")
        _check_changes(whole, whole.ops[at], there)
        last = at
    _check_ends(theirs, ours, set(names), there)


class _Names:
    """What every storage of a graph is called by."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of: dict[StorageId, Any] = {}
        for storage in graph.storages:
            if storage.external:
                self.of[storage.id] = (storage.module, storage.kind, storage.bytes)
        for op in graph.ops:
            for position, result in enumerate(op.results):
                self.of[result.view.base] = (op.name, position, graph.storages[result.view.base].bytes)
        called = [name for storage, name in self.of.items() if graph.storages[storage].external]
        if len(set(called)) != len(called):
            raise JudgeError("two values that the caller holds have one name.")

    def told(self, op: Op) -> tuple[Any, ...]:
        """An op under names."""
        sets = (frozenset(self.of.get(s) for s in kind) for kind in (op.reads, op.creates, op.mutates))
        arguments = (self._said(value) for value in op.arguments)
        return (op.target, *sets, *arguments, *(self._said(one.view) for one in op.results), op.keywords)

    def _said(self, value: object) -> object:
        if isinstance(value, View):
            return self.of.get(value.base), value.dtype, value.shape, value.strides, value.offset
        return tuple(map(self._said, value.items)) if isinstance(value, Items) else (type(value), value)

    def outputs(self) -> list[object]:
        """What is returned."""
        return [self._said(value) for value in self.graph.parts[0].outputs]


def _check_changes(whole: Graph, op: Op, there: Collection[str]) -> None:
    """What an op reads was made, and changed, by ops that are there."""
    for other in whole.ops[: whole.ops.index(op)]:
        touched = set(op.reads).intersection((*other.creates, *other.mutates))
        if touched and other.name not in there:
            name = whole.storages[min(touched)].module or whole.storages[min(touched)].label
            raise JudgeError(
                f"op {op.name!r} reads {name!r}, which {other.name!r} changes; that is left out."
            )


def _check_ends(theirs: _Names, ours: _Names, names: Collection[str], there: Collection[str]) -> None:
    whole = theirs.graph
    if theirs.outputs() != ours.outputs():
        raise JudgeError("the smaller step returns something else.")
    changed: set[str] = set()
    for op in whole.ops:
        for storage in map(whole.storages.__getitem__, op.mutates):
            if storage.kind == Kind.PARAMETER:
                changed.add(storage.module)
                if (op.name in there) != (storage.module in names):
                    said = "is updated" if op.name in there else "is not updated"
                    raise JudgeError(f"parameter {storage.module!r} {said}, other than was requested.")
            elif storage.kind == Kind.BUFFER and op.name not in there:
                raise JudgeError(f"statistics {storage.module!r} are not kept.")
    if gone := set(names) - changed:
        raise JudgeError(f"parameter {min(gone)!r} is not updated in the whole step.")
