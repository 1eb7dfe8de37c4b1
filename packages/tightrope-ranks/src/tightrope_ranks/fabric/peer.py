"""Another node as this one sees it: its socket, and the memory that both share.

Idea        A letter that the socket does not take waits in a queue, and the node goes on. A tensor that is
            sent is copied once, into a block of this node's memory, where the peer reads it. A result that
            the peer's function was given, and that nobody there has any more, comes back with its block,
            uncopied.
Guarantee   What a function is given, it alone has, and what a call returns, its caller alone has: either may
            write into it. (`SharedWindow` is memory of both, and says so.) What a peer names is looked at
            before it is read: a place outside the memory that both share, or a block that it was not lent,
            is refused.
"""

import array
import ctypes
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import torch
from torch import Tensor

from tightrope.core import Bytes, RankError, TightropeError
from tightrope.core.units import ALIGNMENT, shown
from tightrope_ranks.fabric.arena import SharedArena, SharedArenas
from tightrope_ranks.fabric.letters import DTYPES, LETTER, NAMES, InlineItem, Item, NestItem, PlaceItem, flat
from tightrope_ranks.fabric.reply import Reply
from tightrope_ranks.fabric.window import SharedWindow

_SMALL: Bytes = 2048
"""Bytes of a tensor that goes in the letter."""
_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS, errno.EINTR))
_SEND: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE: Final = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_CONTROL: Final = socket.CMSG_SPACE(64 * 4)
_MOST_ARENAS: Final = 2**16


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
        replies: calls to it that are under way, by number.
        most: bytes of a letter that its socket takes.
        queued: bytes of letters that wait for room in its socket.
        refused: letters of it that were none, or named what is not there, and blocks that it was not lent.
    """

    def __init__(self, number: int, link: socket.socket, shared: Bytes) -> None:
        self.number, self.link = number, link
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            link.setsockopt(socket.SOL_SOCKET, option, 2 * LETTER)
        self.most = min(LETTER, link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 1024)
        self.own = SharedArenas(shared)
        self.theirs: dict[int, SharedArena] = {}
        self.freed: dict[int, deque[int]] = {}
        self.released: list[deque[int]] = []
        self.alive = True
        self.replies: dict[int, Reply] = {}
        self.queued: Bytes = 0
        self.refused = 0
        self._queue: deque[tuple[bytes, Sequence[int]]] = deque()
        self._broken = False

    def close(self) -> None:
        """Give its socket and all memory back."""
        self.own.close()
        self.clear()
        for one in (self.theirs, self.freed, self.released):
            one.clear()
        self.link.close()

    def end_all(self, said: Callable[[str], str], *, lost: bool = False) -> None:
        """End the calls to it that are under way with an error, whose text is made from their names."""
        replies, self.replies = self.replies, {}
        for reply in replies.values():
            reply.end(None, RankError(said(reply.name)), lost=lost)

    # --- letters

    def post(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Send a letter, or queue it where the socket is full; tell whether it was sent."""
        if not self._queue and self._sent(data, descriptors):
            return True
        self._queue.append((data, descriptors))
        self.queued += len(data)
        return False

    def flush(self) -> None:
        """Send what is queued and finds room."""
        while self._queue and self._sent(*self._queue[0]):
            self.queued -= len(self._queue.popleft()[0])

    def received(self, buffer: memoryview) -> tuple[int, Sequence[int], bool | None]:
        """Read a letter: bytes (-1: the socket broke), descriptors, whether it is whole (None: none came)."""
        try:
            size, control, flags, _ = self.link.recvmsg_into([buffer], _CONTROL, _RECEIVE)
        except BlockingIOError:
            return 0, (), None
        except OSError:
            return -1, (), None
        descriptors: Sequence[int] = (
            ()
            if not control
            else [one for _, _, raw in control for one in array.array("i", raw[: len(raw) // 4 * 4]).tolist()]
        )
        return size, descriptors, not flags & _CUT

    def clear(self) -> None:
        """Forget what is queued."""
        self._queue.clear()
        self.queued = 0

    def _sent(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """Whether a letter needs to wait no longer."""
        if self._broken:
            return True
        rights = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        )
        try:
            self.link.sendmsg([data], rights, _SEND)
        except OSError as error:
            if error.errno in _FULL:
                return False
            self._broken = True  # it ended: who waits is told when its socket is read
        return True

    # --- blocks

    def add_arenas(self, arenas: Sequence[tuple[int, Bytes]], descriptors: Sequence[int]) -> None:
        """Take in memory that the peer shares, by number and size; the descriptors stay the caller's.

        Raises:
            TightropeError: a number is taken, or memory is not what the peer says.
        """
        for (number, size), descriptor in zip(arenas, descriptors, strict=True):
            if number in self.theirs or not 0 <= number < _MOST_ARENAS:
                raise TightropeError(f"node {self.number} shared another arena {number}.")
            self.theirs[number] = SharedArena(size, descriptor)
            self.freed[number] = deque()

    def drop_freed(self, freed: Iterable[tuple[int, int]]) -> None:
        """Let go of blocks that the peer no longer reads; those that it was not lent are counted as refused.

        The rest of such a letter holds: a wrong letter may have freed a block that a right one frees later.
        """
        for number, block in freed:
            arena = self.own.arena(number)
            if arena is not None and arena.take_back(block):
                arena.drop(block)
            else:
                self.refused += 1

    def take_freed(self) -> tuple[tuple[int, int], ...]:
        """Blocks of the peer that nobody here reads any more."""
        if not any(self.freed.values()):
            return ()
        return tuple(
            (number, blocks.popleft()) for number, blocks in self.freed.items() for _ in range(len(blocks))
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
        check_tensor(value)
        one = value.detach().resolve_conj().resolve_neg().contiguous()
        size, dtype, shape = one.nbytes, NAMES[one.dtype], tuple(one.shape)
        if size <= _SMALL:
            data = one.view(-1).view(torch.uint8).numpy().tobytes() if size else b""
            return InlineItem(data, dtype, shape)
        return self._copied(one.data_ptr(), size, dtype, shape)

    def packed_result(self, value: Tensor) -> PlaceItem | InlineItem:
        """As `packed`, but leave a tensor where it is that lies in the memory of the peer; see `settled`."""
        check_tensor(value)
        if value.nbytes > _SMALL and value.is_contiguous() and not (value.is_neg() or value.is_conj()):
            data, storage = value.data_ptr(), value.untyped_storage().data_ptr()
            for number, arena in self.theirs.items():
                if 0 <= data - arena.address < arena.size:
                    at, block = data - arena.address, storage - arena.address
                    return PlaceItem(True, number, block, at, NAMES[value.dtype], tuple(value.shape))
        return self.packed(value)

    def settled(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Return results as they go: those in blocks of the peer with their blocks, or copied.

        To be called when whoever made the results has let go of them. A block that somebody here still reads
        is copied, so that what the peer does with it is not seen here.

        Raises:
            PagingError: more is shared with the peer than may be.
        """
        found: list[Item] = []
        try:
            for item in items:
                if isinstance(item, NestItem):
                    item = msgspec.structs.replace(item, inner=self.settled(item.inner))
                elif isinstance(item, PlaceItem) and item.own:
                    item = self._given_back(item)
                found.append(item)
        except TightropeError:  # blocks of the peer that were not reached are still among those to be told
            todo = flat(items[len(found) + 1 :])
            rest = [one for one in todo if not (isinstance(one, PlaceItem) and one.own)]
            self.undo([*found, *rest])
            raise
        return tuple(found)

    def packed_window(self, window: SharedWindow) -> PlaceItem:
        """Let the peer read a window, too."""
        arena = self.own.arenas[window.arena]
        arena.hold(window.block)
        arena.lend(window.block)
        return PlaceItem(False, window.arena, window.block, window.block, "uint8", (window.data.numel(),))

    def _given_back(self, item: PlaceItem) -> PlaceItem:
        arena, freed = self.theirs[item.arena], self.freed[item.arena]
        if not arena.num_readers(item.block) and item.block in freed:
            freed.remove(item.block)
            return item
        return self._copied(arena.address + item.at, _size(item), item.dtype, item.shape)

    def _copied(self, address: int, size: Bytes, dtype: str, shape: tuple[int, ...]) -> PlaceItem:
        self.settle_own()
        number, block = self.own.take(size)
        self.own.arenas[number].lend(block)
        ctypes.memmove(self.own.arenas[number].address + block, address, size)
        return PlaceItem(False, number, block, block, dtype, shape)

    def undo(self, items: Iterable[Item]) -> None:
        """Let go of the blocks of items that are not sent after all."""
        for item in flat(items):
            if isinstance(item, PlaceItem):
                if item.own:
                    self.freed[item.arena].append(item.block)
                elif self.own.arenas[item.arena].take_back(item.block):
                    self.own.arenas[item.arena].drop(item.block)

    def unpacked(self, item: PlaceItem | InlineItem) -> Tensor:
        """Return a tensor that the peer sent.

        Raises:
            TightropeError: it names what is not there.
        """
        dtype = DTYPES.get(item.dtype)
        if dtype is None or any(length < 0 for length in item.shape):
            raise self._no_tensor(item)
        size = _size(item)
        if isinstance(item, InlineItem):
            if len(item.data) != size:
                raise self._no_tensor(item)
            if not size:
                return torch.empty(item.shape, dtype=dtype)
            return torch.frombuffer(bytearray(item.data), dtype=dtype).view(item.shape)
        arena = self.own.arena(item.arena) if item.own else self.theirs.get(item.arena)
        # the storage begins where the block does: it names the block when it is gone, or comes back
        skip = item.at - item.block
        if arena is None or size <= 0 or skip < 0 or skip % dtype.itemsize or item.block % ALIGNMENT:
            raise self._no_tensor(item)
        if item.own and not arena.take_back(item.block, skip + size):
            raise self._no_tensor(item)
        gone = self.gone(item.arena) if item.own else self.freed[item.arena]
        storage = arena.tensor(item.block, skip + size, gone)
        return (storage[skip:] if skip else storage).view(dtype).view(item.shape)

    def _no_tensor(self, item: Item) -> TightropeError:
        return TightropeError(f"node {self.number} sent a tensor that cannot be: {shown(item)}.")


def check_tensor(value: Tensor) -> None:
    """Refuse a tensor that cannot be sent.

    Raises:
        TightropeError: it is none on the CPU, or not dense, or of another dtype.
    """
    fits = value.device.type == "cpu" and value.dtype in NAMES and value.layout == torch.strided
    if not fits or value.is_nested:
        kind = "nested tensor" if value.is_nested else "tensor"
        raise TightropeError(
            f"a {kind} of {value.dtype}, {value.layout}, on {value.device} cannot be sent. "
            f"Give dense ones on cpu, of {', '.join(DTYPES)}."
        )


def _size(item: PlaceItem | InlineItem) -> Bytes:
    size = DTYPES[item.dtype].itemsize
    for length in item.shape:
        size *= length
    return size
