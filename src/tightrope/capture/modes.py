"""Dispatch modes, inside of which torch captures nothing."""

from typing import Any

from tightrope.capture._eager import innermost_mode


def mode_in_the_way() -> Any:
    """Return the dispatch mode inside of which Dynamo would skip a call, and every later one; None = none.

    A flop counter is one, as is the block of `tightrope.evict`.
    """
    mode = innermost_mode()
    if mode is None or mode.is_infra_mode() or mode.ignore_compile_internals():
        return None
    return mode


def said_of(mode: Any) -> str:
    """Say why nothing is captured inside of a mode.

    >>> said_of(3)
    'inside of int, torch captures nothing'
    """
    return f"inside of {type(mode).__name__}, torch captures nothing"
