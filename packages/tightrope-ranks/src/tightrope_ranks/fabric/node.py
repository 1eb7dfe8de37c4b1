"""One node: it sends calls, and answers those of others whenever it waits.

Idea        One socket per peer. A letter is sent without waiting: what a full socket does not take is queued.
            Who waits serves every call that arrives meanwhile, so nodes may call each other in circles; of
            several threads that wait, one reads (`SocketTurns`). A tensor is copied once, into memory shared
            with the peer; a result that was given, and that its node let go of, is not copied (`Peer`).
Guarantee   A call ends: with its result, with the error of the other node, after its time-out, or when the
            peer ends, which the kernel tells at once by closing its socket, however it ended. Whatever a peer
            sends, a node goes on: a letter that is wrong is answered with an error, or dropped and counted.
Complexity  One letter each way per call; one copy per tensor and direction, none where a function returns
            what it was given and keeps nothing of it.
Gaps        A function that never returns blocks its thread; its callers end by their time-outs. A thread that
            serves a call looks at its own time-out when the function has returned.
"""

import itertools
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from torch import Tensor

from tightrope.core import Bytes, PagingError, RankError, TightropeError
from tightrope_ranks.fabric.incoming import IncomingCall, ServingDepth
from tightrope_ranks.fabric.letters import (
    LETTER,
    HandleItem,
    Item,
    Letter,
    LetterKind,
    PlainItem,
    decode,
    encode,
    heading,
)
from tightrope_ranks.fabric.packing import ItemPacking
from tightrope_ranks.fabric.peer import Peer
from tightrope_ranks.fabric.references import References, RemoteTensor
from tightrope_ranks.fabric.registry import function_of
from tightrope_ranks.fabric.reply import Reply, checked, failed, late
from tightrope_ranks.fabric.turns import SocketTurns
from tightrope_ranks.fabric.window import SharedWindow

