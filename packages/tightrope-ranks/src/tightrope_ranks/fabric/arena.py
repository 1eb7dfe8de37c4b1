"""Memory that two processes share: tensors are written once and read in place.

Idea        Each node has arenas of its own for each peer. They have no name in the file system: the
            descriptor goes through the socket, so memory ends with the last process that has it, however that
            process ends. A block is free again when every storage on it is gone on both sides.
Guarantee   A block that somebody can still read is never written again.
Complexity  First fit over the free ranges of a peer.
Gaps        Linux only (``memfd_create``). What was touched once stays with the arena.
"""

import mmap
import os
import weakref
from bisect import bisect
from collections import deque
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tightrope.core import Bytes, Offset, PagingError, format_bytes, round_up

LEAST: Final[Bytes] = 64 * 2**20
"""Bytes of an arena; only what is touched takes memory."""
_ALIGNMENT: Final[Bytes] = 64
_LARGE: Final[Bytes] = 2**20
"""Blocks from here on begin on a page."""


class SharedArena:
    """A stretch of memory with blocks, of the sender of what is in it.

    Args:
        size: bytes.
        descriptor: of memory that a peer shared; None = make it.

    Attributes:
        blocks: bytes and holds of each, by where it begins.
        readers: how many storages in this process look into a block.
    """

    def __init__(self, size: Bytes, descriptor: int | None = None) -> None:
        own = descriptor is None
        self.size = size
        self.descriptor = os.memfd_create("tightrope") if descriptor is None else descriptor
        if own:
            os.ftruncate(self.descriptor, size)
        self.map = mmap.mmap(self.descriptor, size)
        if not own:
            self.close()  # the map has one of its own
        self._free: list[tuple[Offset, Bytes]] = [(0, size)]
        self.blocks: dict[Offset, tuple[Bytes, int]] = {}
        self.readers: dict[Offset, int] = {}
        self._storages: dict[int, Any] = {}
        base = np.frombuffer(self.map, np.uint8, 1)
        self.address = base.ctypes.data

    def take(self, size: Bytes) -> Offset | None:
        """Take a block for one reader; None where there is no room."""
        need = round_up(max(size, 1), _ALIGNMENT)
        alignment = mmap.PAGESIZE if need >= _LARGE else _ALIGNMENT
        for number, (start, length) in enumerate(self._free):
            at = round_up(start, alignment)
            if at + need <= start + length:
                rest = [(start, at - start), (at + need, start + length - at - need)]
                self._free[number : number + 1] = [one for one in rest if one[1]]
                self.blocks[at] = (need, 1)
                return at
        return None

    def hold(self, at: Offset) -> None:
        """Add a reader."""
        size, holds = self.blocks[at]
        self.blocks[at] = (size, holds + 1)

    def drop(self, at: Offset) -> None:
        """Take a reader away; the block is free after the last one."""
        size, holds = self.blocks[at]
        if holds > 1:
            self.blocks[at] = (size, holds - 1)
            return
        del self.blocks[at]
        free = self._free
        number = bisect(free, (at, size))
        if number < len(free) and at + size == free[number][0]:
            size += free.pop(number)[1]
        if number and sum(free[number - 1]) == at:
            number -= 1
            start, length = free.pop(number)
            at, size = start, length + size
        free.insert(number, (at, size))

    def tensor(self, at: Offset, size: Bytes, gone: "deque[Offset] | None" = None) -> Tensor:
        """Return bytes as a tensor; when its storage is gone, the offset is put into ``gone``."""
        if not 0 <= at <= at + size <= self.size:
            raise PagingError(f"a peer named bytes [{at}, {at + size}) of an arena of {self.size} bytes.")
        array = np.frombuffer(self.map, np.uint8, size, at)
        if gone is not None:
            key = id(array)

            def end(_: object) -> None:
                del self._storages[key]
                self.readers[at] -= 1
                if not self.readers[at]:
                    del self.readers[at]
                gone.append(at)

            self._storages[key] = weakref.ref(array, end)
            self.readers[at] = self.readers.get(at, 0) + 1
        return torch.from_numpy(array)

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last tensor on it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SharedArenas:
    """What one node shares with one peer: arenas that grow up to a limit.

    Args:
        limit: bytes in all.
    """

    def __init__(self, limit: Bytes) -> None:
        self.limit = limit
        self.arenas: list[SharedArena] = []
        self.new: list[int] = []

    @property
    def live(self) -> Bytes:
        """Bytes of blocks that somebody reads."""
        return sum(size for arena in self.arenas for size, _ in arena.blocks.values())

    def take(self, size: Bytes) -> tuple[int, Offset]:
        """Take a block; the number of its arena, and where it begins.

        Raises:
            PagingError: that would be more than the limit.
        """
        for number, arena in enumerate(self.arenas):
            at = arena.take(size)
            if at is not None:
                return number, at
        whole = sum(arena.size for arena in self.arenas)
        need = round_up(max(size, 1), mmap.PAGESIZE)
        if whole + need > self.limit:
            raise PagingError(
                f"{format_bytes(size)} are to be shared with a peer that has {format_bytes(self.live)} of "
                f"{format_bytes(self.limit)}. Drop tensors that came from it, or raise shared=."
            )
        self.arenas.append(SharedArena(min(max(LEAST, need), self.limit - whole)))
        self.new.append(len(self.arenas) - 1)
        at = self.arenas[-1].take(size)
        assert at is not None
        return len(self.arenas) - 1, at

    def close(self) -> None:
        """Give everything back but what somebody here still reads."""
        for arena in self.arenas:
            arena.close()
        self.arenas.clear()
