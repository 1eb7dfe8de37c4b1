"""Weak references to what a user may let go of."""

import weakref
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def alive(reference: "weakref.ref[_T]") -> _T:
    """Return what is referred to, which must be there."""
    found = reference()
    assert found is not None
    return found


def weakly(reference: "weakref.ref[_T]", act: Callable[[_T], None]) -> Callable[[], None]:
    """Make a function that acts on what is referred to as long as that is there."""

    def call() -> None:
        if (found := reference()) is not None:
            act(found)

    return call
