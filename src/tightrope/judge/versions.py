"""Which version of each storage an op must see.

A storage starts at version 0 when it is made (again) and moves on by one with every op that
changes it in place. Running the base order once fixes the version that every op reads. A schedule
gives the same values only if each run of an op, first or again, reads those versions: an op that is
run again after its input was changed, or an input that is made again without its changes, does not.
"""

from dataclasses import dataclass

from tightrope.core import Flag, Graph, Op, OpId, StorageId

_KNOWN = "judge.versions"
_NEVER_TWICE = int(Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that the base order fixes.

    Attributes:
        reads: for every op and variant, the version of each storage that it reads.
        final: the version of each storage when the base order ends.
    """

    reads: dict[OpId, dict[StorageId, int]]
    final: tuple[int, ...]


def base_versions(graph: Graph) -> Versions:
    """Run the base order once over version numbers.

    A variant sees what its op saw, and the storages that its op made as they were made. A graph does
    not change, so the result is kept with it.
    """
    known: Versions | None = graph.__dict__.get(_KNOWN)
    if known is None:
        known = graph.__dict__[_KNOWN] = _derive(graph)
    return known


def _derive(graph: Graph) -> Versions:
    now = [0] * len(graph.storages)
    reads: dict[OpId, dict[StorageId, int]] = {}
    for op in graph.ops:
        reads[op.id] = {storage: now[storage] for storage in op.reads}
        if op.variant >= 0:
            reads[op.variant] = {storage: now[storage] for storage in graph.op(op.variant).reads}
        for storage in op.mutates:
            now[storage] += 1
    return Versions(reads, tuple(now))


def runs_once(op: Op) -> bool:
    """Tell whether ``op`` itself must not run again, whatever its variant may do."""
    return bool(int(op.flags) & _NEVER_TWICE or op.mutates)
