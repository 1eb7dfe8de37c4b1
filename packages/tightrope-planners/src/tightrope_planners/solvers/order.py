"""The native search over topological orders, through its C interface."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tightrope.core import Bytes
from tightrope.native.interface import INTEGER, POINTER, REAL, Handle, declare, integers, load, ragged, table


@dataclass(frozen=True, slots=True)
class OrderTables:
    """What the native part is given.

    Attributes:
        need: per op: bytes that it allocates at its peak.
        storages: per storage: bytes, producer or -1, live after the last op.
        reads: per op: storages that it reads.
        before: per op: ops that must come before it.
    """

    need: Sequence[Bytes]
    storages: Sequence[tuple[int, int, int]]
    reads: Sequence[Sequence[int]]
    before: Sequence[Sequence[int]]


@cache
def _library() -> ctypes.CDLL:
    native = load("solver")
    methods = {
        "load": (POINTER, REAL, POINTER),
        "begin": (REAL, ctypes.c_uint64, INTEGER, ctypes.c_int, REAL),
        "read": (POINTER,),
    }
    declare(native, "tightrope_order", [INTEGER, INTEGER, *[POINTER] * 6], methods)
    return native


class OrderSolver(Handle):
    """One search over orders: a current order, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: OrderTables) -> None:
        self._num_ops = len(tables.need)
        super().__init__(
            _library(),
            "tightrope_order",
            self._num_ops,
            len(tables.storages),
            integers(tables.need),
            table(tables.storages),
            *ragged(tables.reads),
            *ragged(tables.before),
        )

    def load(self, order: Sequence[int], limit: Bytes) -> tuple[Bytes, Bytes]:
        """Make ``order`` the current one; return its peak and its bytes over ``limit``, summed over ops."""
        out = (ctypes.c_double * 2)()
        self.call("load", integers(order), limit, out)
        return int(out[0]), int(out[1])

    def begin(self, limit: Bytes, *, seed: int, iterations: int, shrink: bool, heat: float) -> None:
        """Start annealing from the current order; with ``shrink`` the limit follows the peak down."""
        self.call("begin", limit, seed, iterations, shrink, heat)

    def best(self) -> tuple[int, ...]:
        """List the ops in the best order since `begin`."""
        out = integers([0] * self._num_ops)
        self.call("read", out)
        return tuple(out[: self._num_ops])
