"""What is proved about a plan, with the numbers from which the proof is derived again.

A *gap* ``(storage, until)`` is the stretch between two consecutive uses of a storage, the later one by
the first run of op ``until``: a storage that is absent somewhere inside must be made again. With a free
order a storage has one gap, ``until`` = -1: between its producer and any later reader.

A *row* belongs to op t of the base order: while t runs for the first time, storages that are idle then
must be absent with at least as many bytes as the rest takes more than the budget. Multipliers on rows
bound the cost of all absences from below (weak duality), whoever chose them.

`Stages` looks at fewer ops more closely: between two rows it tells what is kept and what runs again, so
that a re-run is charged for what it reads.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from tightrope.core.units import Bytes, Nanoseconds, OpId, StorageId

MAX_TREE: Final = 100_000
"""Most nodes of a case distinction."""
ANY: Final[OpId] = -1
"""``until`` of a storage's only gap when the order of first runs is free."""


class Split(msgspec.Struct, frozen=True, tag="split", array_like=True):
    """Two cases, whose nodes follow: the storage is kept over the gap; it is absent somewhere in it."""

    storage: StorageId
    until: OpId


class Case(msgspec.Struct, frozen=True, tag="case", array_like=True):
    """The bound of one case.

    Attributes:
        weights: (op of the row, divisor, weight). A row asks for ``short`` bytes from gaps of ``size``
            bytes, at most ``short`` each. With divisor 0, or where it divides ``short``, it is taken as
            it is; else with ``rest = short % divisor`` it is rounded: ``ceil(short / divisor) * rest``
            is asked for, and a gap gives ``size // divisor * rest + min(size % divisor, rest)``.
        shares: (storage, until, share): what a gap charges of the time of a run that makes several
            storages, together never more than the run; a gap of a storage made alone charges all.
    """

    weights: tuple[tuple[OpId, Bytes, int], ...] = ()
    shares: tuple[tuple[StorageId, OpId, int], ...] = ()


Node = Split | Case


class Cover(msgspec.Struct, frozen=True):
    """A lower bound on the time that recomputation adds, re-derivable from the graph alone.

    Attributes:
        budget: total bytes that it holds for, at least the plan's.
        scale: weights and shares are multiples of 1 / scale.
        tree: a case distinction in preorder; one `Case` alone is a plain dual bound.
    """

    budget: Bytes
    scale: int = 1
    tree: tuple[Node, ...] = (Case(),)


class Choice(msgspec.Struct, frozen=True, tag="choice", array_like=True):
    """Two cases, whose nodes follow: at most ``most`` of some facts at a row of `Stages` hold, or more.

    Attributes:
        what: ``live`` = a storage is live at the row, ``run`` = an op runs again after it and before
            the next.
        items: storages or ops, none twice.
        row: position in ``Stages.ops``.
        most: with one item and 0, the item is not so in the first case, and is in the second.
    """

    what: Literal["live", "run"]
    items: tuple[int, ...]
    row: int
    most: int = 0


class StageCase(msgspec.Struct, frozen=True, tag="stage_case", array_like=True):
    """The bound of one case: weights of the constraints that hold at and between rows.

    Attributes:
        rows: (row, divisor, weight): bytes at a row, rounded as in `Case` where the divisor is not 0.
        kept: (storage, row, weight): live at the next row = live at this one, or made again between.
        used: (storage, row, weight): a first run before the next row reads it, so it is live at this
            row, or made again after it.
        fed: (op, storage, row, weight): a re-run after the row reads it: live at the row, or made again.
        held: (storage, row, weight): live at this row and at the next, and not made again between, so
            live all the while.
        during: (op, row, weight): bytes while an op runs again between this row and the next: what it
            allocates and reads, and what is live all the while.
        paths: (position in ``Stages.paths``, weight).
        choices: (position, weight): what a `Choice` of several items says, of those above the case,
            counted from the root.
        barriers: (position in ``Stages.barriers``, weight).
    """

    rows: tuple[tuple[int, Bytes, int], ...] = ()
    kept: tuple[tuple[StorageId, int, int], ...] = ()
    used: tuple[tuple[StorageId, int, int], ...] = ()
    fed: tuple[tuple[OpId, StorageId, int, int], ...] = ()
    held: tuple[tuple[StorageId, int, int], ...] = ()
    during: tuple[tuple[OpId, int, int], ...] = ()
    paths: tuple[tuple[int, int], ...] = ()
    choices: tuple[tuple[int, int], ...] = ()
    barriers: tuple[tuple[int, int], ...] = ()


