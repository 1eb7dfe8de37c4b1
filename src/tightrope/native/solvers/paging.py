"""The native search over re-runs and page-ins, through its C interface.

The library knows integers and floats only. Every call releases the interpreter lock, and none runs
longer than the number of moves asked for, so Ctrl-C is heard between calls.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TypeAlias

from tightrope.core import Bytes, Nanoseconds
from tightrope.native.interface import INTEGER, POINTER, REAL, Handle, declare, integers, load, ragged, table

Decision: TypeAlias = tuple[int, int, int, int]
"""(stage, 0 = re-run or 1 = page-in, op or storage, lag)."""


@dataclass(frozen=True, slots=True)
class PagingTables:
    """What the native part is given; rows are flat tuples.

    Attributes:
        ops: per op: bytes of the first run, of a re-run, ns of each, first and last stage of a re-run.
        storages: per storage: bytes, bytes in the slower tier, ns out, ns in, producer or -1, pinned,
            held to the end, pageable, ns that a copy takes from what runs beside it.
        joules: per storage: of one page-out, of one page-in.
        reads: per op: storages read by the first run.
        again_reads: per op: storages read by a re-run.
        creates: per op: storages made by the first run, ascending.
        again_creates: per op: storages made anew by a re-run, ascending.
        engines: copy engines of the slower tier.
        watts: while computing.
    """

    ops: Sequence[tuple[int, int, int, int, int, int]]
    storages: Sequence[tuple[int, int, int, int, int, int, int, int, int]]
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
    native = load("paging")
    native.tightrope_paging_best.restype = INTEGER
    methods = {
        "load": (POINTER, INTEGER),
        "state": (INTEGER, INTEGER, POINTER),
        "begin": (POINTER, REAL, ctypes.c_uint64, INTEGER, REAL),
        "best": (POINTER,),
        "read_best": (POINTER,),
    }
    declare(native, "tightrope_paging", [INTEGER, INTEGER, *[POINTER] * 11, INTEGER, REAL], methods)
    return native


class PagingSolver(Handle):
    """One search: a current set of decisions, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: PagingTables) -> None:
        joules = list(chain.from_iterable(tables.joules))
        super().__init__(
            _library(),
            "tightrope_paging",
            len(tables.ops),
            len(tables.storages),
            table(tables.ops),
            table(tables.storages),
            (REAL * max(len(joules), 1))(*joules),
            *ragged(tables.reads),
            *ragged(tables.again_reads),
            *ragged(tables.creates),
            *ragged(tables.again_creates),
            tables.engines,
            tables.watts,
        )

    def load(self, decisions: Sequence[Decision]) -> None:
        """Make ``decisions`` the current set."""
        self.call("load", table(decisions), len(decisions))

    def state(self, limit: Bytes, tier_limit: Bytes) -> PagingState:
        """Measure the current set against the limits of both tiers."""
        out = (ctypes.c_double * 6)()
        self.call("state", limit, tier_limit, out)
        return PagingState(out[0], int(out[1]), int(out[2]), int(out[3]), int(out[4]), int(out[5]))

    def begin(self, goal: PagingGoal, *, seed: int, iterations: int, heat: float = 1.0) -> None:
        """Start annealing from the current set."""
        row = integers(
            [goal.limit, goal.tier_limit, goal.ns or 0, int(goal.by_joules), int(goal.rerun), int(goal.page)]
        )
        self.call("begin", row, goal.joules or 0.0, seed, iterations, heat)

    def best(self) -> tuple[Decision, ...] | None:
        """List the best fitting set since `begin`, or None when none fitted."""
        value = ctypes.c_double()
        count = int(self.call("best", ctypes.byref(value)))
        if count < 0:
            return None
        rows = integers([0] * (4 * count))
        self.call("read_best", rows)
        return tuple((rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]) for i in range(count))
