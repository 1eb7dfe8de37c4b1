"""Measured beside promised: what a compiled step takes on this computer, and on the emulated board."""

import os
from pathlib import Path

import msgspec

from tightrope.core import Bytes
from tightrope_micro.compile import Manifest, read_manifest
from tightrope_micro.emit import PageCounts
from tightrope_micro.emulate import INSTRUCTIONS_PER_TICK, missing_tools, run_on_board
from tightrope_micro.host import c_compiler, run_on_host


class Profile(msgspec.Struct, frozen=True):
    """What a compiled step promises, and what it took.

    Attributes:
        manifest: promised.
        arena: bytes of the array as linked; None where nothing could be built.
        pages: of one step, as counted; None where nothing could be run.
        static: bytes of static RAM on the emulated board.
        stack: most bytes of the stack there.
        rom: bytes of code and constants there.
        instructions: of one step there.
        notes: what was left out, and why.
    """

    manifest: Manifest
    arena: Bytes | None = None
    pages: PageCounts | None = None
    static: Bytes | None = None
    stack: Bytes | None = None
    rom: Bytes | None = None
    instructions: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def ram(self) -> Bytes | None:
        """All RAM on the emulated board."""
        return None if self.static is None or self.stack is None else self.static + self.stack

    @property
    def holds(self) -> bool:
        """Whether everything that was measured is as promised, and something was."""
        promised = self.manifest
        if self.arena is None:
            return False
        inside = self.ram is None or (self.ram <= promised.ram and (self.stack or 0) <= promised.stack)
        return inside and self.arena == promised.arena and self.pages == promised.pages


def profile(folder: str | os.PathLike[str]) -> Profile:
    """Build and run one step of a compiled step where that can be done, and count.

    Args:
        folder: that `CompiledStep.write` wrote.

    Raises:
        NativeError: the C does not build, or stops.
        TightropeError: the folder holds no compiled step.
    """
    manifest = read_manifest(folder)
    sample = (Path(folder) / "sample.bin").read_bytes()
    notes = []
    found = Profile(manifest)
    if c_compiler() is None:
        notes.append("not run on this computer: no C compiler (cc, gcc or clang)")
    else:
        here = run_on_host(folder, [sample])
        found = msgspec.structs.replace(found, arena=here.arena, pages=here.pages)
    if missing := missing_tools():
        notes.append(f"not run on the emulated board: {missing}")
    else:
        board = run_on_board(folder, [sample], count=True)
        found = msgspec.structs.replace(
            found, arena=board.arena, pages=board.pages, static=board.static, stack=board.stack,
            rom=board.rom, instructions=board.ticks * INSTRUCTIONS_PER_TICK,
        )  # fmt: skip
    return msgspec.structs.replace(found, notes=tuple(notes))
