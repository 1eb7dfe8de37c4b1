"""Walk the cases of a branch and bound."""

from collections.abc import Callable, Sequence
from typing import TypeVar

_Case = TypeVar("_Case")


def preorder(root: _Case, children: Callable[[_Case], Sequence[_Case]]) -> list[_Case]:
    """List a case and all below it, each before its children, children in order."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(reversed(children(node)))
    return found
