"""Messages of an exchange of gradients, in C++ (fusion.cpp)."""

import ctypes
from collections.abc import Sequence
from functools import cache

from tightrope.native.interface import INTEGER, POINTER, REAL, integers, load
from tightrope_ranks.values.exchange import ExchangeProblem


def best_messages(
    problem: ExchangeProblem, *, upper: float, gap: float, width: int, most: int
) -> list[tuple[int, int]] | None:
    """Search for messages that take less than ``upper * (1 - gap)`` seconds.

    Args:
        problem: gradients, codecs, and the limit of bytes sent.
        upper: seconds of the best that is known.
        gap: part of ``upper`` that need not be searched.
        width: labels kept per gradient, 0 = all: only then is the answer a proof.
        most: comparisons in all.

    Returns:
        Ends and numbers of codecs; nothing where none was found; None where it would take more comparisons.

    Raises:
        NativeError: there is no compiler, or the library does not build or load.
    """
    native = _library()
    stream, num = problem.stream, len(problem.stream.sizes)
    costs = [x for one in problem.codecs for x in (*one.encode, *one.wire, *one.decode)]
    ends, chosen = (INTEGER * num)(), (INTEGER * num)()
    limit = -1 if problem.limits.sent is None else problem.limits.sent
    found = native.tightrope_fusion(
        num, len(problem.codecs), _reals(stream.compute), _reals(stream.sizes), _reals(costs),
        integers([size for one in problem.codecs for size in one.sent]), stream.before, limit, upper, gap,
        width, most, ends, chosen,
    )  # fmt: skip
    return None if found < 0 else list(zip(ends[:found], chosen[:found], strict=True))


def _reals(values: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (REAL * max(len(values), 1))(*values)


@cache
def _library() -> ctypes.CDLL:
    native = load("fusion")
    native.tightrope_fusion.restype = INTEGER
    native.tightrope_fusion.argtypes = [
        INTEGER, INTEGER, POINTER, POINTER, POINTER, POINTER, REAL, INTEGER, REAL, REAL, INTEGER, INTEGER,
        POINTER, POINTER,
    ]  # fmt: skip
    return native
