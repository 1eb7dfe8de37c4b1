"""Generators of random numbers that are objects of the user's: traces of ours leave them to Python.

Dynamo draws from a copy of a `random.Random` as it was when it traced, and sets the object to the state that
follows: every later call would draw the same numbers. What is not traced is drawn as in eager.
"""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def leave_random_objects(is_ours: Callable[[], bool]) -> None:
    """Let Dynamo break graphs where it would draw from a `random.Random`, where a trace ``is_ours``."""
    from torch._dynamo.variables.misc import RandomVariable

    name = "is_supported_random_obj"
    known = getattr(RandomVariable, name)

    def supported(value: Any) -> bool:
        return not is_ours() and known(value)

    setattr(RandomVariable, name, staticmethod(supported))
