"""The graph of one training step: ops over storages.

The unit of memory is the storage (one allocation), not the tensor: views, ``detach`` and
``getitem`` collapse onto the storage that they look into. An op reads storages, creates new ones
and may mutate some in place. ``ops`` stands in the order in which the captured program ran; that
order is the *base order*, and every op of it runs at least once.

An op that must never be drawn twice (dropout, random numbers) may have a *recompute variant*: another
op in ``variants`` that creates the same storage bit for bit from what was kept (a mask, a generator
state). Variants never run in the base order; a schedule uses them to recompute.

Control may go to the caller in between and come back, any number of times: see `Part`. With the
arguments of its ops and the inputs and outputs of its parts, a graph is all that running it needs.

    inside one op, time runs over its allocation events:

    bytes ^        +--temp--+
          |     +--+--------+-------------- created storage, survives the op
          +-----+-----------+---> event
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from enum import IntFlag, StrEnum
from functools import cached_property
from typing import Final, Literal

import msgspec

from tightrope.core.units import (
    ALIGNMENT,
    Bytes,
    Nanoseconds,
    OpId,
    StepIndex,
    StorageId,
    printable,
    round_up,
)
from tightrope.core.values import Argument, Part, Result

SCHEMA_VERSION: Final = 2
RETURN: Final = "tightrope.return"
"""Target of the op that hands the outputs of a part over to the caller."""


class Kind(StrEnum):
    """What a storage is for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    OUTPUT = "output"
    RANDOM_STATE = "random_state"