class Fixing(msgspec.Struct, frozen=True, tag="fixing", array_like=True):
    """Reduced-cost fixing; one node follows. A fact that alone raises ``case`` to the target is not so.

    Every fact that the weights name is decided this way where its other value would make the case as
    expensive as ``Stages.target``: a schedule that adds less has it so.
    """

    case: StageCase


class InputPath(msgspec.Struct, frozen=True, array_like=True):
    """How a storage can come to be live for a first run: some storage of a path was live at a row.

    Attributes:
        row: position in ``Stages.ops``.
        last: position of the stretch at whose end, or in which, a first run uses the first storage.
        storages: each next one is read by whatever makes the one before again. One of them is live at
            ``row``, or the producer of the last one runs again in the stretches ``row`` to ``last``.
    """

    row: int
    last: int
    storages: tuple[StorageId, ...]


Chain: TypeAlias = tuple[Bytes, tuple[StorageId, ...]]
"""Bytes, and storages of which one is live: each next one is read by whatever makes the one before again."""


class Barrier(msgspec.Struct, frozen=True, array_like=True):
    """Why an op can run again between two rows only where one of others runs again, then or later.

    Attributes:
        op: what does not fit.
        row: position in ``Stages.ops``, not the last.
        others: ops that are supposed not to run again after the row.
        chains: for every op of the base order after the row's up to the next row's, what is live while
            ``op`` runs again just before it. All storages of a chain were made; the first one is needed
            later; the last one stays, or only one of ``others`` makes it again. So one of the chain is
            live all the while; it counts the bytes of the chain, and over all chains at most its own.
    """

    op: OpId
    row: int
    others: tuple[OpId, ...]
    chains: tuple[tuple[Chain, ...], ...]


StageNode = Choice | Fixing | StageCase


class Stages(msgspec.Struct, frozen=True):
    """A lower bound on added time from what is live at a few ops, and runs again between them.

    Attributes:
        budget: total bytes that it holds for, at least the plan's.
        scale: weights are multiples of 1 / scale.
        ops: ops of the base order whose first runs are the rows, ascending.
        tree: a case distinction in preorder.
        paths, barriers: what cases refer to.
        target: added time, ns, up to which fixings hold, and so the most that is proved with them.
    """

    budget: Bytes
    scale: int
    ops: tuple[OpId, ...]
    tree: tuple[StageNode, ...]
    paths: tuple[InputPath, ...] = ()
    target: Nanoseconds = 0
    barriers: tuple[Barrier, ...] = ()


class Certificate(msgspec.Struct, frozen=True):
    """What is proved about a plan, with the numbers to re-derive it.

    Attributes:
        lower_bound: total bytes below which no schedule exists that recomputes but does not page.
        witness: op that needs ``lower_bound``.
        method: names of the bounds.
        ns_bound: proved lower bound on the time of such a schedule at this budget (0 = none).
        proved: whether the schedule's time equals the bound.
        seed: random seed of the search.
        versions: what made it.
        order: whether both bounds hold for schedules in base order, or in any order.
        cover, stages: the numbers behind ``ns_bound``; without, it is running every op once.
    """

    lower_bound: Bytes = 0
    witness: OpId = -1
    method: str = "single-op floor"
    ns_bound: Nanoseconds = 0
    proved: bool = False
    seed: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    order: Literal["given", "free"] = "given"
    cover: Cover | None = None
    stages: Stages | None = None
