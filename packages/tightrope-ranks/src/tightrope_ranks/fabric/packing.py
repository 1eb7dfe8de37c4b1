"""What a call carries, as items of a letter and back.

Idea        A tensor is copied to where the peer reads it, a handle goes as its number, all else as
            MessagePack. A list or dict with tensors or handles inside goes as itself, with a mark in place
            of each of them, and they follow as items of their own.
Guarantee   Tensors inside lists and dicts are copied and owned as those that stand alone. Items of a letter
            that is refused leave no memory behind.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor

from tightrope.core import TightropeError
from tightrope_ranks.fabric.letters import (
    SIMPLE,
    HandleItem,
    InlineItem,
    Item,
    NestItem,
    PlaceItem,
    PlainItem,
    SingleItem,
    changed,
    divided,
    flat,
    joined,
)
from tightrope_ranks.fabric.peer import Peer
from tightrope_ranks.fabric.references import References, RemoteTensor
from tightrope_ranks.fabric.window import SharedWindow

_LEAVES: Final = (Tensor, RemoteTensor, SharedWindow)


class ItemPacking:
    """Items of the letters of one node.

    Args:
        number: of this node.
        nodes: numbers of all nodes.
        references: tensors that this node keeps for others.
        let_go: where handles that nobody here has are put.
        count: tells a node how many handles on one of its tensors another node has more.
    """

    def __init__(
        self,
        number: int,
        nodes: Iterable[int],
        references: References,
        let_go: "deque[tuple[int, int]]",
        count: Callable[[int, int, int, int], None],
    ) -> None:
        self._number, self._nodes = number, frozenset(nodes)
        self._references, self._let_go, self._count = references, let_go, count

    def pack(self, peer: Peer, values: Iterable[Any], *, result: bool = False) -> tuple[Item, ...]:
        """Return values as items; those of results may stay where they are until `settle`.

        Raises:
            TightropeError: one cannot be sent; then nothing is left of the others.
        """
        items: list[Item] = []
        try:
            for value in values:
                items.append(self._packed(peer, value, result))
        except TightropeError:
            self.undo(peer, [one for one in flat(items) if not (isinstance(one, PlaceItem) and one.own)])
            raise
        return tuple(items)

    def settle(self, peer: Peer, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Return results as they go; see `Peer.settled`."""
        try:
            return peer.settled(items)
        except TightropeError:
            self._undo_handles(peer, items)
            raise

    def undo(self, peer: Peer, items: Iterable[Item]) -> None:
        """Let go of what items hold that are not sent after all."""
        items = tuple(items)
        peer.undo(items)
        self._undo_handles(peer, items)

    def unpack(self, peer: Peer, items: Iterable[Item]) -> list[Any]:
        """Return what a peer sent.

        Raises:
            TightropeError: an item names what is not there; the blocks of the others are told to be free.
        """
        found: list[Any] = []
        wrong: list[str] = []  # no errors, whose frames would keep the values
        for item in items:
            try:
                found.append(self._unpacked(peer, item))
            except Exception as error:  # whatever is wrong with one, the blocks of the others are let go of
                wrong.append(str(error))
        if wrong:
            found.clear()
            raise TightropeError(f"node {peer.number} sent a value that cannot be: {wrong[0]}")
        return found

    def inside(self, value: Any) -> Any:
        """Return a value of a call within this node as another one would get it: its tensors are copies."""

        def given(one: Any) -> Any:
            if isinstance(one, RemoteTensor) and one.owner == self._number:
                return self._references.get(one.key)
            return one.detach().clone() if isinstance(one, Tensor) else one

        return changed(value, given)

    def _undo_handles(self, peer: Peer, items: Iterable[Item]) -> None:
        for item in flat(items):
            if isinstance(item, HandleItem) and item.owner != peer.number:
                self._count(item.owner, item.key, peer.number, -1)

    def _packed(self, peer: Peer, value: Any, result: bool) -> Item:
        if isinstance(value, _LEAVES):
            return self._single(peer, value, result)
        if type(value) in SIMPLE:
            return PlainItem(value)
        raw, leaves = divided(value, _LEAVES)
        if not leaves:
            return PlainItem(raw)
        inner = self.pack(peer, leaves, result=result)
        return NestItem(raw, tuple(one for one in inner if not isinstance(one, PlainItem | NestItem)))

    def _single(self, peer: Peer, value: Any, result: bool) -> SingleItem:
        if isinstance(value, Tensor):
            return peer.packed_result(value) if result else peer.packed(value)
        if isinstance(value, RemoteTensor):
            if value.owner != peer.number:
                self._count(value.owner, value.key, peer.number, 1)
            return HandleItem(value.owner, value.key)
        if value.node != peer.number:
            return self._single(peer, value.data, result)
        return peer.packed_window(value)

    def _unpacked(self, peer: Peer, item: Item) -> Any:
        if isinstance(item, PlaceItem | InlineItem):
            return peer.unpacked(item)
        if isinstance(item, PlainItem):
            return item.value
        if isinstance(item, NestItem):
            return joined(item.value, self.unpack(peer, item.inner))
        if item.owner == self._number:
            return self._references.get(item.key)
        if item.owner not in self._nodes:
            raise TightropeError(f"there is no node {item.owner}.")
        return RemoteTensor(item.owner, item.key, self._let_go)