SHARED: Final[Bytes] = 4 * 2**30
"""Bytes that a node shares with one peer, at most."""
_IDLE: Final = 0.02
"""Seconds after which what is free is told to peers that are not written to anyway."""
_QUEUED: Final[Bytes] = 4 * LETTER
"""Bytes of letters that wait for room in a socket, from which on calls wait, too."""
_DEEP: Final = 32
"""Calls that one thread serves, each while the one before it waits; more wait until one has ended."""


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
        self._packing = ItemPacking(number, (number, *links), self.references, self._let_go, self.count)
        self._calls = itertools.count(1)
        self._incoming: deque[IncomingCall] = deque()
        self._turns = SocketTurns()
        self._thread = ServingDepth()
        self._by_socket = {peer.link.fileno(): peer for peer in self.peers.values()}
        for file in self._by_socket:
            self._turns.add(file)
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
        return self._called(LetterKind.CALL, node, name, arguments, timeout)

    def call_async(self, node: int, name: str, *arguments: Any) -> Reply:
        """Begin a call; `Reply.wait` ends it.

        Where too much waits to be sent, this serves others until there is room, or the time is over.
        """
        return self._begin(LetterKind.CALL, node, name, arguments, self.seconds(None))

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
            node: self._begin(LetterKind.CALL, node, name, arguments)
            for node in nodes
            if node not in self.peers or self.lives(node)
        }
        self.pump(lambda: all(reply.done for reply in replies.values()), limit)
        return {node: reply.wait(0) for node, reply in replies.items() if reply.done and not reply.lost}

    def remote(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> RemoteTensor:
        """Call a function that returns one tensor, which stays there; return its handle."""
        found = self._called(LetterKind.KEEP, node, name, arguments, timeout)
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
        with self._turns.lock:
            peer = self._living(node)
            peer.settle_own()
            number, block = peer.own.take(size)
            data = peer.own.arenas[number].tensor(block, size, peer.gone(number))
        return SharedWindow(node, number, block, data)

    def lives(self, node: int) -> bool:
        """Tell whether a node lives, as far as the kernel has told by now; takes in what has arrived."""
        with self._turns.lock:
            free = self._turns.begin(0.0)
        if free:
            self._read_letters(0.0)
        return node == self.number or (node in self.peers and self.peers[node].alive)

    def _called(
        self, kind: LetterKind, node: int, name: str, arguments: Sequence[Any], timeout: float | None
    ) -> Any:
        limit = self.seconds(timeout)
        deadline = time.monotonic() + limit
        return self._begin(kind, node, name, arguments, limit).until(deadline, limit)

    def _begin(
        self, kind: LetterKind, node: int, name: str, arguments: Sequence[Any], limit: float | None = None
    ) -> Reply:
        """Begin a call; ``limit`` are the seconds to wait for room, None = do without."""
        if node == self.number:
            reply = Reply(self, node, name)
            found = function_of(name)(*self._packing.inside(arguments))
            if kind == LetterKind.KEEP:
                reply.end(self._handle(found) if isinstance(found, Tensor) else None, None)
            else:
                own = self._packing.inside(found)
                reply.end(tuple(own) if isinstance(found, tuple | list) else own, None)
            return reply
        peer = self._living(node)
        deadline = time.monotonic() + (limit or 0.0)
        full = limit is not None and peer.queued > _QUEUED
        if full and not self.pump(lambda: peer.queued <= _QUEUED or not peer.alive, limit):
            raise late(name, node, limit or 0.0)
        while True:
            try:
                return self._begun(kind, node, name, arguments)
            except PagingError:  # calls under way give memory back
                if limit is None or not peer.replies or time.monotonic() >= deadline:
                    raise
                self._wait_for_memory(peer, deadline)

    def _begun(self, kind: LetterKind, node: int, name: str, arguments: Sequence[Any]) -> Reply:
        with self._turns.lock:
            peer = self._living(node)
            reply, number = Reply(self, node, name), next(self._calls)
            letter = Letter(kind, number, name, self._packing.pack(peer, arguments))
            try:
                self.send(peer, letter)
            except TightropeError:
                self._packing.undo(peer, letter.items)
                raise
            peer.replies[number] = reply
        return reply

    def _wait_for_memory(self, peer: Peer, deadline: float) -> None:
        before = peer.own.num_drops

        def room() -> bool:
            peer.settle_own()
            return peer.own.num_drops != before or not peer.replies

        self.pump(room, min(_IDLE, deadline - time.monotonic()))

    def seconds(self, timeout: float | None) -> float:
        """Return a time-out; None = that of the node.

        Raises:
            TightropeError: it is no number of seconds.
        """
        return checked(self.timeout if timeout is None else timeout)

    def _handle(self, value: Tensor) -> RemoteTensor:
        with self._turns.lock:
            return RemoteTensor(self.number, self.references.keep(value, self.number), self._let_go)

    def _living(self, node: int) -> Peer:
        peer = self.peers.get(node)
        if peer is None:
            raise TightropeError(f"there is no node {node}; there are {sorted((*self.peers, self.number))}.")
        if not peer.alive:
            raise RankError(f"node {node} ended.")
        if self.stopped:
            raise RankError(f"node {self.number} was stopped, and calls no other.")
        return peer

    # --- waiting

    def pump(self, done: Any = None, timeout: float | None = None) -> bool:
        """Take in letters until ``done()``; tell whether that is before the time is over.

        Args:
            done: what ends it; None = only the time, or an order to stop.
            timeout: seconds; None = any.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        lock, turns = self._turns.lock, self._turns
        while True:
            with lock:
                if done() if done is not None else self.stopped:
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                call = self._next_incoming()
                if call is None:
                    wait = left if not self._untold() else _IDLE if left is None else min(_IDLE, left)
                    if not turns.begin(wait):
                        continue
            if call is None:
                self._read_letters(wait)
            else:
                self._serve(call)

    def _read_letters(self, wait: float | None) -> None:
        """Take in what arrives within some seconds, in one's turn."""
        try:
            queued = [file for file, peer in self._by_socket.items() if peer.queued]
            ready = self._turns.poll(queued, wait)
            for file, events in ready:
                self._attend(self._by_socket[file], events)
            if not ready:
                self.tell()
        finally:
            self._turns.end()

    def _next_incoming(self) -> IncomingCall | None:
        """The next call to serve, unless this thread already serves many, one within the other."""
        if not self._incoming or self._thread.depth >= _DEEP:
            return None
        return self._incoming.popleft()

    def _untold(self) -> bool:
        if self._let_go:
            return True
        return any(blocks for peer in self.peers.values() for blocks in peer.freed.values())

    def tell(self) -> None:
        """Tell peers what nobody here needs any more."""
        with self._turns.lock:
            while self._let_go:
                owner, key = self._let_go.popleft()
                self.count(owner, key, self.number, -1)
            for peer in self.peers.values():
                peer.settle_own()
                if peer.alive and any(peer.freed.values()):
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
        """Send a letter, with what is free, and the descriptors of new arenas; or queue it, and go on."""
        new, freed = peer.own.new, peer.take_freed()
        if new or freed:
            arenas = tuple((number, peer.own.arenas[number].size) for number in new)
            letter = msgspec.structs.replace(letter, arenas=arenas, freed=freed)
        try:
            data = encode(letter)
            if len(data) > peer.most:
                said = f"{len(data)} bytes of plain values; at most {peer.most}. Send a tensor of bytes."
                raise TightropeError(f"{letter.name!r}: {said}")
        except TightropeError:
            for number, block in freed:  # the next letter tells them
                peer.freed[number].append(block)
            raise
        descriptors: Sequence[int] = ()
        if new:
            descriptors = [peer.own.arenas[number].descriptor for number in new]
            peer.own.new = []
        if not peer.post(data, descriptors):
            self._turns.ring()  # whoever polls waits for room from now on

    def _attend(self, peer: Peer, events: int) -> None:
        """Write what is queued to a socket that has room, and read one letter from one that has it."""
        if events & select.POLLOUT:
            with self._turns.lock:
                peer.flush()
        if not events & ~select.POLLOUT:
            return
        size, descriptors, whole = peer.received(self._read)
        with self._turns.lock:
            if size < 0 or (not size and events & (select.POLLHUP | select.POLLERR)):
                self._lost(peer)
            elif peer.alive and whole is not None:
                self._take_in(peer, self._read[:size], descriptors, whole)

    def _take_in(self, peer: Peer, data: memoryview, descriptors: Sequence[int], whole: bool) -> None:
        """Do what a letter says; one that is none is answered with an error, or counted."""
        try:
            letter = decode(data)
            if not whole or len(descriptors) != len(letter.arenas):
                raise TightropeError("it is not whole.")
            if descriptors:
                peer.add_arenas(letter.arenas, descriptors)
            if letter.freed:
                peer.drop_freed(letter.freed)
            self._obey(peer, letter)
        except Exception as error:  # a peer may send anything; this node goes on
            self._refuse(peer, heading(data), error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _refuse(self, peer: Peer, head: tuple[int, int] | None, error: Exception) -> None:
        peer.refused += 1
        kind, number = head or (-1, 0)
        said = f"node {self.number} cannot read the letter: {error}"[:2000]
        if kind in (LetterKind.CALL, LetterKind.KEEP) and 0 <= number < 2**63:
            self.send(peer, Letter(LetterKind.ERROR, number, said))
        elif kind in (LetterKind.RESULT, LetterKind.ERROR) and number in peer.replies:
            peer.replies.pop(number).end(None, RankError(f"the answer of node {peer.number}: {said}"))

    def _obey(self, peer: Peer, letter: Letter) -> None:
        match letter.kind:
            case LetterKind.CALL | LetterKind.KEEP:
                given = self._packing.unpack(peer, letter.items)
                if not self.stopped:
                    self._incoming.append(IncomingCall(peer, letter, given))
            case LetterKind.RESULT:
                values = self._packing.unpack(peer, letter.items)
                self._end(peer, letter, values[0] if letter.single else tuple(values), None)
            case LetterKind.ERROR:
                self._end(peer, letter, None, RankError(f"node {peer.number}: {letter.name}"))
            case LetterKind.COUNT:
                key, holder, change = (item.value for item in letter.items if isinstance(item, PlainItem))
                if not all(type(one) is int for one in (key, holder, change)):
                    raise TightropeError(f"node {peer.number} sent a count that is not a number.")
                if holder == self.number or self.peers[holder].alive:  # the handles of others are forgotten
                    self.references.count(key, holder, change)
            case LetterKind.STOP:
                if peer.number != 0:
                    raise TightropeError(f"node {peer.number} may not stop a node.")
                self.stop(f"node {self.number} was stopped")

    def _serve(self, call: IncomingCall) -> None:
        peer, letter = call.peer, call.letter
        self._thread.depth += 1
        try:
            try:
                items, single = self._answer(call)
                with self._turns.lock:
                    if not peer.alive:  # it ended meanwhile
                        return
                    settled = self._packing.settle(peer, items)
                result = Letter(LetterKind.RESULT, letter.number, items=settled, single=single)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the caller gets it, `sys.exit` included; this node goes on
                result = _failure(letter, error)
        finally:
            self._thread.depth -= 1
        with self._turns.lock:
            if not peer.alive:
                return
            try:
                self.send(peer, result)
            except TightropeError as error:
                self._packing.undo(peer, result.items)
                self.send(peer, _failure(letter, error))

    def _answer(self, call: IncomingCall) -> tuple[tuple[Item, ...], bool]:
        """Run the function; when this returns, nothing here has what it was given and returned."""
        peer = call.peer
        found = function_of(call.letter.name)(*call.take())
        with self._turns.lock:
            if call.letter.kind == LetterKind.KEEP:
                kept = isinstance(found, Tensor)
                key = self.references.keep(found, peer.number) if kept else 0
                return (HandleItem(self.number, key) if kept else PlainItem(None),), True
            single = not isinstance(found, tuple | list)
            if not peer.alive:
                return (), single
            return self._packing.pack(peer, [found] if single else found, result=True), single

    def _end(self, peer: Peer, letter: Letter, value: Any, error: RankError | None) -> None:
        reply = peer.replies.pop(letter.number, None)
        if reply is None:
            raise TightropeError(f"there is no call {letter.number}.")
        reply.end(value, error)

    def _lost(self, peer: Peer) -> None:
        peer.alive = False
        self._turns.remove(peer.link.fileno())
        self.references.forget(peer.number)
        peer.end_all(lambda name: f"node {peer.number} ended during {name!r}.", lost=True)
        peer.close()

    # --- the end

    def stop(self, why: str) -> None:
        """Serve no longer, and end the calls that are under way with an error."""
        with self._turns.lock:
            self.stopped = True
            self._incoming.clear()
            for peer in self.peers.values():
                peer.end_all(lambda name: f"{name!r} did not end: {why}.")
            self._turns.ring()

    def stop_all(self) -> None:
        """Stop this node, and tell all others to stop."""
        self.stop("the fabric was closed")
        with self._turns.lock:
            for peer in self.peers.values():
                if peer.alive:
                    peer.clear()
                    self.send(peer, Letter(LetterKind.STOP))

    def close(self) -> None:
        """Close all sockets; peers see that this node ended."""
        self.stop(f"node {self.number} was closed")
        with self._turns.lock:
            self._turns.close()
            for peer in self.peers.values():
                if peer.alive:
                    peer.alive = False
                    peer.close()


def _failure(letter: Letter, error: BaseException) -> Letter:
    return Letter(LetterKind.ERROR, letter.number, failed(letter.name, error))
