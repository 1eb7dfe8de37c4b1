"""The memory of another node as a tier for pages.

Idea        The first page of a size registers a window: memory that both nodes have, which the other node
            keeps and counts. Paging out copies a tensor into it, paging in copies it out of it; a page that
            is dropped leaves its window for the next one. So a page takes one copy and no message. Where a
            backend has no windows, every page is a call.
Guarantee   The other node holds at most the limit, windows that wait for pages included: a page beyond it is
            refused before anything is kept. A page comes back bit by bit, once or many times, until it is
            dropped; a node that ended is an error, as soon as the kernel has told.
Complexity  One copy each way; one message per window.
Gaps        Windows are matched by their exact size; others are given back only where room is needed, or by
            `RemoteMemory.trim`.
"""

import itertools
import os
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from tightrope.core import Bytes, PagingError, RankError, Tier, format_bytes
from tightrope_ranks.fabric.registry import register
from tightrope_ranks.fabric.window import SharedWindow

_PAGES: Final[dict[tuple[str, int], Tensor]] = {}
_names = itertools.count()


class Caller(Protocol):
    """What can call a node."""

    def call(self, node: int, name: str, *arguments: Any) -> Any:
        """Call a registered function on a node."""


@register("tightrope.page.keep")
def keep(store: str, key: int, limit: Bytes, page: Tensor) -> bool:
    """Keep a page; False where that would be more than the limit."""
    if _held(store) + page.nbytes > limit:
        return False
    _PAGES[store, key] = page
    return True


@register("tightrope.page.give")
def give(store: str, key: int) -> Tensor:
    """Return a page."""
    return _PAGES[store, key]


@register("tightrope.page.drop")
def drop(store: str, key: int) -> None:
    """Let a page go."""
    _PAGES.pop((store, key), None)


@dataclass(slots=True)
class _RemotePlace:
    """Where a page is: its key on the node, and the window, or None where the backend has none."""

    key: int
    size: Bytes
    window: SharedWindow | None


@dataclass(slots=True)
class _RemotePage:
    place: _RemotePlace
    dtype: torch.dtype
    shape: torch.Size


def _held(store: str) -> Bytes:
    return sum(page.nbytes for (name, _), page in _PAGES.items() if name == store)


class RemoteMemory:
    """Pages on another node.

    Args:
        fabric: that reaches it.
        node: number.
        limit: bytes of pages, at most.
        windows: whether to keep shared memory for the next pages, where the fabric has windows.

    Attributes:
        held: bytes of pages there.
        registered: bytes there, windows without a page included.
    """

    def __init__(self, fabric: Caller, node: int, limit: Bytes, *, windows: bool = True) -> None:
        self.fabric, self.node, self.limit = fabric, node, limit
        self.name = f"{os.getpid()} {next(_names)}"
        self.held: Bytes = 0
        self.registered: Bytes = 0
        apart = node != getattr(fabric, "number", None)
        self._shared: Any = fabric if windows and apart and hasattr(fabric, "window") else None
        self._keys = itertools.count()
        self._pages: dict[int, _RemotePage] = {}
        self._spare: dict[Bytes, list[_RemotePlace]] = {}
        self._told: dict[int, Any] = {}

    def page_out(self, tensor: Tensor) -> int:
        """Copy a tensor to the node, and return the number of the page.

        The tensor may be changed when this returns; that the node has taken a new window is found out when
        its first page is asked for, or by `flush`.

        Raises:
            PagingError: the node has no room, or it ended.
        """
        size = tensor.nbytes
        if self.held + size > self.limit:
            raise PagingError(
                f"a page of {format_bytes(size)} does not fit on node {self.node}: it holds "
                f"{format_bytes(self.held)} of {format_bytes(self.limit)}. Drop pages, or raise the limit."
            )
        self._check_lives()
        place = self._spare_one(size) if size in self._spare else self._registered(size, tensor)
        if place.window is not None:
            place.window.data.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        key = next(self._keys)
        self._pages[key] = _RemotePage(place, tensor.dtype, tensor.shape)
        self.held += size
        return key

    def page_in(self, key: int, out: Tensor) -> None:
        """Copy a page into a tensor.

        Raises:
            PagingError: there is no such page of this size, or the node ended.
        """
        page = self._pages.get(key)
        if page is None:
            raise PagingError(
                f"there is no page {key} on node {self.node}: it was dropped, or is of another store."
            )
        if page.shape != out.shape or page.dtype != out.dtype:
            raise PagingError(
                f"page {key} is {page.dtype} {tuple(page.shape)}, not {out.dtype} {tuple(out.shape)}."
            )
        self._check_lives()
        self._settle(page.place.key)
        window = page.place.window
        if window is None:
            out.copy_(self._call("give", page.place.key))
        else:
            out.copy_(window.data.view(page.dtype).view(page.shape))

    def drop(self, key: int) -> None:
        """Let a page go; its window waits for the next page of this size."""
        page = self._pages.pop(key, None)
        if page is None:
            return
        self.held -= page.place.size
        if page.place.window is not None:
            self._spare.setdefault(page.place.size, []).append(page.place)
        else:
            self._give_back(page.place)

    def trim(self) -> None:
        """Give the windows back that wait for pages."""
        while self._spare:
            self._give_back(self._spare_one(max(self._spare)))

    def flush(self) -> None:
        """Wait until the node has taken every window.

        Raises:
            PagingError: it refused one, or it ended.
        """
        for key in list(self._told):
            self._settle(key)

    def tier(self, *, read: float, write: float, latency: float) -> Tier:
        """Describe it to a planner, with rates that were measured (bytes per second, and seconds)."""
        return Tier(f"node-{self.node}", self.limit, read=read, write=write, latency=latency)

    def _registered(self, size: Bytes, tensor: Tensor) -> _RemotePlace:
        while self._spare and self.registered + size > self.limit:
            self._give_back(self._spare_one(max(self._spare)))
        key = next(self._keys)
        try:
            if self._shared is not None and size:
                window = self._shared.window(self.node, size)
                arguments = (self.name, key, self.limit, window)
                self._told[key] = self._shared.call_async(self.node, "tightrope.page.keep", *arguments)
            else:
                window, page = None, tensor.detach().clone()  # where nothing is sent, the page is kept itself
                arguments = (self.name, key, self.limit, page)
                if not self.fabric.call(self.node, "tightrope.page.keep", *arguments):
                    raise PagingError(f"node {self.node} refused page {key}: its store is full.")
        except RankError as error:
            raise PagingError(f"pages on node {self.node}: {error}") from error
        self.registered += size
        return _RemotePlace(key, size, window)

    def _spare_one(self, size: Bytes) -> _RemotePlace:
        place = self._spare[size].pop()
        if not self._spare[size]:
            del self._spare[size]
        return place

    def _give_back(self, place: _RemotePlace) -> None:
        self._call("drop", place.key)
        self._settle(place.key)
        self.registered -= place.size

    def _check_lives(self) -> None:
        if self._shared is not None and not self._shared.lives(self.node):
            raise PagingError(f"pages on node {self.node}: node {self.node} ended.")

    def _settle(self, key: int) -> None:
        reply = self._told.pop(key, None)
        try:
            if reply is not None and not reply.wait():
                raise PagingError(f"node {self.node} refused page {key}: its store is full.")
        except RankError as error:
            raise PagingError(f"pages on node {self.node}: {error}") from error

    def _call(self, what: str, *arguments: Any) -> Any:
        try:
            return self.fabric.call(self.node, f"tightrope.page.{what}", self.name, *arguments)
        except RankError as error:
            raise PagingError(f"pages on node {self.node}: {error}") from error
