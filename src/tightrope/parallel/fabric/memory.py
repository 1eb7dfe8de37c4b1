"""The memory of another node as a tier for pages.

Idea        Paging out copies a tensor once, into memory that both nodes have; the other node keeps it. Paging
            in copies it once, from there. Between hosts, a backend that copies through the network does the
            same.
Guarantee   The other node holds at most the limit: a page beyond it is refused before anything is kept. A
            page comes back bit by bit, once or many times, until it is dropped; a node that ended is an
            error.
Complexity  One copy each way.
"""

import itertools
import os
from typing import Any, Final, Protocol

from torch import Tensor

from tightrope.core import Bytes, PagingError, RankError, Tier, format_bytes
from tightrope.parallel.fabric.registry import register

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


def _held(store: str) -> Bytes:
    return sum(page.nbytes for (name, _), page in _PAGES.items() if name == store)


class RemoteMemory:
    """Pages on another node.

    Args:
        fabric: that reaches it.
        node: number.
        limit: bytes of pages, at most.
    """

    def __init__(self, fabric: Caller, node: int, limit: Bytes) -> None:
        self.fabric, self.node, self.limit = fabric, node, limit
        self.name = f"{os.getpid()} {next(_names)}"
        self.held: Bytes = 0
        self._keys = itertools.count()
        self._sizes: dict[int, Bytes] = {}
        self._kept: dict[int, Any] = {}

    def page_out(self, tensor: Tensor) -> int:
        """Copy a tensor to the node, and return the number of the page.

        The tensor may be changed when this returns; that the node has taken the page is found out when the
        page is asked for, or by `flush`.

        Raises:
            PagingError: the node has no room, or it ended.
        """
        size = tensor.nbytes
        if self.held + size > self.limit:
            raise PagingError(
                f"a page of {format_bytes(size)} does not fit on node {self.node}: it holds "
                f"{format_bytes(self.held)} of {format_bytes(self.limit)}. Drop pages, or raise the limit."
            )
        key = next(self._keys)
        begin = getattr(self.fabric, "call_async", None)
        arguments = ("tightrope.page.keep", self.name, key, self.limit, tensor)
        try:
            if begin is not None:
                self._kept[key] = begin(self.node, *arguments)
            else:
                self.fabric.call(self.node, *arguments)
        except RankError as error:
            raise PagingError(f"pages on node {self.node}: {error}") from error
        self._sizes[key] = size
        self.held += size
        return key

    def page_in(self, key: int, out: Tensor) -> None:
        """Copy a page into a tensor.

        Raises:
            PagingError: there is no such page of this size, or the node ended.
        """
        if key not in self._sizes:
            raise PagingError(
                f"there is no page {key} on node {self.node}: it was dropped, or is of another store."
            )
        page = self._call("give", key)
        self._settle(key)  # letters of one node arrive in order: it was taken before this answer
        if page.shape != out.shape or page.dtype != out.dtype:
            raise PagingError(
                f"page {key} is {page.dtype} {tuple(page.shape)}, not {out.dtype} {tuple(out.shape)}."
            )
        out.copy_(page)

    def drop(self, key: int) -> None:
        """Let a page go."""
        self._call("drop", key)
        self._settle(key)
        self.held -= self._sizes.pop(key, 0)

    def flush(self) -> None:
        """Wait until the node has taken every page.

        Raises:
            PagingError: it refused one, or it ended.
        """
        for key in list(self._kept):
            self._settle(key)

    def tier(self, *, read: float, write: float, latency: float) -> Tier:
        """Describe it to a planner, with rates that were measured (bytes per second, and seconds)."""
        return Tier(f"node-{self.node}", self.limit, read=read, write=write, latency=latency)

    def _settle(self, key: int) -> None:
        reply = self._kept.pop(key, None)
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
