"""A call under way."""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from tightrope.core import RankError, TightropeError
from tightrope.core.units import shown

_LONGEST: Final = 2_000_000
"""Seconds of a time-out, at most: the kernel counts milliseconds in 31 bits."""


class ReplyNode(Protocol):
    """The node that a call was begun on."""

    def seconds(self, timeout: float | None) -> float:
        """Return a time-out; None = that of the node."""

    def pump(self, done: Callable[[], bool], timeout: float) -> bool:
        """Take in letters until ``done()``; tell whether that is before the time is over."""


class Reply:
    """A call under way."""

    def __init__(self, node: ReplyNode, peer: int, name: str) -> None:
        self._node, self._peer, self.name = node, peer, name
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
        return self.until(time.monotonic() + limit, limit)

    def until(self, deadline: float, limit: float) -> Any:
        """As `wait`, until a time of the monotonic clock; ``limit`` are the seconds that an error names."""
        if not self._node.pump(lambda: self.done, deadline - time.monotonic()):
            raise late(self.name, self._peer, limit)
        if self.error is not None:
            raise self.error
        return self.value

    def end(self, value: Any, error: RankError | None, *, lost: bool = False) -> None:
        """Set how it ended."""
        self.value, self.error, self.lost, self.done = value, error, lost, True


def checked(timeout: float) -> float:
    """Return a time-out in seconds.

    Raises:
        TightropeError: it is none.
    """
    if not isinstance(timeout, int | float) or not 0 <= timeout <= _LONGEST:
        raise TightropeError(
            f"timeout={shown(timeout)}: give a number of seconds from 0 to {_LONGEST:,}, as in timeout=5."
        )
    return timeout


def failed(name: str, error: BaseException) -> str:
    """Return what a call says that raised, as text that can be sent whatever the error's own text is."""
    try:
        own = str(error)
    except Exception:  # a class of users may write no text of itself
        own = "it has no text of its own"
    said = f"{name!r} raised {type(error).__name__}: {own}"
    return said[:2000].encode("utf-8", "backslashreplace").decode()


def late(name: str, node: int, limit: float) -> RankError:
    """Return the error of a call whose time is over."""
    return RankError(
        f"{name!r} on node {node} took more than {limit:g} s. Give it more (timeout=), or end that node."
    )
