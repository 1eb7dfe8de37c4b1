"""The native search over topological orders, through its C interface."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Any

from tightrope.core import Bytes
from tightrope.native.solver import load_library


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
    native = load_library()
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    native.tightrope_order_new.restype = pointer
    native.tightrope_order_new.argtypes = [whole, whole, *[pointer] * 6]
    native.tightrope_order_run.restype = whole
    signatures: dict[str, list[Any]] = {
        "delete": [],
        "load": [pointer, real, pointer],
        "begin": [real, ctypes.c_uint64, whole, ctypes.c_int, real],
        "run": [whole],
        "read": [pointer],
    }
    for name, arguments in signatures.items():
        getattr(native, f"tightrope_order_{name}").argtypes = [pointer, *arguments]
    return native


def _array(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    starts = list(accumulate((len(row) for row in rows), initial=0))
    return _array(starts), _array(list(chain.from_iterable(rows)))


class OrderSolver:
    """One search over orders: a current order, and the best one found.

    Raises:
        NativeError: there is no compiler, or the library does not build.
    """

    def __init__(self, tables: OrderTables) -> None:
        self._native = _library()
        self._num_ops = len(tables.need)
        self._handle: int | None = self._native.tightrope_order_new(
            self._num_ops,
            len(tables.storages),
            _array(tables.need),
            _array(list(chain.from_iterable(tables.storages))),
            *_rows(tables.reads),
            *_rows(tables.before),
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self._native.tightrope_order_delete(self._handle)
            self._handle = None

    def load(self, order: Sequence[int], limit: Bytes) -> tuple[Bytes, Bytes]:
        """Make ``order`` the current one; return its peak and its bytes over ``limit``, summed over ops."""
        out = (ctypes.c_double * 2)()
        self._native.tightrope_order_load(self._handle, _array(order), limit, out)
        return int(out[0]), int(out[1])

    def begin(self, limit: Bytes, *, seed: int, iterations: int, shrink: bool, heat: float) -> None:
        """Start annealing from the current order; with ``shrink`` the limit follows the peak down."""
        self._native.tightrope_order_begin(self._handle, limit, seed, iterations, shrink, heat)

    def run(self, iterations: int) -> int:
        """Make at most ``iterations`` moves; return how many are left of those asked for in `begin`."""
        return int(self._native.tightrope_order_run(self._handle, iterations))

    def best(self) -> tuple[int, ...]:
        """List the ops in the best order since `begin`."""
        out = _array([0] * self._num_ops)
        self._native.tightrope_order_read(self._handle, out)
        return tuple(out[: self._num_ops])
