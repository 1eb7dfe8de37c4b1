"""Policies of eviction: who goes when nothing fits, and at which end of the arena storages are placed.

    coop      the cheapest window of neighbouring pieces; cost / staleness, summed (NeurIPS 2023)
    dtr       one by one: cost / (size * staleness) (ICLR 2021)
    dte       as dtr, with the free bytes beside a storage added to its size (MegEngine)
    lru       one by one: the least recently used
    size      one by one: the largest
    planned   as coop, with the distance to the next use in place of staleness where a forecast holds

The cost of a storage is that of its op and of the classes of evicted storages beside it. With `coop` it is
that of the evicted storages alone that it depends on or that depend on it: in a backward pass nearly all that
is evicted becomes one class, and then a sum of gradients, which takes the whole pass to make again, counts no
more than an activation does. What was made again only on the way to others goes before what the loop holds.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final

from tightrope.core import TightropeError
from tightrope.core.units import Bytes


class Score(enum.IntEnum):
    """What is smallest for the one that goes; the numbers are those of ``evict_search.hpp``."""

    COST_STALENESS = 0
    COST_SIZE_STALENESS = 1
    COST_ROOM_STALENESS = 2
    STALENESS = 3
    SIZE = 4


_SWITCHES: Final = (
    *("window", "two_ends", "in_place", "sample", "forecasts", "keep_temporaries", "soft_pins", "relocate"),
    *("per_byte", "flat", "pairs", "best_fit"),
)
_MOST: Final = 2**40
_NUMBERS: Final = (
    ("neighbours", 0, 2),
    *((name, 0, _MOST) for name in ("patience", "forecast_patience", "small_share", "small_limit")),
    *((name, 1, _MOST) for name in ("copy_rate", "unheld")),
)
"""Names of fields, and the least and the most that each may be."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Switches of the arena and of those who run ops in it.

    Attributes:
        name: as users write it.
        score: of one storage; windows add up ``COST_STALENESS``.
        window: evict the cheapest window of neighbours; else one storage after another.
        two_ends: place what is cheap to make per byte from the right end, the rest from the left.
        in_place: ops in place leave a record of the old version; else a storage is copied first.
        neighbours: the cost of evicted neighbours counts: 0: not, 1: that of the classes of evicted storages
            beside it, 2: that of those alone that it depends on or that depend on it, the former the more,
            the more of the arena they take.
        sample: score about sqrt(n) storages drawn at random, not all n.
        forecasts: use forecasts of the next use.
        keep_temporaries: what was made again on the way to another storage stays until it is evicted; else it
            goes once no op reads it.
        soft_pins: inputs of ops that wait for other inputs may go where nothing else can.
        relocate: storages that no op uses may move, so that every free byte is of use.
        patience: percent of the mean time between two uses that is added to every staleness.
        forecast_patience: the same for the distance to a forecast use.
        copy_rate: bytes per microsecond of a move.
        unheld: what nobody holds, and is there only to make others from it, weighs one part in so many.
        per_byte: of windows that need all their pieces for the request the one with the least cost per byte
            that it frees goes, as later requests use what is left over; else the one with the least cost.
        flat: staleness counts by its power of 3/4, so that cost decides the more; else as it is.
        pairs: two that go for the same request, of which one is made from the other, cost what they would one
            after the other; else as if each went alone.
        best_fit: place into the smallest hole that fits; else into the first from the storage's end.
        small_share: one part in so many of the arena is for small storages, which stay; 0: no such area.
        small_limit: bytes of the largest small storage.

    Raises:
        TightropeError: a switch is not True or False, or a number is not one that the arena knows.
    """

    name: str
    score: Score = Score.COST_STALENESS
    window: bool = True
    two_ends: bool = True
    in_place: bool = True
    neighbours: int = 1
    sample: bool = False
    forecasts: bool = False
    keep_temporaries: bool = True
    soft_pins: bool = False
    relocate: bool = False
    patience: int = 0
    forecast_patience: int = 0
    copy_rate: int = 10_000
    unheld: int = 1
    per_byte: bool = False
    flat: bool = False
    pairs: bool = False
    best_fit: bool = False
    small_share: int = 0
    small_limit: Bytes = 10 * 1024

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TightropeError(f"{name}={getattr(self, name)!r}: give True or False.")
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise TightropeError(f"{name}={value!r}: give a whole number from {least} to {most}.")
        if not isinstance(self.name, str) or not isinstance(self.score, Score):
            raise TightropeError(f"name={self.name!r}, score={self.score!r}: give text and a Score.")


COOP: Final = Policy(
    "coop",
    relocate=True,
    soft_pins=True,
    best_fit=True,
    neighbours=2,
    unheld=64,
    per_byte=True,
    flat=True,
    pairs=True,
)
COOP_AS_PUBLISHED: Final = Policy("coop_as_published")
DTR: Final = Policy("dtr", Score.COST_SIZE_STALENESS, window=False, two_ends=False)
DTE: Final = Policy("dte", Score.COST_ROOM_STALENESS, window=False, two_ends=False)
LRU: Final = Policy("lru", Score.STALENESS, window=False, two_ends=False)
SIZE: Final = Policy("size", Score.SIZE, window=False, two_ends=False)
PLANNED: Final = replace(COOP, name="planned", forecasts=True)

POLICIES: Final = {policy.name: policy for policy in (COOP, DTR, DTE, LRU, SIZE, PLANNED)}


def policy(name: str) -> Policy:
    """Find a policy by its name.

    Raises:
        TightropeError: there is none.

    Example:
        >>> policy("coop").window
        True
    """
    if name not in POLICIES:
        raise TightropeError(f"no policy is called {name!r}; there are: {', '.join(POLICIES)}.")
    return POLICIES[name]
