"""What every native library needs of ctypes: loading, signatures, arrays, and a handle that is freed."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, Final

from tightrope.core import NativeError
from tightrope.native.build import library

POINTER: Final = ctypes.c_void_p
INTEGER: Final = ctypes.c_int64
REAL: Final = ctypes.c_double


@cache
def load(name: str) -> ctypes.CDLL:
    """Build and load a library.

    Raises:
        NativeError: there is no compiler, or the library does not build or load.
    """
    path = library(name)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"the library {name!r} was built but does not load: {error}. Delete {path} and retry."
        ) from error


def declare(native: ctypes.CDLL, prefix: str, new: Sequence[Any], methods: Mapping[str, Any]) -> None:
    """Declare ``<prefix>_new``, ``_delete``, ``_run`` and further calls that take a handle first.

    Args:
        native: the library.
        prefix: of every name.
        new: arguments of the call that makes a handle.
        methods: of every other call, the arguments after the handle; what they return is an int.
    """
    getattr(native, f"{prefix}_new").restype = POINTER
    getattr(native, f"{prefix}_new").argtypes = list(new)
    getattr(native, f"{prefix}_run").restype = INTEGER
    for name, arguments in {"delete": (), "run": (INTEGER,), **methods}.items():
        getattr(native, f"{prefix}_{name}").argtypes = [POINTER, *arguments]


def integers(values: Sequence[int]) -> Any:
    """Copy values into an array of 64-bit integers; never empty, so that it has an address."""
    return (INTEGER * max(len(values), 1))(*values)


def table(rows: Sequence[Sequence[int]]) -> Any:
    """Copy rows of equal length into one array."""
    return integers(list(chain.from_iterable(rows)))


def ragged(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Copy rows of any length into where each begins, and all their items."""
    return integers(list(accumulate((len(row) for row in rows), initial=0))), table(rows)


class Handle:
    """An object of a library, freed with this one.

    Args:
        native: where it comes from, declared with `declare`.
        prefix: of its calls.
        arguments: of ``<prefix>_new``.
    """

    def __init__(self, native: ctypes.CDLL, prefix: str, *arguments: Any) -> None:
        self._native, self._prefix = native, prefix
        self._handle: int | None = getattr(native, f"{prefix}_new")(*arguments)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.call("delete")
            self._handle = None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call ``<prefix>_<name>`` on it."""
        return getattr(self._native, f"{self._prefix}_{name}")(self._handle, *arguments)

    def run(self, iterations: int) -> int:
        """Make at most ``iterations`` moves; return how many are left of those asked for in ``begin``."""
        return int(self.call("run", iterations))
