"""Another node as this one sees it: its socket, and the memory that both share.

Idea        A tensor that is sent is copied once, into a block of this node's memory, where the peer reads it.
            A result that the peer's function was given, and that nobody there has any more, comes back with
            its block, uncopied.
Guarantee   What a function is given, it alone has, and what a call returns, its caller alone has: either may
            write into it. (`SharedWindow` is memory of both, and says so.)
"""

import ctypes
import socket
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from tightrope.core import Bytes, TightropeError
from tightrope_ranks.fabric.arena import SharedArena, SharedArenas
from tightrope_ranks.fabric.letters import DTYPES, LETTER, NAMES, InlineItem, Item, PlaceItem

_SMALL: Bytes = 2048
"""Bytes of a tensor that goes in the letter."""


class Peer:
    """Another node.

    Args:
        number: of the node.
        link: a socket that keeps the borders of letters.
        shared: bytes that may be shared with it.

    Attributes:
        own: memory that this node shares with it.
        theirs: memory that it shares with this node.
        freed: blocks of ``theirs`` that nobody here reads any more, by arena; to be told.
        released: blocks of ``own`` that came back and that nobody here reads any more, by arena.
        alive: whether it did not end.
    """

    def __init__(self, number: int, link: socket.socket, shared: Bytes) -> None:
        self.number, self.link = number, link
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            link.setsockopt(socket.SOL_SOCKET, option, 2 * LETTER)
        self.own = SharedArenas(shared)
        self.theirs: list[SharedArena] = []
        self.freed: list[deque[int]] = []
        self.released: list[deque[int]] = []
        self.alive = True

    def close(self) -> None:
        """Give its socket and all memory back."""
        self.own.close()
        for one in (self.theirs, self.freed, self.released):
            one.clear()
        self.link.close()

    # --- blocks

    def add_arena(self, size: Bytes, descriptor: int) -> None:
        """Take in memory that the peer shares."""
        self.theirs.append(SharedArena(size, descriptor))
        self.freed.append(deque())

    def take_freed(self) -> tuple[tuple[int, int], ...]:
        """Blocks of the peer that nobody here reads any more."""
        if not any(self.freed):
            return ()
        return tuple(
            (number, blocks.popleft()) for number, blocks in enumerate(self.freed) for _ in range(len(blocks))
        )

    def gone(self, arena: int) -> deque[int]:
        """Where own blocks of an arena are put when nobody here reads them any more."""
        while len(self.released) < len(self.own.arenas):
            self.released.append(deque())
        return self.released[arena]

    def settle_own(self) -> None:
        """Let go of own blocks that nobody here reads any more."""
        for number, blocks in enumerate(self.released):
            while blocks:
                self.own.arenas[number].drop(blocks.popleft())

    # --- tensors

    def packed(self, value: Tensor) -> PlaceItem | InlineItem:
        """Copy a tensor to where the peer reads it: into the letter, or into a block.

        Raises:
            TightropeError: it is none that can be sent.
            PagingError: more is shared with the peer than may be.
        """
        _check(value)
        one = value.detach().resolve_conj().resolve_neg().contiguous()
        size, dtype, shape = one.nbytes, NAMES[one.dtype], tuple(one.shape)
        if size <= _SMALL:
            data = one.view(-1).view(torch.uint8).numpy().tobytes() if size else b""
            return InlineItem(data, dtype, shape)
        return self._copied(one.data_ptr(), size, dtype, shape)

    def packed_result(self, value: Tensor) -> PlaceItem | InlineItem:
        """As `packed`, but leave a tensor where it is that lies in the memory of the peer; see `settled`."""
        _check(value)
        if value.nbytes > _SMALL and value.is_contiguous() and not (value.is_neg() or value.is_conj()):
            data, storage = value.data_ptr(), value.untyped_storage().data_ptr()
            for number, arena in enumerate(self.theirs):
                if 0 <= data - arena.address < arena.size:
                    at, block = data - arena.address, storage - arena.address
                    return PlaceItem(True, number, block, at, NAMES[value.dtype], tuple(value.shape))
        return self.packed(value)

    def settled(self, items: Iterable[Item]) -> tuple[Item, ...]:
        """Return results as they go: those in blocks of the peer with their blocks, or copied.

        To be called when whoever made the results has let go of them. A block that somebody here still reads
        is copied, so that what the peer does with it is not seen here.

        Raises:
            PagingError: more is shared with the peer than may be.
        """
        found: list[Item] = []
        try:
            for item in items:
                found.append(self._given_back(item) if isinstance(item, PlaceItem) and item.own else item)
        except TightropeError:
            self.undo(found)
            raise
        return tuple(found)

    def _given_back(self, item: PlaceItem) -> PlaceItem:
        arena, freed = self.theirs[item.arena], self.freed[item.arena]
        if not arena.readers.get(item.block) and item.block in freed:
            freed.remove(item.block)
            return item
        return self._copied(arena.address + item.at, _size(item), item.dtype, item.shape)

    def _copied(self, address: int, size: Bytes, dtype: str, shape: tuple[int, ...]) -> PlaceItem:
        self.settle_own()
        number, block = self.own.take(size)
        ctypes.memmove(self.own.arenas[number].address + block, address, size)
        return PlaceItem(False, number, block, block, dtype, shape)

    def undo(self, items: Iterable[Item]) -> None:
        """Let go of the blocks of items that are not sent after all."""
        for item in items:
            if isinstance(item, PlaceItem):
                if item.own:
                    self.freed[item.arena].append(item.block)
                else:
                    self.own.arenas[item.arena].drop(item.block)

    def unpacked(self, item: PlaceItem | InlineItem) -> Tensor:
        """Return a tensor that the peer sent.

        Raises:
            TightropeError: it names what is not there.
        """
        if isinstance(item, InlineItem):
            if not item.data:
                return torch.empty(item.shape, dtype=DTYPES[item.dtype])
            return torch.frombuffer(bytearray(item.data), dtype=DTYPES[item.dtype]).view(item.shape)
        arenas = self.own.arenas if item.own else self.theirs
        if item.dtype not in DTYPES or item.arena >= len(arenas):
            raise TightropeError(f"node {self.number} sent a tensor that cannot be: {item}.")
        gone = self.gone(item.arena) if item.own else self.freed[item.arena]
        # the storage begins where the block does: it names the block when it is gone, or comes back
        skip = item.at - item.block
        storage = arenas[item.arena].tensor(item.block, skip + _size(item), gone)
        return (storage[skip:] if skip else storage).view(DTYPES[item.dtype]).view(item.shape)


def _check(value: Tensor) -> None:
    if value.device.type != "cpu" or value.dtype not in NAMES or value.layout != torch.strided:
        raise TightropeError(
            f"a tensor of {value.dtype}, {value.layout}, on {value.device} cannot be sent; make it dense and "
            "move it to cpu."
        )


def _size(item: PlaceItem) -> Bytes:
    size = DTYPES[item.dtype].itemsize
    for length in item.shape:
        size *= length
    return size
