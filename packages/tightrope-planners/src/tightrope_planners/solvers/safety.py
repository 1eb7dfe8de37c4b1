"""Call the native part of stream safety: arrays in, arrays out.

Positions and clocks are 32-bit, everything else 64-bit. A clock table has one row per op, grouped
by stream and ordered by position; ``base`` has the first row of each stream and the total.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes
from tightrope.native.interface import load

Integers: TypeAlias = npt.NDArray[np.int64]
Positions: TypeAlias = npt.NDArray[np.int32]
Booleans: TypeAlias = npt.NDArray[np.bool_]

METHODS: Final = ("first fit", "dive", "squeaky wheel")

_NUMBER: Final = ctypes.c_int64
_ARRAY: Final = ctypes.c_void_p
_SIGNATURES: Final = {
    "tightrope_clocks": "nnaaanaa",
    "tightrope_note_uses": "naanaa",
    "tightrope_deaths": "naanaaa",
    "tightrope_hazard": "naaaanananaa",
    "tightrope_antichain": "nnaaaanaa",
    "tightrope_place_streams": "nnaaaaannnaa",
}


@dataclass(frozen=True, slots=True, eq=False)
class Issue:
    """Ops in issue order.

    Attributes:
        stream: of each op.
        position: of each op in its stream.
        base: clock row of the first op of each stream, and the number of ops.
    """

    stream: Positions
    position: Positions
    base: Integers

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len(self.base) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Births:
    """Storages to order, sorted by the ops that write them.

    Attributes:
        size: bytes.
        stream: of the writer.
        position: of the writer in its stream.
        deaths: one row per storage: per stream, the first position at which all uses have ended.
    """

    size: Integers
    stream: Positions
    position: Positions
    deaths: Positions


def clocks(issue: Issue, waits: Integers) -> Positions:
    """Compute the vector clock of every op at its start.

    Args:
        issue: the ops.
        waits: rows (earlier op, later op).

    Returns:
        One row per op: leading ops of each stream that have ended.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    found = np.empty((len(issue.stream), issue.num_streams), dtype=np.int32)
    _function("tightrope_clocks")(
        len(issue.stream),
        issue.num_streams,
        *_at(issue.stream, issue.position, issue.base),
        len(waits),
        *_at(waits, found),
    )
    return found


def note_uses(issue: Issue, uses: Integers, last: Positions) -> None:
    """Raise ``last[storage, stream]`` to the largest position of the (storage, op) rows, in place.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    _function("tightrope_note_uses")(
        issue.num_streams, *_at(issue.stream, issue.position), len(uses), *_at(uses, last)
    )


def deaths(issue: Issue, clock: Positions, last: Positions, resident: Booleans) -> Positions:
    """Find the position on every stream from which each storage is dead.

    Args:
        issue: the ops.
        clock: from `clocks`.
        last: last position of a use, per storage and stream; -1 where there is none.
        resident: storages that never die.

    Returns:
        One row per storage; the length of the stream where it never dies.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    found = np.empty_like(last)
    _function("tightrope_deaths")(
        issue.num_streams, *_at(issue.base, clock), len(last), *_at(last, resident, found)
    )
    return found


def hazard(
    issue: Issue, clock: Positions, writers: Integers, reads: Integers, mutates: Integers
) -> tuple[int, int, int] | None:
    """Find two uses of one storage, one of them writing, that nothing orders.

    Args:
        issue: the ops.
        clock: from `clocks`.
        writers: op that allocates each storage, -1 = the caller.
        reads: rows (storage, op).
        mutates: rows (storage, op).

    Returns:
        (storage, earlier op, later op) of the first one, or None.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    found = np.empty(3, dtype=np.int64)
    _function("tightrope_hazard")(
        issue.num_streams,
        *_at(issue.stream, issue.position, issue.base, clock),
        len(writers),
        writers.ctypes.data,
        len(reads),
        reads.ctypes.data,
        len(mutates),
        *_at(mutates, found),
    )
    storage, earlier, later = found.tolist()
    return None if storage < 0 else (storage, earlier, later)


def antichain(births: Births, *, budget: Bytes = -1) -> tuple[Bytes, int, Booleans]:
    """Find the heaviest set of storages of which none precedes another.

    Args:
        births: the storages.
        budget: stop at the first storage with which the heaviest set is above this; -1 = take all.

    Returns:
        The weight in bytes (with a budget that holds: at least the weight); the number of storages
        taken; which of them are in the set (meaningless with a budget that holds).

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    results, witness = np.empty(2, dtype=np.int64), np.empty(len(births.size), dtype=np.bool_)
    _function("tightrope_antichain")(*_counted(births), budget, *_at(witness, results))
    return int(results[0]), int(results[1]), witness


def place_births(
    births: Births, alignments: Integers, *, goal: Bytes, work: int, seed: int
) -> tuple[Integers, Bytes, str]:
    """Give every storage an offset; those of which none precedes the other get disjoint ranges.

    Args:
        births: the storages.
        alignments: one per storage.
        goal: stop at this peak.
        work: units of counted work after which the best answer so far is returned.
        seed: of the random orders.

    Returns:
        Offsets, peak, and the method that found them.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    results, offsets = np.empty(2, dtype=np.int64), np.empty(len(births.size), dtype=np.int64)
    count, width, size, *others = _counted(births)
    _function("tightrope_place_streams")(
        count, width, size, alignments.ctypes.data, *others, goal, work, seed, *_at(offsets, results)
    )
    return offsets, int(results[0]), METHODS[int(results[1])]


def _counted(births: Births) -> tuple[int, int, int, int, int, int]:
    size, stream, position, death = _at(births.size, births.stream, births.position, births.deaths)
    return len(births.size), births.deaths.shape[1], size, stream, position, death


def _at(*arrays: npt.NDArray[np.int64] | Positions | Booleans) -> list[int]:
    assert all(array.flags.c_contiguous for array in arrays)
    return [array.ctypes.data for array in arrays]


@cache
def _function(name: str) -> Callable[..., Any]:
    function: Any = getattr(load("safety"), name)
    function.argtypes = [_NUMBER if kind == "n" else _ARRAY for kind in _SIGNATURES[name]]
    function.restype = None
    return cast(Callable[..., Any], function)
