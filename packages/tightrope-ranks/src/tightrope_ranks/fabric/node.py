"""One node: it sends calls, and answers those of others whenever it waits.

Idea        One socket per peer, one thread per node. Who waits for an answer serves every call that arrives
            meanwhile, so nodes may call each other in circles. A tensor is copied once, into memory shared
            with the peer; a result that was given, and that its node let go of, is not copied (`Peer`).
Guarantee   A call ends: with its result, with the error of the other node, after its time-out, or when the
            peer ends, which the kernel tells at once by closing its socket, however it ended.
Complexity  One letter each way per call; one copy per tensor and direction, none where a function returns
            what it was given and keeps nothing of it.
Gaps        A function that never returns blocks its node; its callers end by their time-outs.
"""

import array
import itertools
import math
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from tightrope.core import Bytes, RankError, TightropeError
from tightrope_ranks.fabric.letters import (
    LETTER,
    HandleItem,
    InlineItem,
    Item,
    Letter,
    LetterKind,
    PlaceItem,
    PlainItem,
    decode,
    encode,
)
from tightrope_ranks.fabric.peer import Peer
from tightrope_ranks.fabric.references import References, RemoteTensor
from tightrope_ranks.fabric.registry import function_of
from tightrope_ranks.fabric.window import SharedWindow

SHARED: Final[Bytes] = 4 * 2**30
"""Bytes that a node shares with one peer, at most."""
_IDLE: Final = 0.02
"""Seconds after which what is free is told to peers that are not written to anyway."""


