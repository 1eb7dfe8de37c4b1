"""Generators of random numbers that are objects of the user's: traces of ours leave them to Python.

Dynamo draws from a copy of a `random.Random` as it was when it traced, and sets the object to the state that
follows: every later call would draw the same numbers. What is not traced is drawn as in eager.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def random_objects_left(is_ours: Callable[[], bool]) -> Iterator[None]:
    """Let Dynamo break graphs where it would draw from a `random.Random`, where a trace ``is_ours``."""
    from torch._dynamo.variables.misc import RandomVariable

    name = "is_supported_random_obj"
    known = getattr(RandomVariable, name)

    def supported(value: Any) -> bool:
        return not is_ours() and known(value)

    with patch.object(RandomVariable, name, staticmethod(supported)):
        yield
