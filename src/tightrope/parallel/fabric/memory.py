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
    if held(store) + page.nbytes > limit:
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


@register("tightrope.page.held")
def held(store: str) -> Bytes:
    """Bytes of the pages of a store."""
    return sum(page.nbytes for (name, _), page in _PAGES.items() if name == store)


class RemoteMemory:
    """Pages on another node.

    Args:
        fabric: that reaches it.
        node: number.
        limit: bytes of pages, at most.
        name: of the store; pages of equal names on one node share the limit.
    """

    def __init__(self, fabric: Caller, node: int, limit: Bytes, *, name: str = "") -> None:
        self.fabric, self.node, self.limit = fabric, node, limit
        self.name = name or f"store {next(_names)}"
        self._keys = itertools.count()

    def page_out(self, tensor: Tensor) -> int:
        """Copy a tensor to the node, and return the number of the page.

        Raises:
            PagingError: the node has no room, or it ended.
        """
        key = next(self._keys)
        if not self._call("keep", key, self.limit, tensor):
            raise PagingError(
                f"a page of {format_bytes(tensor.nbytes)} does not fit on node {self.node}: {self.name!r} "
                "holds "
                f"{format_bytes(self.held)} of {format_bytes(self.limit)}. Drop pages, or raise the limit."
            )
        return key

    def page_in(self, key: int, out: Tensor) -> None:
        """Copy a page into a tensor.

        Raises:
            PagingError: there is no such page of this size, or the node ended.
        """
        page = self._call("give", key)
        if page.shape != out.shape or page.dtype != out.dtype:
            raise PagingError(
                f"page {key} is {page.dtype} {tuple(page.shape)}, not {out.dtype} {tuple(out.shape)}."
            )
        out.copy_(page)

    def drop(self, key: int) -> None:
        """Let a page go."""
        self._call("drop", key)

    @property
    def held(self) -> Bytes:
        """Bytes of pages on the node."""
        size: Bytes = self._call("held")
        return size

    def tier(self, *, read: float, write: float, latency: float) -> Tier:
        """Describe it to a planner, with rates that were measured (bytes per second, and seconds)."""
        return Tier(f"node-{self.node}", self.limit, read=read, write=write, latency=latency)

    def _call(self, what: str, *arguments: Any) -> Any:
        try:
            return self.fabric.call(self.node, f"tightrope.page.{what}", self.name, *arguments)
        except RankError as error:
            raise PagingError(f"pages on node {self.node}: {error}") from error
