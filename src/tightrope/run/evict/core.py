"""The eviction arena of `native/solvers/evict.hpp`, call by call.

An arena hands out addresses and evicts storages that can be made again; it never touches their bytes. The
caller says what happens (placed, produced, pinned, released, changed in place) and runs ops again.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from tightrope.core.units import ALIGNMENT, Bytes, Nanoseconds, Offset, round_up
from tightrope.native.interface import INTEGER, POINTER, load
from tightrope.run.evict.policies import Policy

_ID: Final = ctypes.c_int32
_CHUNK: Final = 4096
_CALLS: Final[dict[str, tuple[tuple[Any, ...], Any]]] = {
    "delete": ((), None),
    "set_options": ((POINTER,), None),
    "begin_op": ((INTEGER, INTEGER, INTEGER, INTEGER), None),
    "place": ((INTEGER,), _ID),
    "outside": ((INTEGER,), _ID),
    "offset": ((_ID,), INTEGER),
    "produced": ((_ID, INTEGER, POINTER, INTEGER), None),
    "settle": ((_ID,), None),
    "root": ((_ID,), None),
    "pin": ((_ID,), None),
    "unpin": ((_ID,), None),
    "touch": ((_ID,), None),
    "advance": ((INTEGER, INTEGER), None),
    "forecast": ((_ID, INTEGER), None),
    "release": ((_ID,), INTEGER),
    "evict": ((_ID,), None),
    "evict_idle": ((_ID,), None),
    "keep": ((_ID,), None),
    "restored": ((_ID, _ID), None),
    "mutated": ((_ID, INTEGER, POINTER, INTEGER), _ID),
    "at_risk": ((_ID, POINTER, INTEGER), INTEGER),
    "take_forgotten": ((POINTER, INTEGER), INTEGER),
    "take_victims": ((POINTER, INTEGER), INTEGER),
    "resident": ((_ID,), INTEGER),
    "valid": ((_ID,), INTEGER),
    "recomputable": ((_ID,), INTEGER),
    "cost_around": ((_ID,), INTEGER),
    "now": ((), INTEGER),
    "base": ((), INTEGER),
    "statistics": ((POINTER,), None),
    "pieces": ((INTEGER, POINTER, INTEGER), INTEGER),
    "decisions": ((POINTER, INTEGER), INTEGER),
    "victims": ((POINTER, INTEGER), INTEGER),
    "clear_decisions": ((), None),
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


@dataclass(frozen=True, slots=True)
class ArenaPiece:
    """Addresses ``[offset, offset + bytes)``; ``owner`` is -1 where they are free; a wall cannot go now."""

    offset: Offset
    bytes: Bytes
    owner: int
    wall: bool
    pins: int


@dataclass(frozen=True, slots=True)
class Victim:
    """One storage evicted by a search: its cost with what was evicted around it, its distance in time."""

    id: int
    bytes: Bytes
    cost: Nanoseconds
    distance: Nanoseconds


@dataclass(frozen=True, slots=True)
class Decision:
    """One request that needed evictions.

    Attributes:
        request: bytes.
        start: of the window.
        end: of the window.
        cost: of the window: sum of cost / staleness, times 2**40 (2**24 where staleness is flattened).
        runner_up: cost of the next best window met, or -1.
        free_before: bytes, over all holes.
        largest_free_before: bytes of the largest hole.
        search_ns: wall time.
        victims: what was evicted, in order.
    """

    request: Bytes
    start: Offset
    end: Offset
    cost: int
    runner_up: int
    free_before: Bytes
    largest_free_before: Bytes
    search_ns: Nanoseconds
    victims: tuple[Victim, ...]


def declare_calls(native: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the calls of ``evict_calls.hpp`` in any library that includes it."""
    native.tightrope_evict_new.restype = POINTER
    native.tightrope_evict_new.argtypes = [POINTER]
    for name, (arguments, result) in _CALLS.items():
        call = getattr(native, f"tightrope_evict_{name}")
        call.argtypes, call.restype = [POINTER, *arguments], result
    return native


