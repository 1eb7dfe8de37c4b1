"""What is asked of an estimate, read before any work."""

from typing import Final

from tightrope.core import TightropeError, parse_bytes

STATES: Final = {"none": 0.0, "sgd": 0.0, "momentum": 1.0, "adam": 2.0, "adamw": 2.0}
"""What optimizers keep, in multiples of the parameters' bytes."""


def check_asked(budget: str | None, optimizer: str) -> None:
    """Refuse what cannot be read, before any work.

    Raises:
        TightropeError: the budget is no amount of memory, or there is no such optimizer.
    """
    if budget is not None:
        parse_bytes(budget, whole=1)
    if optimizer not in STATES:
        raise TightropeError(f"no optimizer {optimizer!r}: there are {', '.join(STATES)}.")
