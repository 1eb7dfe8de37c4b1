"""One training step of plain PyTorch: ops, what autograd saves, and who holds what until when.

    forward                                     backward
    enter  op op(pack) free ... | enter ... | unpack op op release | unpack op release ...

A storage lives from the op that makes it until Python and the kernels of torch let go of it (`FREE`), and
as long as autograd has it saved (from `PACK` to `RELEASE`). The first is told without the second, because
recomputing a module changes the second alone.
"""

from enum import IntEnum
from typing import NamedTuple

from tightrope.core import Graph, StorageId


class Mark(IntEnum):
    """Kinds of events; the number that stands with each is of an op, a storage, a save or a call."""

    OP = 0
    FREE = 1
    PACK = 2
    UNPACK = 3
    RELEASE = 4
    ENTER = 5


class ModuleCall(NamedTuple):
    """One call of a module.

    Attributes:
        path: of the module, e.g. ``layers.3.mlp``.
        start: position of its `Mark.ENTER` among the events.
        end: position behind its events.
        inputs: storages of its arguments.
        outputs: storages of its result.
        places: number of tensors among its positional arguments.
    """

    path: str
    start: int
    end: int
    inputs: tuple[StorageId, ...]
    outputs: tuple[StorageId, ...] = ()
    places: int = 0


class StepTape(NamedTuple):
    """A step.

    Attributes:
        graph: its ops and storages, in eager's own order, views included, with measured prices.
        events: (kind, number) in order.
        turn: position of the first event of the backward.
        saves: storage of each save, -1 where it is the caller's.
        calls: of modules, in the order of their starts.
        buffers: running statistics that modules write: storages by (path of the module, name).
        lists: paths of the lists of modules, each with the paths of its members.
        writes: by storage, the position of the last event at which it was written in place.
    """

    graph: Graph
    events: tuple[tuple[Mark, int], ...]
    turn: int
    saves: tuple[StorageId, ...]
    calls: tuple[ModuleCall, ...]
    buffers: dict[tuple[str, str], StorageId]
    lists: dict[str, tuple[str, ...]]
    writes: dict[StorageId, int]
