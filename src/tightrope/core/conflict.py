"""Why a placement missed."""

from dataclasses import dataclass

from tightrope.core.units import Bytes


@dataclass(frozen=True, slots=True)
class Conflict:
    """A small set of intervals that was not placed within a capacity.

    Attributes:
        core: indices of the intervals, ascending.
        start: first instant at which one of them is alive.
        end: first instant after all of them.
        need: bytes that the core takes: its load where that exceeds the capacity, else the smallest
            peak found for it.
        proved: no placement of the core fits. Otherwise none was found.
    """

    core: tuple[int, ...]
    start: int
    end: int
    need: Bytes
    proved: bool
