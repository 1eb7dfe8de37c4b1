"""The graph of one training step: ops over storages.

The unit of memory is the storage (one allocation), not the tensor: views, ``detach`` and
``getitem`` collapse onto the storage that they look into. An op reads storages, creates new ones
and may mutate some in place. ``ops`` stands in the order in which the captured program ran; that
order is the *base order*, and every op of it runs at least once.

An op that must never be drawn twice (dropout, random numbers) may have a *replay*: another op in
``replays`` that creates the same storage bit for bit from what was kept (a mask, a generator
state). Replays never run in the base order; a schedule uses them to recompute.

    inside one op, time runs over its allocation events:

    bytes ^        +--temp--+
          |     +--+--------+-------------- created storage, survives the op
          +-----+-----------+---> event
"""

import hashlib
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

SCHEMA_VERSION: Final = 1


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
            counted as persistent.
        outside: allocated by an op, but outside the arena (values handed to the user in mid-step).
        label: dtype and shape of the root tensor, for people.
        module: path of the module that made it.
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
        id: position in ``Graph.ops``, or ``len(ops) + position`` in ``Graph.replays``.
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
        replay: op in ``Graph.replays`` to run instead when this op is recomputed, or -1.
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
    replay: OpId = -1

    @property
    def recomputable(self) -> bool:
        """Whether a schedule may run this op, or its replay, again."""
        if self.replay >= 0:
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
        replays: alternative producers, see the module text.
        split: number of leading ops that run before control returns to the user (the forward of a
            model whose loss is computed outside); ``len(ops)`` when nothing comes in between.
        name: for people.
        environment: what a plan depends on besides the structure: device, thread count, versions.
        schema: version of this layout.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    replays: tuple[Op, ...] = ()
    split: StepIndex = -1
    name: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    schema: Literal[1] = SCHEMA_VERSION

    def op(self, op: OpId) -> Op:
        """Look up an op of the base order or a replay."""
        return self.ops[op] if op < len(self.ops) else self.replays[op - len(self.ops)]

    def all_ops(self) -> Iterator[Op]:
        """Iterate over the base order, then the replays."""
        yield from self.ops
        yield from self.replays

    def allocations(self, op: Op) -> tuple[Allocation, ...]:
        """List the allocations of ``op``; without a measurement, its created storages in order."""
        if op.allocations or not op.creates:
            return op.allocations
        return tuple(
            Allocation(self.storages[storage].bytes, storage, position, -1)
            for position, storage in enumerate(op.creates)
        )

    @cached_property
    def persistent(self) -> Bytes:
        """Bytes that the caller holds during the whole step (parameters, buffers, state, inputs)."""
        return sum(storage.size for storage in self.storages if storage.external)

    @cached_property
    def boundary(self) -> StepIndex:
        """Number of leading ops before control returns to the user."""
        return len(self.ops) if self.split < 0 else self.split

    @cached_property
    def base_ns(self) -> Nanoseconds:
        """Time of running every op of the base order once."""
        return sum(op.ns for op in self.ops)

    @cached_property
    def fingerprint(self) -> str:
        """Hash the structure, shapes, dtypes and environment; times and temporaries are left out."""
        digest = hashlib.sha256()
        for storage in self.storages:
            digest.update(
                f"s{storage.bytes},{storage.kind},{storage.alignment},{storage.resident_at_end:d}"
                f"{storage.external:d}{storage.outside:d},{storage.label};".encode()
            )
        for op in self.all_ops():
            digest.update(
                f"o{op.target},{op.reads},{op.creates},{op.mutates},{int(op.flags)},{op.phase},{op.replay};".encode()
            )
        digest.update(repr((self.boundary, sorted(self.environment))).encode())
        return digest.hexdigest()
