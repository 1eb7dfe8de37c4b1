"""Memory that two processes share: tensors are written once and read in place.

Idea        Each node has arenas of its own for each peer. They have no name in the file system: the
            descriptor goes through the socket, so memory ends with the last process that has it, however that
            process ends. A block is free again when every storage on it is gone on both sides.
Guarantee   A block that somebody can still read is never written again.
Complexity  First fit over the free ranges of a peer.
Gaps        Linux only (``memfd_create``). What was touched once stays with the arena.
"""

import fcntl
import mmap
import os
import weakref
from bisect import bisect
from collections import Counter, deque
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tightrope.core import Bytes, Offset, PagingError, format_bytes, round_up
from tightrope.core.units import ALIGNMENT

LEAST: Final[Bytes] = 64 * 2**20
"""Bytes of an arena; only what is touched takes memory."""
_LARGE: Final[Bytes] = 2**20
"""Blocks from here on begin on a page."""


class SharedArena:
    """A stretch of memory with blocks, of the sender of what is in it.

    Args:
        size: bytes.
        descriptor: of memory that a peer shared, which stays the caller's; None = make it.

    Attributes:
        blocks: bytes and holds of each, by where it begins.
        num_drops: blocks that became free.

    Raises:
        PagingError: the memory of the peer is smaller, or may become so.
    """

    def __init__(self, size: Bytes, descriptor: int | None = None) -> None:
        self.size = size
        self.descriptor = -1
        if descriptor is None:
            self.descriptor = os.memfd_create("tightrope", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            _check(descriptor, size)
        self.map = mmap.mmap(self.descriptor if descriptor is None else descriptor, size)
        self._free: list[tuple[Offset, Bytes]] = [(0, size)]
        self.blocks: dict[Offset, tuple[Bytes, int]] = {}
        self.num_drops = 0
        self._lent: Counter[Offset] = Counter()
        self._readers: Counter[Offset] = Counter()
        self._ended: deque[Offset] = deque()  # threads that collect garbage append to it, whatever others do
        self._storages: dict[int, Any] = {}
        base = np.frombuffer(self.map, np.uint8, 1)
        self.address = base.ctypes.data

    def take(self, size: Bytes) -> Offset | None:
        """Take a block for one reader; None where there is no room."""
        need = round_up(max(size, 1), ALIGNMENT)
        alignment = mmap.PAGESIZE if need >= _LARGE else ALIGNMENT
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
        self.num_drops += 1
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

    def lend(self, at: Offset) -> None:
        """Say that one of the readers of a block is the peer."""
        self._lent[at] += 1

    def take_back(self, at: Offset, size: Bytes = 0) -> bool:
        """End what was lent; False where the peer has no such block, or it has fewer bytes."""
        if not self._lent[at] or size > self.blocks[at][0]:
            return False
        self._lent[at] -= 1
        if not self._lent[at]:
            del self._lent[at]
        return True

    def num_readers(self, at: Offset) -> int:
        """How many storages in this process look into a block."""
        while self._ended:
            ended = self._ended.popleft()
            self._readers[ended] -= 1
            if not self._readers[ended]:
                del self._readers[ended]
        return self._readers[at]

    def tensor(self, at: Offset, size: Bytes, gone: "deque[Offset] | None" = None) -> Tensor:
        """Return bytes as a tensor; when its storage is gone, the offset is put into ``gone``."""
        if not 0 <= at <= at + size <= self.size:
            raise PagingError(f"a peer named bytes [{at}, {at + size}) of an arena of {self.size} bytes.")
        array = np.frombuffer(self.map, np.uint8, size, at)
        if gone is not None:
            key = id(array)

            def end(_: object) -> None:
                del self._storages[key]
                self._ended.append(at)
                gone.append(at)

            self._storages[key] = weakref.ref(array, end)
            self._readers[at] = self.num_readers(at) + 1
        return torch.from_numpy(array)

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last tensor on it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _check(descriptor: int, size: Bytes) -> None:
    """Refuse memory that ends before it should, or that its maker could cut: reading there ends a process."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory file
        seals = 0
    if not 0 < size <= os.fstat(descriptor).st_size or not seals & fcntl.F_SEAL_SHRINK:
        raise PagingError(f"a peer shared an arena of {size} bytes that is smaller, or may become so.")


class SharedArenas:
    """What one node shares with one peer: arenas that grow up to a limit.

    Args:
        limit: bytes in all.
    """

    def __init__(self, limit: Bytes) -> None:
        self.limit = limit
        self.arenas: list[SharedArena] = []
        self.new: list[int] = []

    def arena(self, number: int) -> SharedArena | None:
        """An arena; None where there is none of the number."""
        return self.arenas[number] if 0 <= number < len(self.arenas) else None

    @property
    def live(self) -> Bytes:
        """Bytes of blocks that somebody reads."""
        return sum(size for arena in self.arenas for size, _ in arena.blocks.values())

    @property
    def num_drops(self) -> int:
        """Blocks that became free."""
        return sum(arena.num_drops for arena in self.arenas)

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
