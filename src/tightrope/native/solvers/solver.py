"""The native search over sets of recomputations, through its C interface.

The library knows integers only: no torch, no Python objects. Every call releases the interpreter
lock, and none runs longer than the number of iterations asked for, so Ctrl-C is heard between calls.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from tightrope.core import Bytes, Nanoseconds
from tightrope.native.interface import (
    INTEGER,
    POINTER,
    REAL,
    Handle,
    declare,
    integers,
    load,
    ragged,
    table,
)

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
        ops: per op: bytes of the first run, of a re-run, ns of a re-run, first and last stage of a re-run,
            and the stages ``[start, end)`` between them at which it may not run again; the storages that
            the first run and a re-run may write over, or -1; the part of the step.
        storages: per storage: bytes, producer or -1, pinned, read by the end.
        reads: per op: storages read by the first run.
        again_reads: per op: storages read by a re-run.
        again_creates: per op: storages made by a re-run.
    """

    ops: Sequence[tuple[int, ...]]
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


@cache
def _library() -> ctypes.CDLL:
    native = load("solver")
    methods = {
        "load": (POINTER, INTEGER),
        "state": (REAL, POINTER),
        "read": (POINTER,),
        "greedy": (REAL, INTEGER, ctypes.c_int),
        "begin": (REAL, ctypes.c_uint64, INTEGER, ctypes.c_int, REAL),
        "best": (POINTER,),
        "read_best": (POINTER,),
    }
    declare(native, "tightrope_solver", [INTEGER, INTEGER, *[POINTER] * 8], methods)
    return native


class Solver(Handle):
    """One search over ``num_ops`` ops: a current set of pairs, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: Tables) -> None:
        self.num_ops = len(tables.ops)
        super().__init__(
            _library(),
            "tightrope_solver",
            len(tables.ops),
            len(tables.storages),
            table(tables.ops),
            table(tables.storages),
            *ragged(tables.reads),
            *ragged(tables.again_reads),
            *ragged(tables.again_creates),
        )

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Make ``pairs`` the current set."""
        self.call("load", table(pairs), len(pairs))

    def state(self, limit: Bytes) -> State:
        """Measure the current set against ``limit`` bytes."""
        out = (ctypes.c_double * 4)()
        self.call("state", limit, out)
        return State(int(out[0]), int(out[1]), int(out[2]), int(out[3]))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """List the current set, ascending."""
        count = self.state(0).num_pairs
        out = integers([0] * (2 * count))
        self.call("read", out)
        return tuple((out[2 * i], out[2 * i + 1]) for i in range(count))

    def greedy(self, limit: Bytes, rule: int, *, far: bool = False) -> bool:
        """Replace the current set by a greedy one; return whether it fits ``limit``.

        Args:
            limit: bytes.
            rule: score, see `NUM_RULES`.
            far: recompute from far back where nothing short is left to give up.
        """
        return bool(self.call("greedy", limit, rule, int(far)))

    def begin(
        self, limit: Bytes, *, seed: int, iterations: int, mode: Mode = Mode.ANNEAL, heat: float = 1.0
    ) -> None:
        """Start a search from the current set; ``iterations`` counts moves, or changes when rebuilding."""
        self.call("begin", limit, seed, iterations, int(mode), heat)

    def best(self) -> tuple[tuple[int, int], ...] | None:
        """List the best fitting set since `begin`, or None when none fitted."""
        out = (ctypes.c_double * 3)()
        self.call("best", out)
        if out[0] == float("inf"):
            return None
        count = int(out[2])
        pairs = integers([0] * (2 * count))
        self.call("read_best", pairs)
        return tuple((pairs[2 * i], pairs[2 * i + 1]) for i in range(count))