class Reply:
    """A call under way."""

    def __init__(self, node: "FabricNode", peer: int, name: str) -> None:
        self._node, self._peer, self._name = node, peer, name
        self.value: Any = None
        self.error: RankError | None = None
        self.done = self.lost = False

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result, serving others meanwhile.

        Args:
            timeout: seconds; None = that of the node.

        Raises:
            RankError: the function raised, the node ended, or the time is over.
        """
        limit = self._node.seconds(timeout)
        if not self._node.pump(lambda: self.done, limit):
            raise RankError(
                f"{self._name!r} on node {self._peer} took more than {limit:g} s. Give it more (timeout=), "
                "or end "
                "that node."
            )
        if self.error is not None:
            raise self.error
        return self.value


class FabricNode:
    """One process of a fabric.

    Args:
        number: of this node.
        links: socket of every other node.
        timeout: seconds of a call where none are given.
        shared: bytes that this node shares with one peer, at most.
    """

    def __init__(
        self,
        number: int,
        links: Mapping[int, socket.socket],
        *,
        timeout: float = 60.0,
        shared: Bytes = SHARED,
    ) -> None:
        self.number, self.timeout = number, timeout
        self.peers = {peer: Peer(peer, link, shared) for peer, link in links.items()}
        self.references = References()
        self._let_go: deque[tuple[int, int]] = deque()
        self._calls = itertools.count(1)
        self._replies: dict[tuple[int, int], Reply] = {}
        self._poll = select.poll()
        self._by_socket = {peer.link.fileno(): peer for peer in self.peers.values()}
        for file in self._by_socket:
            self._poll.register(file, select.POLLIN)
        self.stopped = False
        self._read = memoryview(bytearray(LETTER + 4096))  # one for all letters: new memory costs 20 us each

    # --- calls

    def call(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a registered function on a node and return its result.

        Args:
            node: number; this one's own is called here.
            name: as registered.
            arguments: tensors, handles, plain values.
            timeout: seconds; None = that of the node.

        Raises:
            RankError: the function raised on another node, that node ended, or the time is over. What it
                raises on this node comes as it is.
            TightropeError: the time-out is no number.
        """
        limit = self.seconds(timeout)
        return self.call_async(node, name, *arguments).wait(limit)

    def call_async(self, node: int, name: str, *arguments: Any) -> Reply:
        """Begin a call; `Reply.wait` ends it."""
        return self._begin(LetterKind.CALL, node, name, arguments)

    def call_each(
        self, nodes: Iterable[int], name: str, *arguments: Any, timeout: float | None = None
    ) -> dict[int, Any]:
        """Call a function on several nodes at once; return the results of those that answered, by node.

        A node that ended, or does not answer in time, is left out.

        Args:
            nodes: numbers.
            name: as registered.
            arguments: of each call.
            timeout: seconds of all calls together; None = that of the node.

        Raises:
            RankError: the function raised on another node. What it raises on this node comes as it is.
            TightropeError: the time-out is no number.
        """
        limit = self.seconds(timeout)
        replies = {
            node: self.call_async(node, name, *arguments)
            for node in nodes
            if node not in self.peers or self.lives(node)
        }
        self.pump(lambda: all(reply.done for reply in replies.values()), limit)
        return {node: reply.wait(0) for node, reply in replies.items() if reply.done and not reply.lost}

    def remote(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> RemoteTensor:
        """Call a function that returns one tensor, which stays there; return its handle."""
        limit = self.seconds(timeout)
        found = self._begin(LetterKind.KEEP, node, name, arguments).wait(limit)
        if not isinstance(found, RemoteTensor):
            raise TightropeError(f"{name!r} on node {node} returned no tensor: only tensors can stay there.")
        return found

    def fetch(self, handle: RemoteTensor, timeout: float | None = None) -> Tensor:
        """Return the tensor of a handle."""
        if handle.owner == self.number:
            found = self.references.get(handle.key)
        else:
            found = self.call(handle.owner, "tightrope.fetch", handle, timeout=timeout)
        if not isinstance(found, Tensor):
            raise RankError(f"node {handle.owner} no longer has the tensor {handle.key}.")
        return found

    def window(self, node: int, size: Bytes) -> SharedWindow:
        """Share bytes with another node before there is anything in them; see `SharedWindow`.

        Raises:
            RankError: the node ended.
            PagingError: that is more than may be shared with it.
        """
        peer = self._living(node)
        peer.settle_own()
        number, block = peer.own.take(size)
        data = peer.own.arenas[number].tensor(block, size, peer.gone(number))
        return SharedWindow(node, number, block, data)

    def lives(self, node: int) -> bool:
        """Tell whether a node lives, as far as the kernel has told by now; takes in what has arrived."""
        for file, _ in self._poll.poll(0):
            self._take_in(self._by_socket[file])
        return node == self.number or (node in self.peers and self.peers[node].alive)

    def _begin(self, kind: LetterKind, node: int, name: str, arguments: Sequence[Any]) -> Reply:
        reply = Reply(self, node, name)
        if node == self.number:
            found = function_of(name)(*arguments)
            reply.value = self._handle(found) if kind == LetterKind.KEEP else found
            reply.done = True
            return reply
        peer = self._living(node)
        number = next(self._calls)
        letter = Letter(kind, number, name, self._all_packed(peer, arguments))
        self._replies[node, number] = reply  # before it is sent: sending may tell that the peer ended
        try:
            self.send(peer, letter)
        except TightropeError:
            del self._replies[node, number]
            self._undo(peer, letter.items)
            raise
        return reply

    def seconds(self, timeout: float | None) -> float:
        """Return a time-out; None = that of the node.

        Raises:
            TightropeError: it is no number of seconds.
        """
        limit = self.timeout if timeout is None else timeout
        if not isinstance(limit, int | float) or not math.isfinite(limit):
            raise TightropeError(f"timeout={limit!r}: give a number of seconds, as in timeout=5.")
        return limit

    def _handle(self, value: Tensor) -> RemoteTensor:
        return RemoteTensor(self.number, self.references.keep(value, self.number), self._let_go)

    def _living(self, node: int) -> Peer:
        peer = self.peers.get(node)
        if peer is None:
            raise TightropeError(f"there is no node {node}; there are {sorted((*self.peers, self.number))}.")
        if not peer.alive:
            raise RankError(f"node {node} ended.")
        return peer

    # --- waiting

    def pump(self, done: Any = None, timeout: float | None = None) -> bool:
        """Take in letters until ``done()``; tell whether that is before the time is over.

        Args:
            done: what ends it; None = only the time, or an order to stop.
            timeout: seconds; None = any.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (done() if done is not None else self.stopped):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            wait = left if not self._untold() else _IDLE if left is None else min(_IDLE, left)
            ready = self._poll.poll(None if wait is None else wait * 1e3)
            for file, _ in ready:
                self._take_in(self._by_socket[file])
            if not ready:
                self.tell()
        return True

    def _untold(self) -> bool:
        if self._let_go:
            return True
        return any(blocks for one in self.peers.values() for blocks in one.freed)

    def tell(self) -> None:
        """Tell peers what nobody here needs any more."""
        while self._let_go:
            owner, key = self._let_go.popleft()
            self.count(owner, key, self.number, -1)
        for peer in self.peers.values():
            peer.settle_own()
            if peer.alive and any(peer.freed):
                self.send(peer, Letter(LetterKind.FREED))

    def count(self, owner: int, key: int, holder: int, change: int) -> None:
        """Change the count of a node's handles on a tensor, where it is kept."""
        if owner == self.number:
            self.references.count(key, holder, change)
        elif self.peers[owner].alive:
            values = (PlainItem(key), PlainItem(holder), PlainItem(change))
            self.send(self.peers[owner], Letter(LetterKind.COUNT, items=values))

    # --- letters

    def send(self, peer: Peer, letter: Letter) -> None:
        """Send a letter, with what is free, and the descriptors of new arenas."""
        new = peer.own.new
        arenas = tuple((number, peer.own.arenas[number].size) for number in new)
        freed = peer.take_freed()
        if arenas or freed:
            letter = Letter(
                letter.kind, letter.number, letter.name, letter.items, letter.single, arenas, freed
            )
        try:
            data = encode(letter)
            if len(data) > LETTER:
                said = f"{len(data)} bytes of plain values; at most {LETTER}. Send a tensor of bytes."
                raise TightropeError(f"{letter.name!r}: {said}")
        except TightropeError:
            for number, block in freed:  # the next letter tells them
                peer.freed[number].append(block)
            raise
        peer.own.new = []
        descriptors = [peer.own.arenas[number].descriptor for number in new]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if new else []
        try:
            peer.link.sendmsg([data], rights)
        except OSError:  # it ended; who waits is told when its socket is read
            self._lost(peer)

    def _take_in(self, peer: Peer) -> None:
        try:
            size, rights, _, _ = peer.link.recvmsg_into([self._read], socket.CMSG_SPACE(64 * 4))
        except OSError:
            size, rights = 0, []
        if not size:
            self._lost(peer)
            return
        letter = decode(self._read[:size])
        descriptors = [
            one for _, _, raw in rights for one in array.array("i", raw[: len(raw) // 4 * 4]).tolist()
        ]
        for (_, size), descriptor in zip(letter.arenas, descriptors, strict=True):
            peer.add_arena(size, descriptor)
        for number, block in letter.freed:
            peer.own.arenas[number].drop(block)
        self._obey(peer, letter)

    def _obey(self, peer: Peer, letter: Letter) -> None:
        match letter.kind:
            case LetterKind.CALL | LetterKind.KEEP:
                self._serve(peer, letter)
            case LetterKind.RESULT:
                values = [self._unpacked(peer, item) for item in letter.items]
                self._end((peer.number, letter.number), values[0] if letter.single else tuple(values), None)
            case LetterKind.ERROR:
                error = RankError(f"node {peer.number}: {letter.name}")
                self._end((peer.number, letter.number), None, error)
            case LetterKind.COUNT:
                key, holder, change = (item.value for item in letter.items if isinstance(item, PlainItem))
                if holder == self.number or self.peers[holder].alive:  # the handles of others are forgotten
                    self.references.count(key, holder, change)
            case LetterKind.STOP:
                self.stopped = True
            case LetterKind.FREED:
                pass

    def _serve(self, peer: Peer, letter: Letter) -> None:
        try:
            items, single = self._answer(peer, letter)
            if not peer.alive:  # it ended meanwhile
                return
            result = Letter(LetterKind.RESULT, letter.number, items=peer.settled(items), single=single)
        except Exception as error:  # the caller gets it, whatever it is; this node goes on
            result = _failed(letter, error)
        if not peer.alive:
            return
        try:
            self.send(peer, result)
        except TightropeError as error:
            self._undo(peer, result.items)
            self.send(peer, _failed(letter, error))

    def _answer(self, peer: Peer, letter: Letter) -> tuple[tuple[Item, ...], bool]:
        """Run the function; when this returns, nothing here has what it was given and returned."""
        found = function_of(letter.name)(*[self._unpacked(peer, item) for item in letter.items])
        if letter.kind == LetterKind.KEEP:
            kept = isinstance(found, Tensor)
            key = self.references.keep(found, peer.number) if kept else 0
            return (HandleItem(self.number, key) if kept else PlainItem(None),), True
        single = not isinstance(found, tuple | list)
        if not peer.alive:
            return (), single
        return self._all_packed(peer, [found] if single else found, result=True), single

    def _end(self, call: tuple[int, int], value: Any, error: RankError | None) -> None:
        reply = self._replies.pop(call, None)
        if reply is not None:
            reply.value, reply.error, reply.done = value, error, True

    def _lost(self, peer: Peer) -> None:
        if not peer.alive:
            return
        peer.alive = False
        self._poll.unregister(peer.link.fileno())
        self.references.forget(peer.number)
        for call in [call for call in self._replies if call[0] == peer.number]:
            name = self._replies[call]._name
            self._replies[call].lost = True
            self._end(call, None, RankError(f"node {peer.number} ended during {name!r}."))
        peer.close()

    # --- values

    def _packed(self, peer: Peer, value: Any, *, result: bool = False) -> Item:
        if isinstance(value, Tensor):
            return peer.packed_result(value) if result else peer.packed(value)
        if isinstance(value, RemoteTensor):
            if value.owner != peer.number:
                self.count(value.owner, value.key, peer.number, 1)
            return HandleItem(value.owner, value.key)
        if isinstance(value, SharedWindow):
            if value.node != peer.number:
                return self._packed(peer, value.data)
            peer.own.arenas[value.arena].hold(value.block)
            return PlaceItem(False, value.arena, value.block, value.block, "uint8", (value.data.numel(),))
        return PlainItem(value)

    def _all_packed(self, peer: Peer, values: Iterable[Any], *, result: bool = False) -> tuple[Item, ...]:
        items: list[Item] = []
        try:
            for value in values:
                items.append(self._packed(peer, value, result=result))
        except TightropeError:
            self._undo(peer, [one for one in items if not (isinstance(one, PlaceItem) and one.own)])
            raise
        return tuple(items)

    def _undo(self, peer: Peer, items: Sequence[Item]) -> None:
        peer.undo(items)
        for item in items:
            if isinstance(item, HandleItem) and item.owner != peer.number:
                self.count(item.owner, item.key, peer.number, -1)

    def _unpacked(self, peer: Peer, item: Item) -> Any:
        if isinstance(item, PlaceItem | InlineItem):
            return peer.unpacked(item)
        if isinstance(item, PlainItem):
            return item.value
        if item.owner == self.number:
            return self.references.get(item.key)
        return RemoteTensor(item.owner, item.key, self._let_go)

    def close(self) -> None:
        """Close all sockets; peers see that this node ended."""
        for peer in self.peers.values():
            if peer.alive:
                peer.alive = False
                peer.close()
        self.stopped = True


def _failed(letter: Letter, error: Exception) -> Letter:
    said = f"{letter.name!r} raised {type(error).__name__}: {error}"
    return Letter(LetterKind.ERROR, letter.number, said[:2000])
