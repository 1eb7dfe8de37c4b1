"""Generators of random numbers that are objects of the user's: traces of ours leave them to Python.

Dynamo draws from a copy of a `random.Random` as it was when it traced, and sets the object to the state that
follows: every later call would draw the same numbers. What is not traced is drawn as in eager.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_OURS = threading.local()


@contextmanager
def random_objects_left() -> Iterator[None]:
    """Break graphs where a `random.Random` of the user's is drawn from, in this thread."""
    _teach()
    _OURS.depth = getattr(_OURS, "depth", 0) + 1
    try:
        yield
    finally:
        _OURS.depth -= 1


@cache
def _teach() -> None:
    """Let Dynamo ask whether a trace is one of ours; others go on as before."""
    from torch._dynamo.variables.misc import RandomVariable

    name = "is_supported_random_obj"
    known = getattr(RandomVariable, name)

    def supported(value: Any) -> bool:
        return not getattr(_OURS, "depth", 0) and known(value)

    setattr(RandomVariable, name, staticmethod(supported))
