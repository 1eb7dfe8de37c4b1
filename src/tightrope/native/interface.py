"""What every native library needs of ctypes: loading, signatures, arrays, and a handle that is freed."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final

from tightrope.core import NativeError
from tightrope.core.cache import cache_folder
from tightrope.native.build import library

POINTER: Final = ctypes.c_void_p
INTEGER: Final = ctypes.c_int64
REAL: Final = ctypes.c_double


def load(name: str | Path) -> ctypes.CDLL:
    """Load a library; it is built where it is not there.

    Args:
        name: as `tightrope.native.library` takes it.

    Raises:
        NativeError: there is none and no compiler, or it does not build or load.
    """
    found = _loaded(name, os.environ.get("CXX"), cache_folder())
    if isinstance(found, str):
        raise NativeError(found)
    return found


def missing(name: str | Path) -> str:
    """Say why a library cannot be loaded, or nothing.

    Args:
        name: as `tightrope.native.library` takes it.
    """
    found = _loaded(name, os.environ.get("CXX"), cache_folder())
    return found if isinstance(found, str) else ""


@lru_cache(maxsize=128)
def _loaded(name: str | Path, *_: object) -> ctypes.CDLL | str:
    """Load a library once, or say why not, for as long as what decides about it stays the same."""
    try:
        path = library(name)
        return ctypes.CDLL(str(path))
    except NativeError as error:
        return str(error)
    except OSError as error:
        return f"the library {str(name)!r} was built but does not load: {error}. Delete {path} and retry."


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
