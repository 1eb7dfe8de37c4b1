"""The native search over sets of recomputations, through its C interface.

The library knows integers only: no torch, no Python objects. Every call releases the interpreter
lock, and none runs longer than the number of iterations asked for, so Ctrl-C is heard between calls.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import accumulate, chain
from typing import Any

from tightrope.core import Bytes, Nanoseconds, NativeError
from tightrope.native.build import compiler, library

NUM_RULES = 5
"""Scoring rules of the greedy: ns/(bytes*distance), ns/bytes, -bytes, -distance, ns/distance."""


class Mode(IntEnum):
    """What a search does: anneal time, anneal bytes (the limit follows the peak), or ruin and recreate."""

    ANNEAL = 0
    SHRINK = 1
    REBUILD = 2


@dataclass(frozen=True, slots=True)
class Tables:
    """What the native part is given; rows are flat tuples.

    Attributes:
        ops: per op: bytes of the first run, of a re-run, ns of a re-run, first and last stage of a re-run.
        storages: per storage: bytes, producer or -1, sticky, read by the end.
        reads: per op: storages read by the first run.
        again_reads: per op: storages read by a re-run.
        again_creates: per op: storages made by a re-run.
    """

    ops: Sequence[tuple[int, int, int, int, int]]
    storages: Sequence[tuple[int, int, int, int]]
    reads: Sequence[Sequence[int]]
    again_reads: Sequence[Sequence[int]]
    again_creates: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class State:
    """Extra time, bytes over the limit summed over events, peak bytes and pairs of a set."""

    ns: Nanoseconds
    excess: Bytes
    peak: Bytes
    num_pairs: int


def available() -> bool:
    """Tell whether the native search can be used: a compiler is there to build it."""
    return compiler() is not None


@cache
def load_library() -> ctypes.CDLL:
    """Build and load the solver.

    Raises:
        NativeError: there is no compiler, or the library does not build or load.
    """
    path = library("solver")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"the solver was built but does not load: {error}. Delete {path} and retry."
        ) from error


@cache
def _library() -> ctypes.CDLL:
    native = load_library()
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    native.tightrope_solver_new.restype = pointer
    native.tightrope_solver_new.argtypes = [whole, whole, *[pointer] * 8]
    native.tightrope_solver_run.restype = whole
    signatures: dict[str, list[Any]] = {
        "delete": [],
        "load": [pointer, whole],
        "state": [real, pointer],
        "read": [pointer],
        "greedy": [real, whole],
        "begin": [real, ctypes.c_uint64, whole, ctypes.c_int, real],
        "run": [whole],
        "best": [pointer],
        "read_best": [pointer],
    }
    for name, arguments in signatures.items():
        getattr(native, f"tightrope_solver_{name}").argtypes = [pointer, *arguments]
    return native


def _array(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    starts = list(accumulate((len(row) for row in rows), initial=0))
    return _array(starts), _array(list(chain.from_iterable(rows)))


class Solver:
    """One search over ``num_ops`` ops: a current set of pairs, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: Tables) -> None:
        self._native, self.num_ops = _library(), len(tables.ops)
        arrays = (
            _array(list(chain.from_iterable(tables.ops))),
            _array(list(chain.from_iterable(tables.storages))),
            *_rows(tables.reads),
            *_rows(tables.again_reads),
            *_rows(tables.again_creates),
        )
        self._handle: int | None = self._native.tightrope_solver_new(
            len(tables.ops), len(tables.storages), *arrays
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._native.tightrope_solver_delete(self._handle)
            self._handle = None

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Make ``pairs`` the current set."""
        self._native.tightrope_solver_load(self._handle, _array(list(chain.from_iterable(pairs))), len(pairs))

    def state(self, limit: Bytes) -> State:
        """Measure the current set against ``limit`` bytes."""
        out = (ctypes.c_double * 4)()
        self._native.tightrope_solver_state(self._handle, limit, out)
        return State(int(out[0]), int(out[1]), int(out[2]), int(out[3]))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """List the current set, ascending."""
        count = self.state(0).num_pairs
        out = _array([0] * (2 * count))
        self._native.tightrope_solver_read(self._handle, out)
        return tuple((out[2 * i], out[2 * i + 1]) for i in range(count))

    def greedy(self, limit: Bytes, rule: int) -> bool:
        """Replace the current set by a greedy one; return whether it fits ``limit``."""
        return bool(self._native.tightrope_solver_greedy(self._handle, limit, rule))

    def begin(
        self, limit: Bytes, *, seed: int, iterations: int, mode: Mode = Mode.ANNEAL, heat: float = 1.0
    ) -> None:
        """Start a search from the current set; ``iterations`` counts moves, or changes when rebuilding."""
        self._native.tightrope_solver_begin(self._handle, limit, seed, iterations, int(mode), heat)

    def run(self, iterations: int) -> int:
        """Run at most ``iterations`` moves; return how many are left of those asked for in `begin`."""
        return int(self._native.tightrope_solver_run(self._handle, iterations))

    def best(self) -> tuple[tuple[int, int], ...] | None:
        """List the best fitting set since `begin`, or None when none fitted."""
        out = (ctypes.c_double * 3)()
        self._native.tightrope_solver_best(self._handle, out)
        if out[0] == float("inf"):
            return None
        count = int(out[2])
        pairs = _array([0] * (2 * count))
        self._native.tightrope_solver_read_best(self._handle, pairs)
        return tuple((pairs[2 * i], pairs[2 * i + 1]) for i in range(count))
