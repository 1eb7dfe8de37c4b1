"""Arenas for the steps of one program.

One arena serves step after step. It cannot be taken while blocks in it are alive: those of a
forward whose backward has yet to come keep it leased; those that the user keeps (gradients that
accumulate) make it retire, and the next step gets a fresh one.
"""

import weakref

import torch

from tightrope.core import Bytes
from tightrope.native.hook.allocator import Allocator

_ALL: "weakref.WeakSet[Arenas]" = weakref.WeakSet()


def reclaimable(allocator: Allocator) -> Bytes:
    """Bytes charged for idle arenas without live blocks: the allocator takes them back when it must."""
    return sum(arenas.idle_bytes() for arenas in _ALL if arenas.allocator is allocator)


def trim_idle() -> None:
    """Give back the free pages of every idle arena in which the caller holds blocks, such as gradients."""
    for arenas in _ALL:
        arenas.trim_held()


def trim_all() -> None:
    """Give back the free pages of every idle arena."""
    for arenas in _ALL:
        arenas.trim_all()


class Arenas:
    """The arenas of one program; state of the runtime, used from one thread at a time."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self._idle: list[int] = []
        self._busy: set[int] = set()
        _ALL.add(self)

    def __del__(self) -> None:
        for arena in [*self._idle, *self._busy]:
            self.allocator.retire(arena)

    def idle_bytes(self) -> Bytes:
        """Bytes charged for idle arenas in which no block is alive."""
        infos = [self.allocator.arena(arena) for arena in self._idle]
        return sum(info.charge for info in infos if info.num_blocks == 0)

    def trim_held(self) -> None:
        """Give back the free pages of idle arenas in which blocks are alive."""
        for arena in self._idle:
            if self.allocator.arena(arena).num_blocks:
                self.allocator.trim(arena)

    def trim_all(self) -> None:
        """Give back the free pages of idle arenas."""
        for arena in self._idle:
            self.allocator.trim(arena)

    def reclaim(self) -> tuple[int | None, Bytes]:
        """Lease an arena whose blocks are all dead; retire those that still hold some.

        Returns:
            The arena, or None, and the bytes that it is charged.
        """
        found: int | None = None
        for arena in self._idle:
            if found is None and self._lease(arena):
                found = arena
            else:
                self.allocator.retire(arena)
        self._idle = []
        if found is None:
            return None, 0
        self._busy.add(found)
        return found, self.allocator.arena(found).charge

    def again(self, arena: int) -> bool:
        """Lease the arena that served last, if it is the only idle one and its blocks are all dead."""
        try:
            if self._idle != [arena] or not self.allocator.lease(arena):
                return False
        except torch.OutOfMemoryError:
            return False
        self._idle = []
        self._busy.add(arena)
        return True

    def _lease(self, arena: int) -> bool:
        try:
            return self.allocator.lease(arena)
        except torch.OutOfMemoryError:
            return False

    def fit(self, arena: int | None, size: Bytes) -> int:
        """Return a leased arena of exactly ``size`` bytes, using ``arena`` if it is one.

        Raises:
            torch.OutOfMemoryError: there is no room for it under the limit.
        """
        if arena is not None:
            if self.allocator.arena(arena).bytes == size:
                return arena
            self._busy.discard(arena)
            self.allocator.retire(arena)
        opened = self.allocator.open_arena(size)
        self._busy.add(opened)
        return opened

    def resume(self, arena: int) -> None:
        """Go on in a paused arena.

        Raises:
            torch.OutOfMemoryError: what it gave back no longer fits under the limit.
        """
        self.allocator.resume(arena)

    def trim(self, arena: int) -> None:
        """Give the free pages of a paused arena back now."""
        if arena in self._busy:
            self.allocator.trim(arena)

    def finish(self, arena: int, *, retire: bool = False) -> None:
        """End a step: live blocks stay, free pages may be given back.

        Args:
            arena: leased by `reclaim` or `fit`; one that is not leased any more is left alone.
            retire: never use it again.
        """
        if arena in self._busy:
            self._busy.discard(arena)
            if retire:
                self.allocator.retire(arena)
            else:
                self.allocator.idle(arena)
                self._idle.append(arena)

    def close(self) -> None:
        """Retire everything that no step is using."""
        for arena in self._idle:
            self.allocator.retire(arena)
        self._idle = []