@cache
def _library() -> ctypes.CDLL:
    return declare_calls(load("evict"))


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
        policy: who is evicted, and where storages go.
        log: whether `decisions` are kept.
        simulated: nothing is at the addresses, so that storages may move without being copied.
        native: a library that includes ``evict_calls.hpp``; by default the one of this package.
        handle: an arena that such a library has made and frees; by default a new one.
    """

    def __init__(
        self,
        size: Bytes,
        policy: Policy,
        *,
        log: bool = False,
        simulated: bool = False,
        native: ctypes.CDLL | None = None,
        handle: int | None = None,
    ) -> None:
        self.size = size // ALIGNMENT * ALIGNMENT
        self._native = _library() if native is None else declare_calls(native)
        options = options_block(self.size, policy, log=log, simulated=simulated)
        self._simulated = simulated
        self._owned = handle is None
        self._handle = self._native.tightrope_evict_new(ctypes.byref(options)) if handle is None else handle
        self._buffer = (ctypes.c_int32 * _CHUNK)()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._owned:
            self._native.tightrope_evict_delete(self._handle)
        self._handle = None

    def set_policy(self, policy: Policy) -> None:
        """Go on under another policy; the area for small storages stays as it was made."""
        options = options_block(self.size, policy, simulated=self._simulated)
        self._native.tightrope_evict_set_options(self._handle, ctypes.byref(options))

    def begin_op(
        self,
        cost: Nanoseconds,
        size: Bytes,
        *,
        largest: Bytes = 0,
        unrecomputable: bool = False,
        again: bool = False,
    ) -> None:
        """Announce the op whose storages are placed next, so that they go to the right end.

        Args:
            cost: its expected time; -1 where it is unknown.
            size: bytes of its results.
            largest: bytes of the largest of them, so that they need not lie side by side; 0: they do.
            unrecomputable: whether its results will have to stay.
            again: whether it ran before.
        """
        flags = unrecomputable | again << 1
        self._native.tightrope_evict_begin_op(self._handle, cost, size, largest, flags)

    def place(self, size: Bytes) -> int:
        """Place a new storage, evicting others where nothing fits; return its id, or -1 if that fails too."""
        return int(self._native.tightrope_evict_place(self._handle, size))

    def outside(self, size: Bytes) -> int:
        """Make a record of a storage whose bytes are not in the arena; return its id."""
        return int(self._native.tightrope_evict_outside(self._handle, size))

    def offset(self, storage: int) -> Offset:
        """Tell where a storage is; -1 where it is evicted or outside."""
        return int(self._native.tightrope_evict_offset(self._handle, storage))

    def produced(self, storage: int, cost: Nanoseconds, parents: Sequence[int]) -> None:
        """Say which storages an op read to make this one: from now on it may be evicted."""
        row = _row(parents)
        self._native.tightrope_evict_produced(self._handle, storage, cost, row, len(parents))

    def settle(self, storage: int) -> None:
        """Say that it will never be made again: it stays until it is released."""
        self._native.tightrope_evict_settle(self._handle, storage)

    def root(self, storage: int) -> None:
        """Say that its address is known outside: it neither moves nor is evicted until it is released."""
        self._native.tightrope_evict_root(self._handle, storage)

    def pin(self, storage: int) -> None:
        """Keep it from being evicted until `unpin` has been called as often."""
        self._native.tightrope_evict_pin(self._handle, storage)

    def unpin(self, storage: int) -> None:
        """Take one pin back; what nobody holds or needs is forgotten then."""
        self._native.tightrope_evict_unpin(self._handle, storage)

    def touch(self, storage: int) -> None:
        """Say that it is used now."""
        self._native.tightrope_evict_touch(self._handle, storage)

    def advance(self, ns: Nanoseconds, *, again: bool = False) -> None:
        """Move the clock by the time of an op; the base clock too unless the op ran ``again``."""
        self._native.tightrope_evict_advance(self._handle, ns, again)

    def forecast(self, storage: int, next_use: Nanoseconds) -> None:
        """Say when it is used next, on the base clock; -1: unknown."""
        self._native.tightrope_evict_forecast(self._handle, storage, next_use)

    def release(self, storage: int) -> bool:
        """Drop the last outside reference; tell whether its bytes are free now."""
        return bool(self._native.tightrope_evict_release(self._handle, storage))

    def evict(self, storage: int) -> None:
        """Drop the bytes of a storage that can be made again."""
        self._native.tightrope_evict_evict(self._handle, storage)

    def evict_idle(self, storage: int) -> None:
        """Drop the bytes of a storage where no op uses it and it can be made again; else do nothing."""
        self._native.tightrope_evict_evict_idle(self._handle, storage)

    def keep(self, storage: int) -> None:
        """Let its bytes stay when it is released, until they are evicted, while others are made from it."""
        self._native.tightrope_evict_keep(self._handle, storage)

    def restored(self, storage: int, source: int) -> None:
        """Move the bytes of ``source`` to a storage that is evicted."""
        self._native.tightrope_evict_restored(self._handle, storage, source)

    def mutated(self, storage: int, cost: Nanoseconds, parents: Sequence[int]) -> int:
        """Record an op in place; return the record of the old version, or -1 if that cannot be made again."""
        row = _row(parents)
        return int(self._native.tightrope_evict_mutated(self._handle, storage, cost, row, len(parents)))

    def at_risk(self, storage: int) -> tuple[int, ...]:
        """List evicted storages that must be restored before the bytes of this one change or go."""
        call = self._native.tightrope_evict_at_risk
        found = int(call(self._handle, storage, self._buffer, _CHUNK))
        if found <= _CHUNK:
            return tuple(self._buffer[:found])
        buffer = (ctypes.c_int32 * found)()
        call(self._handle, storage, buffer, found)
        return tuple(buffer)

    def take_forgotten(self) -> tuple[int, ...]:
        """List records that are gone since the last call; their ids may be used again from now on."""
        return self._drain("take_forgotten")

    def take_victims(self) -> tuple[int, ...]:
        """List what lost its bytes since the last call, where no callback of C++ is set."""
        return self._drain("take_victims")

    def resident(self, storage: int) -> bool:
        """Tell whether it has bytes."""
        return bool(self._native.tightrope_evict_resident(self._handle, storage))

    def valid(self, storage: int) -> bool:
        """Tell whether the record exists."""
        return bool(self._native.tightrope_evict_valid(self._handle, storage))

    def recomputable(self, storage: int) -> bool:
        """Tell whether it can be made again."""
        return bool(self._native.tightrope_evict_recomputable(self._handle, storage))

    def cost_around(self, storage: int) -> Nanoseconds:
        """Compute its cost and that of the classes of evicted storages beside it."""
        return int(self._native.tightrope_evict_cost_around(self._handle, storage))

    @property
    def now(self) -> Nanoseconds:
        """The clock of all ops."""
        return int(self._native.tightrope_evict_now(self._handle))

    @property
    def base(self) -> Nanoseconds:
        """The clock of ops that ran for the first time; forecasts are on it."""
        return int(self._native.tightrope_evict_base(self._handle))

    def statistics(self) -> Statistics:
        """Read the counters."""
        out = (INTEGER * len(fields(Statistics)))()
        self._native.tightrope_evict_statistics(self._handle, out)
        return Statistics(*out)

    def pieces(self, *, small: bool = False) -> tuple[ArenaPiece, ...]:
        """List the pieces in address order, of the main range or of the area for small storages."""
        return tuple(
            ArenaPiece(row[0], row[1], row[2], bool(row[3]), row[4])
            for row in self._rows("pieces", 5, int(small))
        )

    def decisions(self) -> tuple[Decision, ...]:
        """List the logged decisions since `clear_decisions`."""
        victims = [Victim(*row) for row in self._rows("victims", 4)]
        found: list[Decision] = []
        for *numbers, first, count in self._rows("decisions", 10):
            request, start, end, cost, runner_up, free, largest, ns = numbers
            gone = tuple(victims[first : first + count])
            found.append(Decision(request, start, end, cost, runner_up, free, largest, ns, gone))
        return tuple(found)

    def clear_decisions(self) -> None:
        """Forget the logged decisions."""
        self._native.tightrope_evict_clear_decisions(self._handle)

    def _rows(self, name: str, width: int, *arguments: int) -> list[list[int]]:
        call = getattr(self._native, f"tightrope_evict_{name}")
        count = int(call(self._handle, *arguments, None, 0))
        out = (INTEGER * (count * width))()
        call(self._handle, *arguments, out, count)
        flat = list(out)
        return [flat[at : at + width] for at in range(0, len(flat), width)]

    def _drain(self, name: str) -> tuple[int, ...]:
        call, found = getattr(self._native, f"tightrope_evict_{name}"), list[int]()
        while (count := int(call(self._handle, self._buffer, _CHUNK))) == _CHUNK:
            found += self._buffer[:]
        return (*found, *self._buffer[:count])


def _row(ids: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(ids))(*ids)
