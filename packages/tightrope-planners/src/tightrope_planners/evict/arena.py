"""An eviction arena of its own, call by call: what is placed, produced, released and changed in place.

Nothing is at the addresses. The caller says what happens, and runs ops again.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tightrope.core.units import ALIGNMENT, Bytes, Nanoseconds, Offset
from tightrope.native.interface import INTEGER, POINTER
from tightrope.run.evict.core import EvictionArena, declare_calls, library, options_block
from tightrope.run.evict.policies import Policy

_ID: Final = ctypes.c_int32
_CHUNK: Final = 4096
_CALLS: Final[dict[str, tuple[tuple[Any, ...], Any]]] = {
    "delete": ((), None),
    "begin_op": ((INTEGER, INTEGER, INTEGER, INTEGER), None),
    "place": ((INTEGER,), _ID),
    "outside": ((INTEGER,), _ID),
    "offset": ((_ID,), INTEGER),
    "produced": ((_ID, INTEGER, POINTER, INTEGER), None),
    "settle": ((_ID,), None),
    "root": ((_ID,), None),
    "touch": ((_ID,), None),
    "advance": ((INTEGER, INTEGER), None),
    "release": ((_ID,), INTEGER),
    "evict": ((_ID,), None),
    "evict_idle": ((_ID,), None),
    "restored": ((_ID, _ID), None),
    "mutated": ((_ID, INTEGER, POINTER, INTEGER), _ID),
    "at_risk": ((_ID, POINTER, INTEGER), INTEGER),
    "take_forgotten": ((POINTER, INTEGER), INTEGER),
    "take_victims": ((POINTER, INTEGER), INTEGER),
    "cost_around": ((_ID,), INTEGER),
    "now": ((), INTEGER),
    "pieces": ((INTEGER, POINTER, INTEGER), INTEGER),
    "decisions": ((POINTER, INTEGER), INTEGER),
    "victims": ((POINTER, INTEGER), INTEGER),
    "clear_decisions": ((), None),
}
"""Arguments after the handle, and what is returned."""


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


@cache
def _library() -> ctypes.CDLL:
    native = declare_calls(library(), _CALLS)
    native.tightrope_evict_new.restype = POINTER
    native.tightrope_evict_new.argtypes = [POINTER]
    return native


class OwnArena(EvictionArena):
    """Addresses of ``size`` bytes under a policy.

    Args:
        size: bytes, rounded down to whole units of 64.
        policy: who is evicted, and where storages go.
        log: whether `decisions` are kept.
        simulated: storages may move without being copied.
    """

    def __init__(self, size: Bytes, policy: Policy, *, log: bool = False, simulated: bool = False) -> None:
        options = options_block(size // ALIGNMENT * ALIGNMENT, policy, log=log, simulated=simulated)
        super().__init__(size, _library().tightrope_evict_new(ctypes.byref(options)), simulated=simulated)
        self._buffer = (ctypes.c_int32 * _CHUNK)()

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            self.native.tightrope_evict_delete(self.handle)
        self.handle = 0

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
        self.native.tightrope_evict_begin_op(self.handle, cost, size, largest, flags)

    def place(self, size: Bytes) -> int:
        """Place a new storage, evicting others where nothing fits; return its id, or -1 if that fails too."""
        return int(self.native.tightrope_evict_place(self.handle, size))

    def outside(self, size: Bytes) -> int:
        """Make a record of a storage whose bytes are not in the arena; return its id."""
        return int(self.native.tightrope_evict_outside(self.handle, size))

    def offset(self, storage: int) -> Offset:
        """Tell where a storage is; -1 where it is evicted or outside."""
        return int(self.native.tightrope_evict_offset(self.handle, storage))

    def produced(self, storage: int, cost: Nanoseconds, parents: Sequence[int]) -> None:
        """Say which storages an op read to make this one: from now on it may be evicted."""
        row = _row(parents)
        self.native.tightrope_evict_produced(self.handle, storage, cost, row, len(parents))

    def settle(self, storage: int) -> None:
        """Say that it will never be made again: it stays until it is released."""
        self.native.tightrope_evict_settle(self.handle, storage)

    def root(self, storage: int) -> None:
        """Say that its address is known outside: it neither moves nor is evicted until it is released."""
        self.native.tightrope_evict_root(self.handle, storage)

    def touch(self, storage: int) -> None:
        """Say that it is used now."""
        self.native.tightrope_evict_touch(self.handle, storage)

    def advance(self, ns: Nanoseconds, *, again: bool = False) -> None:
        """Move the clock by the time of an op; the base clock too unless the op ran ``again``."""
        self.native.tightrope_evict_advance(self.handle, ns, again)

    def release(self, storage: int) -> bool:
        """Drop the last outside reference; tell whether its bytes are free now."""
        return bool(self.native.tightrope_evict_release(self.handle, storage))

    def evict(self, storage: int) -> None:
        """Drop the bytes of a storage that can be made again."""
        self.native.tightrope_evict_evict(self.handle, storage)

    def evict_idle(self, storage: int) -> None:
        """Drop the bytes of a storage where no op uses it and it can be made again; else do nothing."""
        self.native.tightrope_evict_evict_idle(self.handle, storage)

    def restored(self, storage: int, source: int) -> None:
        """Move the bytes of ``source`` to a storage that is evicted."""
        self.native.tightrope_evict_restored(self.handle, storage, source)

    def mutated(self, storage: int, cost: Nanoseconds, parents: Sequence[int]) -> int:
        """Record an op in place; return the record of the old version, or -1 if that cannot be made again."""
        row = _row(parents)
        return int(self.native.tightrope_evict_mutated(self.handle, storage, cost, row, len(parents)))

    def at_risk(self, storage: int) -> tuple[int, ...]:
        """List evicted storages that must be restored before the bytes of this one change or go."""
        call = self.native.tightrope_evict_at_risk
        found = int(call(self.handle, storage, self._buffer, _CHUNK))
        if found <= _CHUNK:
            return tuple(self._buffer[:found])
        buffer = (ctypes.c_int32 * found)()
        call(self.handle, storage, buffer, found)
        return tuple(buffer)

    def take_forgotten(self) -> tuple[int, ...]:
        """List records that are gone since the last call; their ids may be used again from now on."""
        return self._drain("take_forgotten")

    def take_victims(self) -> tuple[int, ...]:
        """List what lost its bytes since the last call, where no callback of C++ is set."""
        return self._drain("take_victims")

    def cost_around(self, storage: int) -> Nanoseconds:
        """Compute its cost and that of the classes of evicted storages beside it."""
        return int(self.native.tightrope_evict_cost_around(self.handle, storage))

    @property
    def now(self) -> Nanoseconds:
        """The clock of all ops."""
        return int(self.native.tightrope_evict_now(self.handle))

    def pieces(self, *, small: bool = False) -> tuple[ArenaPiece, ...]:
        """List the pieces in address order, of the main range or of the area for small storages."""
        return tuple(
            ArenaPiece(row[0], row[1], row[2], bool(row[3]), row[4])
            for row in _rows(self, "pieces", 5, int(small))
        )

    def decisions(self) -> tuple[Decision, ...]:
        """List the logged decisions since `clear_decisions`."""
        return decisions_of(self)

    def clear_decisions(self) -> None:
        """Forget the logged decisions."""
        self.native.tightrope_evict_clear_decisions(self.handle)

    def _drain(self, name: str) -> tuple[int, ...]:
        call, found = getattr(self.native, f"tightrope_evict_{name}"), list[int]()
        while (count := int(call(self.handle, self._buffer, _CHUNK))) == _CHUNK:
            found += self._buffer[:]
        return (*found, *self._buffer[:count])


def _row(ids: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(ids))(*ids)


def decisions_of(arena: EvictionArena) -> tuple[Decision, ...]:
    """List the decisions that any arena has logged."""
    victims = [Victim(*row) for row in _rows(arena, "victims", 4)]
    found: list[Decision] = []
    for *numbers, first, count in _rows(arena, "decisions", 10):
        request, start, end, cost, runner_up, free, largest, ns = numbers
        gone = tuple(victims[first : first + count])
        found.append(Decision(request, start, end, cost, runner_up, free, largest, ns, gone))
    return tuple(found)


def _rows(arena: EvictionArena, name: str, width: int, *arguments: int) -> list[list[int]]:
    call = getattr(_library(), f"tightrope_evict_{name}")
    count = int(call(arena.handle, *arguments, None, 0))
    out = (INTEGER * (count * width))()
    call(arena.handle, *arguments, out, count)
    flat = list(out)
    return [flat[at : at + width] for at in range(0, len(flat), width)]
