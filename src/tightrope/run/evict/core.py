"""The eviction arena of `native/solvers/evict.hpp`, as a block of eviction uses it.

An arena hands out addresses and evicts storages that can be made again; it never touches their bytes. C++
says what happens to storages, and runs ops again.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from tightrope.core.units import ALIGNMENT, Bytes, Nanoseconds, round_up
from tightrope.native.interface import INTEGER, POINTER, load
from tightrope.run.evict.policies import Policy

_ID: Final = ctypes.c_int32
_CALLS: Final[dict[str, tuple[tuple[Any, ...], Any]]] = {
    "set_options": ((POINTER,), None),
    "pin": ((_ID,), None),
    "unpin": ((_ID,), None),
    "forecast": ((_ID, INTEGER), None),
    "keep": ((_ID,), None),
    "resident": ((_ID,), INTEGER),
    "valid": ((_ID,), INTEGER),
    "recomputable": ((_ID,), INTEGER),
    "base": ((), INTEGER),
    "statistics": ((POINTER,), None),
}
"""Arguments after the handle, and what is returned."""


class _Options(ctypes.Structure):
    _fields_ = [
        (name, INTEGER)
        for name in (
            *("bytes", "small_bytes", "small_limit", "score", "window", "two_ends", "neighbours"),
            *("sample", "forecasts", "keep_temporaries", "best_fit", "log"),
            *("relocate", "patience", "forecast_patience", "copy_rate", "unheld"),
            *("per_byte", "flat", "pairs"),
        )
    ]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What an arena counted since it was made.

    Attributes:
        placed: requests, those that failed included.
        evicting: requests for which something had to be evicted.
        searches: choices of what to evict: one per request with windows, else one per storage.
        evictions: storages evicted by searches.
        evicted_bytes: of those.
        requested_bytes: of the requests that needed evictions.
        failed: requests that fit nowhere.
        search_ns: wall time of finding and evicting, without copies, over all requests that needed it.
        longest_search_ns: of one such request.
        high_water: largest sum of bytes in use.
        used_bytes: in use now.
        free_bytes: free now, in all.
        largest_free: the largest hole of the main range.
        pieces: used and free ones.
        records: of storages, evicted ones included.
        moves: storages moved.
        moved_bytes: of those.
        free_at_search_ppm: sum over searches of free bytes per arena byte, in millionths.
    """

    placed: int
    evicting: int
    searches: int
    evictions: int
    evicted_bytes: Bytes
    requested_bytes: Bytes
    failed: int
    search_ns: Nanoseconds
    longest_search_ns: Nanoseconds
    high_water: Bytes
    used_bytes: Bytes
    free_bytes: Bytes
    largest_free: Bytes
    pieces: int
    records: int
    moves: int
    moved_bytes: Bytes
    free_at_search_ppm: int

    @property
    def fragmentation(self) -> float:
        """Mean share of the arena that was free when something had to be evicted."""
        return self.free_at_search_ppm / 1e6 / self.searches if self.searches else 0.0


@cache
def library() -> ctypes.CDLL:
    """Load what has the calls of ``evict_calls.hpp``."""
    return declare_calls(load("evict"), _CALLS)


def declare_calls(native: ctypes.CDLL, calls: Mapping[str, tuple[tuple[Any, ...], Any]]) -> ctypes.CDLL:
    """Declare some of the calls of ``evict_calls.hpp``."""
    for name, (arguments, result) in calls.items():
        call = getattr(native, f"tightrope_evict_{name}")
        call.argtypes, call.restype = [POINTER, *arguments], result
    return native


def options_block(
    size: Bytes, policy: Policy, *, log: bool = False, simulated: bool = False
) -> ctypes.Structure:
    """Lay out the options of ``evict.hpp`` for an arena of ``size`` bytes under a policy.

    Nothing moves in an arena before C++ has set ``on_moved``, unless it is ``simulated``.
    """
    small = round_up(size // policy.small_share) if policy.small_share else 0
    return _Options(
        *(size, small, policy.small_limit, int(policy.score), policy.window, policy.two_ends),
        *(policy.neighbours, policy.sample, policy.forecasts, policy.keep_temporaries),
        *(
            policy.best_fit,
            log,
            (2 if simulated else 1) * policy.relocate,
            policy.patience,
            policy.forecast_patience,
            policy.copy_rate,
            policy.unheld,
            policy.per_byte,
            policy.flat,
            policy.pairs,
        ),
    )


class EvictionArena:
    """Addresses of ``size`` bytes under a policy.

    Args:
        size: bytes, rounded down to whole units of 64.
        handle: the arena, which its maker frees.
        simulated: nothing is at the addresses, so that storages may move without being copied.

    Attributes:
        native: the library.
    """

    def __init__(self, size: Bytes, handle: int, *, simulated: bool = False) -> None:
        self.size = size // ALIGNMENT * ALIGNMENT
        self.native, self.handle, self._simulated = library(), handle, simulated

    def set_policy(self, policy: Policy) -> None:
        """Go on under another policy; the area for small storages stays as it was made."""
        options = options_block(self.size, policy, simulated=self._simulated)
        self.native.tightrope_evict_set_options(self.handle, ctypes.byref(options))

    def pin(self, storage: int) -> None:
        """Keep it from being evicted until `unpin` has been called as often."""
        self.native.tightrope_evict_pin(self.handle, storage)

    def unpin(self, storage: int) -> None:
        """Take one pin back; what nobody holds or needs is forgotten then."""
        self.native.tightrope_evict_unpin(self.handle, storage)

    def forecast(self, storage: int, next_use: Nanoseconds) -> None:
        """Say when it is used next, on the base clock; -1: unknown."""
        self.native.tightrope_evict_forecast(self.handle, storage, next_use)

    def keep(self, storage: int) -> None:
        """Let its bytes stay when it is released, until they are evicted, while others are made from it."""
        self.native.tightrope_evict_keep(self.handle, storage)

    def resident(self, storage: int) -> bool:
        """Tell whether it has bytes."""
        return bool(self.native.tightrope_evict_resident(self.handle, storage))

    def valid(self, storage: int) -> bool:
        """Tell whether the record exists."""
        return bool(self.native.tightrope_evict_valid(self.handle, storage))

    def recomputable(self, storage: int) -> bool:
        """Tell whether it can be made again."""
        return bool(self.native.tightrope_evict_recomputable(self.handle, storage))

    @property
    def base(self) -> Nanoseconds:
        """The clock of ops that ran for the first time; forecasts are on it."""
        return int(self.native.tightrope_evict_base(self.handle))

    def statistics(self) -> Statistics:
        """Read the counters."""
        out = (INTEGER * len(fields(Statistics)))()
        self.native.tightrope_evict_statistics(self.handle, out)
        return Statistics(*out)
