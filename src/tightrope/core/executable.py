"""What runs, instruction by instruction: the one value between a plan and everything that runs it.

A *buffer* is one allocation: a copy of a storage, a temporary of a kernel, or memory that the caller
holds. A run may write its result over an input that nothing needs any more (`tightrope.core.Op.over`):
it allocates nothing for it, and the buffer goes on as that of the result. Buffers are numbered in the
order in which they appear, and every tensor in an instruction looks into one (`View.base`). The list is
flat; what happens inside a kernel stands with its `Run`.

    space 1 ^      +--2--+            Alloc(0) Resume          the caller's memory, and its inputs
            | +-1--+     |            Run(a, inside=Alloc(1))
            | |    +--3--|-+          Run(b, inside=Alloc(2), Alloc(3))
            +-+----+-----+-+-> time   Release(1) Release(2) Return

Normal form: a buffer is released right after the last instruction that touches it, several in
ascending order. So nothing is held for longer than it is needed, and equal plans give equal lists.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Final, Literal, TypeAlias

import msgspec

from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.units import Bytes, Nanoseconds, Offset, OpId, StorageId, round_up
from tightrope.core.values import Argument, Input, Result
from tightrope.core.wire import Collective, Decode, Encode, Recv, Send


class Space(msgspec.Struct, frozen=True):
    """One memory.

    Attributes:
        name: what blocks and messages call it.
        capacity: bytes.
        alignment: allocations in it are charged and placed in multiples of this.
        tier: memory tier of the machine, 0 = the fastest.
        device: torch-style name.
    """

    name: str
    capacity: Bytes
    alignment: Bytes = 1
    tier: int = 0
    device: str = "cpu"


CALLER: Final = 0
"""Space of what the caller holds: parameters, buffers, optimizer state, inputs."""
ARENA: Final = 1
"""Space of planned addresses."""
HEAP: Final = 2
"""Space of what is handed to the caller while the step goes on; addresses come from the runtime."""
SLOWER: Final = 3
"""First space of a slower tier: tier k is space ``SLOWER + k - 1``. What the caller holds there begins before
the first resume, and is never released."""


class Alloc(msgspec.Struct, frozen=True, tag="alloc", array_like=True, repr_omit_defaults=True):
    """A buffer begins.

    Attributes:
        buffer: its number.
        space: position in ``Executable.spaces``.
        bytes: as requested; charged and placed in multiples of the space's alignment.
        offset: address in the space, -1 where the runtime or the caller chooses.
        storage: that it is a copy of, -1 for a temporary.
    """

    buffer: int
    space: int
    bytes: Bytes
    offset: Offset = -1
    storage: StorageId = -1


class Release(msgspec.Struct, frozen=True, tag="release", array_like=True):
    """A buffer ends."""

    buffer: int


class Run(msgspec.Struct, frozen=True, tag="run", array_like=True, repr_omit_defaults=True):
    """Call a kernel.

    Attributes:
        op: of the graph that it runs.
        target: what is called, e.g. ``aten.mm.default``.
        arguments: positional.
        keywords: by name.
        results: the buffers that its results live in.
        inside: allocations and releases that happen while it runs, in order.
        ns: forecast of its time.
    """

    op: OpId
    target: str
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()
    results: tuple[Result, ...] = ()
    inside: tuple[Alloc | Release, ...] = ()
    ns: Nanoseconds = 0


class Fused(msgspec.Struct, frozen=True, tag="fused", array_like=True, repr_omit_defaults=True):
    """Call one compiled function in place of several kernels.

    Attributes:
        runs: what it computes, in order. Their results are buffers that it allocates, or values inside
            of it without memory of their own, numbered -2, -3, ... in the order in which they are made.
        inside: allocations and releases that happen while it runs, in order.
        ns: forecast of its time.
    """

    runs: tuple[Run, ...]
    inside: tuple[Alloc | Release, ...] = ()
    ns: Nanoseconds = 0


class Copy(msgspec.Struct, frozen=True, tag="copy", array_like=True):
    """Start to copy a buffer into another one, in another tier; `Sync` waits for its end."""

    source: int
    target: int
    engine: int = 1


class Sync(msgspec.Struct, frozen=True, tag="sync", array_like=True):
    """Wait until the copy into a buffer, or the transfer of it, has finished."""

    target: int


class Announce(msgspec.Struct, frozen=True, tag="announce", array_like=True):
    """Control goes to the caller with some of a backward's gradients, and comes back.

    Nothing but the return at the end of the part touches them from here on, nor the inputs of the call that
    they are gradients of: the caller may change either.

    Attributes:
        positions: among the outputs of the part.
        outputs: what the caller gets.
    """

    positions: tuple[int, ...]
    outputs: tuple[Argument, ...]


class Return(msgspec.Struct, frozen=True, tag="return", array_like=True):
    """Control goes to the caller.

    Releases between a return and the next resume are the caller's: it lets go of what it was given.

    Attributes:
        op: of the graph that hands the outputs over, -1 at the end.
        outputs: what the caller gets.
    """

    op: OpId
    outputs: tuple[Argument, ...] = ()


class Resume(msgspec.Struct, frozen=True, tag="resume", array_like=True):
    """Control comes from the caller.

    Attributes:
        part: of the graph that begins.
        inputs: what the caller hands over; views look into buffers of the caller's space.
    """

    part: int
    inputs: tuple[Input, ...] = ()


Wire: TypeAlias = Send | Recv | Collective | Encode | Decode
Instruction: TypeAlias = Alloc | Release | Run | Fused | Copy | Sync | Announce | Return | Resume | Wire


class Executable(msgspec.Struct, frozen=True, dict=True):
    """Spaces and instructions.

    Attributes:
        graph: fingerprint of the graph that it computes.
        spaces: memories; `CALLER`, `ARENA`, `HEAP`, then one for each slower tier.
        instructions: in order.
        machine: name of the profile whose alignments, tiers and engines these are.
        placed: whether allocations in the arena have addresses.
        schema: version of this layout.
    """

    graph: str
    spaces: tuple[Space, ...]
    instructions: tuple[Instruction, ...]
    machine: str = "host"
    placed: bool = True
    schema: Literal[2] = SCHEMA_VERSION

    def flat(self) -> Iterator[Instruction]:
        """Iterate over the instructions, allocations and releases inside one right after it."""
        for instruction in self.instructions:
            yield instruction
            if isinstance(instruction, Run | Fused):
                yield from instruction.inside

    def runs(self) -> Iterator[Run]:
        """Iterate over the ops that run, alone or fused."""
        for instruction in self.instructions:
            if isinstance(instruction, Run):
                yield instruction
            elif isinstance(instruction, Fused):
                yield from instruction.runs

    def charged(self, alloc: Alloc) -> Bytes:
        """Bytes that an allocation takes in its space."""
        return round_up(alloc.bytes, self.spaces[alloc.space].alignment)

    @cached_property
    def num_runs(self) -> int:
        """Number of ops that run, alone or fused."""
        return sum(1 for _ in self.runs())

    @cached_property
    def fingerprint(self) -> str:
        """Hash everything that runs; forecasts of time are left out.

        >>> Executable("0" * 64, (), ()).fingerprint[:8]
        '74234e98'
        """
        digest = hashlib.sha256(self.graph.encode())
        for instruction in self.instructions:
            if isinstance(instruction, Run):
                instruction = msgspec.structs.replace(instruction, ns=0)
            elif isinstance(instruction, Fused):
                runs = tuple(msgspec.structs.replace(run, ns=0) for run in instruction.runs)
                instruction = Fused(runs, instruction.inside)
            digest.update(msgspec.json.encode(instruction))
        digest.update(msgspec.json.encode(self.spaces))
        return digest.hexdigest()
