"""The native search over re-runs and page-ins, through its C interface.

The library knows integers and floats only. Every call releases the interpreter lock, and none runs
longer than the number of moves asked for, so Ctrl-C is heard between calls.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Any, TypeAlias

from tightrope.core import Bytes, Nanoseconds, NativeError
from tightrope.native.build import library

Decision: TypeAlias = tuple[int, int, int, int]
"""(stage, 0 = re-run or 1 = page-in, op or storage, lag)."""


@dataclass(frozen=True, slots=True)
class PagingTables:
    """What the native part is given; rows are flat tuples.

    Attributes:
        ops: per op: bytes of the first run, of a re-run, ns of each, first and last stage of a re-run.
        storages: per storage: bytes, bytes in the slower tier, ns out, ns in, producer or -1, sticky,
            held to the end, pageable.
        joules: per storage: of one page-out, of one page-in.
        reads: per op: storages read by the first run.
        again_reads: per op: storages read by a re-run.
        creates: per op: storages made by the first run, ascending.
        again_creates: per op: storages made anew by a re-run, ascending.
        engines: copy engines of the slower tier.
        watts: while computing.
    """

    ops: Sequence[tuple[int, int, int, int, int, int]]
    storages: Sequence[tuple[int, int, int, int, int, int, int, int]]
    joules: Sequence[tuple[float, float]]
    reads: Sequence[Sequence[int]]
    again_reads: Sequence[Sequence[int]]
    creates: Sequence[Sequence[int]]
    again_creates: Sequence[Sequence[int]]
    engines: int
    watts: float


@dataclass(frozen=True, slots=True)
class PagingGoal:
    """What a search is for.

    Attributes:
        limit: bytes in tier 0.
        tier_limit: bytes in the slower tier.
        ns: largest time, None = unlimited.
        joules: largest energy, None = unlimited.
        by_joules: whether energy is minimised, else time.
        rerun: whether ops may run again.
        page: whether storages may be paged.
    """

    limit: Bytes
    tier_limit: Bytes
    ns: Nanoseconds | None = None
    joules: float | None = None
    by_joules: bool = False
    rerun: bool = True
    page: bool = True


@dataclass(frozen=True, slots=True)
class PagingState:
    """Cost of a set; ``excess`` and ``tier_excess`` are bytes over the limits, summed over runs."""

    joules: float
    ns: Nanoseconds
    excess: Bytes
    peak: Bytes
    tier_peak: Bytes
    tier_excess: Bytes


@cache
def _library() -> ctypes.CDLL:
    path = library("paging")
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"the paging search was built but does not load: {error}. Delete {path} and retry."
        ) from error
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    native.tightrope_paging_new.restype = pointer
    native.tightrope_paging_new.argtypes = [whole, whole, *[pointer] * 11, whole, real]
    native.tightrope_paging_run.restype = whole
    native.tightrope_paging_best.restype = whole
    signatures: dict[str, list[Any]] = {
        "delete": [],
        "load": [pointer, whole],
        "state": [whole, whole, pointer],
        "begin": [pointer, real, ctypes.c_uint64, whole, real],
        "run": [whole],
        "best": [pointer],
        "read_best": [pointer],
    }
    for name, arguments in signatures.items():
        getattr(native, f"tightrope_paging_{name}").argtypes = [pointer, *arguments]
    return native


def _array(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    starts = list(accumulate((len(row) for row in rows), initial=0))
    return _array(starts), _array(list(chain.from_iterable(rows)))


class PagingSolver:
    """One search: a current set of decisions, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: PagingTables) -> None:
        self._native = _library()
        joules = list(chain.from_iterable(tables.joules))
        self._handle: int | None = self._native.tightrope_paging_new(
            len(tables.ops),
            len(tables.storages),
            _array(list(chain.from_iterable(tables.ops))),
            _array(list(chain.from_iterable(tables.storages))),
            (ctypes.c_double * max(len(joules), 1))(*joules),
            *_rows(tables.reads),
            *_rows(tables.again_reads),
            *_rows(tables.creates),
            *_rows(tables.again_creates),
            tables.engines,
            tables.watts,
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._native.tightrope_paging_delete(self._handle)
            self._handle = None

    def load(self, decisions: Sequence[Decision]) -> None:
        """Make ``decisions`` the current set."""
        rows = _array(list(chain.from_iterable(decisions)))
        self._native.tightrope_paging_load(self._handle, rows, len(decisions))

    def state(self, limit: Bytes, tier_limit: Bytes) -> PagingState:
        """Measure the current set against the limits of both tiers."""
        out = (ctypes.c_double * 6)()
        self._native.tightrope_paging_state(self._handle, limit, tier_limit, out)
        return PagingState(out[0], int(out[1]), int(out[2]), int(out[3]), int(out[4]), int(out[5]))

    def begin(self, goal: PagingGoal, *, seed: int, iterations: int, heat: float = 1.0) -> None:
        """Start annealing from the current set."""
        row = _array(
            [goal.limit, goal.tier_limit, goal.ns or 0, int(goal.by_joules), int(goal.rerun), int(goal.page)]
        )
        self._native.tightrope_paging_begin(self._handle, row, goal.joules or 0.0, seed, iterations, heat)

    def run(self, iterations: int) -> int:
        """Run at most ``iterations`` moves; return how many are left of those asked for in `begin`."""
        return int(self._native.tightrope_paging_run(self._handle, iterations))

    def best(self) -> tuple[Decision, ...] | None:
        """List the best fitting set since `begin`, or None when none fitted."""
        value = ctypes.c_double()
        count = int(self._native.tightrope_paging_best(self._handle, ctypes.byref(value)))
        if count < 0:
            return None
        rows = _array([0] * (4 * count))
        self._native.tightrope_paging_read_best(self._handle, rows)
        return tuple((rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]) for i in range(count))
