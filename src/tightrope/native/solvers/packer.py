"""Call the native placer: arrays in, offsets out.

The library is a plain C function called through ctypes, which releases the interpreter lock.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes
from tightrope.native.interface import load

Integers: TypeAlias = npt.NDArray[np.int64]

SWITCHES: Final = (
    "scaling",
    "compression",
    "zero_cuts",
    "lifelong",
    "portfolio",
    "dives",
    "squeaky",
    "search",
    "section_bounds",
    "dominance",
    "hatless",
    "decomposition",
    "skip_inference",
    "restarts",
    "memory",
    "neighbourhoods",
    "hot_core",
    "weights",
    "trials",
    "niches",
    "fusion",
)
"""Names of the techniques, in the order of their bits."""

STATUSES: Final = ("optimal", "feasible", "infeasible", "time_limit")
METHODS: Final = (
    "first fit",
    "hot core first",
    "first-fit portfolio",
    "skyline dive",
    "squeaky wheel",
    "search",
    "search on niches",
    "search on fused buffers",
    "neighbourhoods",
)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """What the native placer found.

    Attributes:
        offsets: one per buffer.
        peak: largest offset + size.
        status: index into `STATUSES`.
        witness_time: an instant of largest load.
        nodes: search nodes visited.
        method: index into `METHODS` of the strongest method that improved the answer.
    """

    offsets: Integers
    peak: Bytes
    status: int
    witness_time: int
    nodes: int
    method: int


def pack(
    columns: tuple[Integers, Integers, Integers, Integers, Integers],
    *,
    capacity: Bytes,
    work: int,
    milliseconds: int,
    seed: int,
    switches: int,
) -> Packed:
    """Place buffers natively.

    Args:
        columns: sizes, starts, ends, alignments and fixed offsets (-1 = free), checked by the caller.
        capacity: stop at this peak; -1 = make the peak small.
        work: units of counted work after which the best answer so far is returned.
        milliseconds: of processor time, a safety stop.
        seed: of the random orders, at least 0.
        switches: one bit per technique, see `SWITCHES`.

    Returns:
        The best placement found.

    Raises:
        NativeError: the library cannot be loaded, and not be built either.
    """
    arrays = [np.ascontiguousarray(column, dtype=np.int64) for column in columns]
    num_buffers = len(arrays[0])
    offsets = np.zeros(num_buffers, dtype=np.int64)
    results = np.zeros(5, dtype=np.int64)
    options = np.array([capacity, work, milliseconds, seed, switches], dtype=np.int64)
    native_function("tightrope_pack", 8)(
        num_buffers, *(array.ctypes.data for array in (*arrays, options, offsets, results))
    )
    peak, status, witness_time, nodes, method = (int(value) for value in results)
    return Packed(offsets, peak, status, witness_time, nodes, method)


@cache
def native_function(name: str, num_pointers: int) -> Callable[..., Any]:
    """Find a function of the library that takes a number and pointers."""
    function: Callable[..., Any] = getattr(load("packer"), name)
    function.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * num_pointers]  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function