class Phase(StrEnum):
    """The part of the training step that an op belongs to."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Flag(IntFlag):
    """Properties of an op that a planner must respect."""

    NONE = 0
    RANDOM = 1
    IN_PLACE = 2
    COLLECTIVE = 4
    SIDE_EFFECT = 8
    NEVER_RECOMPUTE = 16
    OPAQUE = 32


class Storage(msgspec.Struct, frozen=True):
    """One allocation.

    Attributes:
        id: position in ``Graph.storages``.
        bytes: size as requested; it is charged and placed rounded up to ``alignment``.
        kind: what it is for.
        resident_at_end: still allocated when the step ends (gradients, outputs, new buffers).
        external: allocated by the caller, never by an op (parameters, buffers, inputs, tangents);
            counted as persistent where its home is tier 0.
        outside: allocated by an op, but outside the arena (values handed to the user in mid-step).
        label: dtype and shape of the root tensor, for people.
        module: path of the module that made it.
        home: of an external storage, the tier that the caller holds it in. In a slower tier a schedule pages
            it in before it is read, and pages it out again once it was changed.
    """

    id: StorageId
    bytes: Bytes
    kind: Kind = Kind.ACTIVATION
    alignment: Bytes = ALIGNMENT
    resident_at_end: bool = False
    external: bool = False
    outside: bool = False
    label: str = ""
    module: str = ""
    home: int = 0

    @property
    def size(self) -> Bytes:
        """Bytes charged: ``bytes`` rounded up to the alignment."""
        return round_up(self.bytes, self.alignment)


class Allocation(msgspec.Struct, frozen=True, array_like=True):
    """One allocation made while an op runs.

    Attributes:
        bytes: requested size.
        storage: the created storage that it becomes, or -1 for a temporary.
        start: allocation event at which it begins (0-based inside the op).
        end: event at which it is released, or -1 when it survives the op.
    """

    bytes: Bytes
    storage: StorageId = -1
    start: int = 0
    end: int = -1


class Op(msgspec.Struct, frozen=True):
    """One node of the graph.

    Attributes:
        id: position in ``Graph.ops``, or ``len(ops) + position`` in ``Graph.variants``.
        name: unique name in the captured program.
        target: what runs, e.g. ``aten.mm.default``.
        reads: storages that must be present, ascending, without repeats.
        creates: storages that it allocates.
        mutates: storages that it changes in place (a subset of ``reads``).
        ns: time of one run.
        allocations: every allocation that it makes, temporaries included, in order; empty means
            "its created storages, in order, and nothing else".
        flags: see `Flag`.
        phase: part of the step.
        module: module path, e.g. ``transformer.h.3.mlp``.
        source: ``file:line`` of the user's code.
        variant: op in ``Graph.variants`` to run instead when this op is recomputed, or -1.
        arguments: positional arguments; their views look into ``reads``.
        keywords: keyword arguments, by name.
        results: how the storages that it creates look, one each.
        hidden: most bytes that its kernel takes behind the allocator while it runs.
        over: storage over which it may write what it creates first, where nothing else needs it any more;
            -1 = none.
        callers: lines of the user's code from which ``source`` was called, nearest first.
    """

    id: OpId
    name: str
    target: str
    reads: tuple[StorageId, ...] = ()
    creates: tuple[StorageId, ...] = ()
    mutates: tuple[StorageId, ...] = ()
    ns: Nanoseconds = 0
    allocations: tuple[Allocation, ...] = ()
    flags: Flag = Flag.NONE
    phase: Phase = Phase.FORWARD
    module: str = ""
    source: str = ""
    variant: OpId = -1
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()
    results: tuple[Result, ...] = ()
    hidden: Bytes = 0
    over: StorageId = -1
    callers: tuple[str, ...] = ()

    @property
    def recomputable(self) -> bool:
        """Whether a schedule may run this op, or its variant, again."""
        if self.variant >= 0:
            return True
        blocked = Flag.RANDOM | Flag.IN_PLACE | Flag.COLLECTIVE | Flag.SIDE_EFFECT | Flag.NEVER_RECOMPUTE
        return not (self.flags & blocked or self.mutates)

    def describe(self) -> str:
        """Name the op for a person: target, module path and source line."""
        place = f" in {self.module}" if self.module else ""
        return printable(f"{self.target}{place}" + (f" ({self.source})" if self.source else ""))


class Graph(msgspec.Struct, frozen=True, dict=True):
    """One training step as ops over storages.

    Attributes:
        ops: the base order.
        storages: all storages; ``storages[i].id == i``.
        variants: alternative producers, see the module text.
        parts: stretches of ops between which the caller has control; empty = one, without inputs or
            outputs that are known.
        name: for people.
        environment: what a plan depends on besides the structure: device, processor, threads, versions.
        alignment: temporaries of kernels are charged in multiples of this.
        schema: version of this layout.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    variants: tuple[Op, ...] = ()
    parts: tuple[Part, ...] = ()
    name: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    alignment: Bytes = ALIGNMENT
    schema: Literal[2] = SCHEMA_VERSION

    def op(self, op: OpId) -> Op:
        """Look up an op of the base order or a variant."""
        return self.ops[op] if op < len(self.ops) else self.variants[op - len(self.ops)]

    def all_ops(self) -> Iterator[Op]:
        """Iterate over the base order, then the variants."""
        yield from self.ops
        yield from self.variants

    def allocations(self, op: Op) -> tuple[Allocation, ...]:
        """List the allocations of ``op``; without a measurement, its created storages in order."""
        if op.allocations or not op.creates:
            return op.allocations
        return tuple(
            Allocation(self.storages[storage].bytes, storage, position, -1)
            for position, storage in enumerate(op.creates)
        )

    @cached_property
    def hidden(self) -> Bytes:
        """Most bytes that a kernel takes behind the allocator; no two ops run at once."""
        return max((round_up(op.hidden, self.alignment) for op in self.all_ops()), default=0)

    @cached_property
    def persistent(self) -> Bytes:
        """Bytes that count during the whole step: the caller's (parameters, state, inputs), and `hidden`.

        An arena keeps its pages while a kernel runs, so hidden bytes always come on top of all of it.
        What the caller holds in a slower tier takes no bytes here.
        """
        return self.hidden + sum(s.size for s in self.storages if s.external and not s.home)

    @cached_property
    def boundaries(self) -> tuple[StepIndex, ...]:
        """Numbers of leading ops after which control goes to the caller and comes back, ascending."""
        return tuple(part.end for part in self.parts[:-1])

    def part_of(self, op: OpId) -> int:
        """Tell which part an op of the base order belongs to."""
        return bisect_right(self.boundaries, op)

    def handover(self, op: OpId) -> StepIndex:
        """First op of the next part: what ``op`` makes for the caller must be there before it runs.

        ``len(ops)`` in the last part.
        """
        part = self.part_of(op)
        return self.boundaries[part] if part < len(self.boundaries) else len(self.ops)

    def elsewhere(self, op: OpId) -> tuple[StepIndex, StepIndex]:
        """The stretch ``[start, end)`` between the two parts of the call that ``op`` belongs to.

        In it ops of other calls run, or nothing does: the op is not recomputed there, so that calls
        may come back in any order.
        """
        if not self.boundaries:
            return 0, 0
        part = self.part_of(op)
        later = (k for k in range(part + 1, len(self.parts)) if self.parts[k].call == self.parts[part].call)
        back = next(later, None)
        return self.parts[part].end, len(self.ops) if back is None else self.parts[back - 1].end

    @cached_property
    def base_ns(self) -> Nanoseconds:
        """Time of running every op of the base order once."""
        return sum(op.ns for op in self.ops)

    @cached_property
    def fingerprint(self) -> str:
        """Hash structure, arguments, shapes, dtypes and environment.

        Times, temporaries, hidden bytes and the machine's alignment are left out.
        """
        digest = hashlib.sha256()
        for storage in self.storages:
            digest.update(
                f"s{storage.bytes},{storage.kind},{storage.resident_at_end:d}{storage.external:d}"
                f"{storage.outside:d},{storage.label}{f',{storage.home}' if storage.home else ''};".encode()
            )
        for op in self.all_ops():
            digest.update(
                f"o{op.target},{op.reads},{op.creates},{op.mutates},{int(op.flags)},{op.phase},{op.variant};".encode()
            )
            digest.update(msgspec.json.encode((op.arguments, op.keywords, op.results)))
            digest.update(f"w{op.over};".encode() if op.over >= 0 else b"")
        for part in self.parts:
            views = [given.view for given in part.inputs]
            digest.update(msgspec.json.encode((part.end, part.call, views, part.outputs)))
        digest.update(repr(sorted(self.environment)).encode())
        return digest.hexdigest()


def fitted(graph: Graph, alignment: Bytes) -> Graph:
    """Charge every allocation in multiples of a machine's alignment.

    The fingerprint stays: a plan says which alignment its addresses have.

    Example:
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 100),))
        >>> fitted(graph, 512).storages[0].size
        512
    """
    if graph.alignment == alignment and all(s.alignment == alignment for s in graph.storages):
        return graph
    storages = tuple(msgspec.structs.replace(s, alignment=alignment) for s in graph.storages)
    return msgspec.structs.replace(graph, storages=storages, alignment=alignment)
