"""Measured prices: run one op alone and write down its time and every allocation that it makes.

Idea        An op is run on made-up inputs of the right shapes, strides and dtypes; the allocator
            hook records each allocation and release inside it. Results are then released one by
            one, which tells which allocation became which result.
            In the same run, what the kernel takes from the C library and not from the allocator
            is counted: the *hidden* bytes. The run before it has let the kernel fill its caches.
            What other threads take meanwhile is counted too: where two runs do not agree, the op is
            run again, and takes no more than in the run with the fewest.
Guarantee   The bytes are exact for this machine, thread count and torch version: kernels choose
            their work space by shape, not by value. Times are the fastest of a few runs.
Complexity  At least five runs per distinct op, two of one that takes over 20 ms, one of one that takes over
            0.2 s on a CPU; about 0.1 s beyond that.
Gaps        Without a C++ compiler there is no hook: temporaries are unknown then, and hidden bytes
            too; these are only counted on Linux, and not where a kernel maps pages itself. A kernel that
            sizes a table by values, such as a hash of distinct ones, is measured on made-up values. Torch
            on other threads that takes memory in every one of the runs counts as the op's.
            What a kernel keeps after its first run is no part of the price: code that oneDNN compiles,
            and up to `KEPT` bytes of the matrix library. Of an op that is run once, such code counts.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import torch

from tightrope.core import Bytes, Nanoseconds
from tightrope.native.hook.allocator import Allocator
from tightrope.price.device import CPU, timed_on_gpu
from tightrope.price.kernels import bits_of

_Allocations: TypeAlias = tuple[tuple[Bytes, int, int, int], ...]
_MIN_RUNS, _MAX_RUNS = 3, 20
_ENOUGH_NS = 5_000_000
_LONG_NS, _ALONE_NS = 20_000_000, 200_000_000
"""Of runs that last so long that two, or one, are enough: short disturbances count little in them."""
_RECOUNTS = 2
UNSEEN: Bytes = 49_152
"""Hidden bytes up to this many are torch's own books, such as the headers of tensors, and small scratch of
kernels: they lie in what the runtime holds back anyway."""


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """How a result really looks.

    Attributes:
        position: in the op's result, -1 where the result is the tensor.
        dtype: e.g. ``float32``.
        strides: in elements.
        offset: first element.
        bits: lazy conjugation and negation.
    """

    position: int
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0
    bits: str = ""


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """Price of one op.

    Attributes:
        ns: time of one run.
        allocations: (bytes, result, start, end) per allocation in order; ``result`` is the
            position of the result that it became or -1, ``end`` -1 when it outlives the op.
        known: whether the allocations were observed.
        layouts: of results that are tensors with bytes.
        hidden: most bytes that it takes behind torch's allocator while it runs; 0 = at most `UNSEEN`.
    """

    ns: Nanoseconds
    allocations: tuple[tuple[Bytes, int, int, int], ...] = ()
    known: bool = True
    layouts: tuple[Layout, ...] = ()
    hidden: Bytes = 0


def measure(run: Callable[[], Any], allocator: Allocator | None, device: torch.device = CPU) -> Measured:
    """Price ``run``, which calls one op on inputs that exist already, on a device.

    Raises:
        torch.OutOfMemoryError: the op does not fit under the limit that is set.
    """
    _, clock = clock_here()
    spent: list[Nanoseconds] = []

    def timed() -> Any:
        start = clock()
        result = run()
        spent.append(clock() - start)
        return result

    allocations: _Allocations = ()
    hidden: Bytes = 0
    if allocator is None:
        layouts = _layouts(timed())
    else:
        layouts, allocations, hidden = _record(timed, allocator)
        if device.type != "cpu" or spent[0] <= _ALONE_NS:
            before = hidden
            _, allocations, hidden = _record(timed, allocator)
            for _ in range(_RECOUNTS if hidden != before else 0):
                hidden = min(hidden, _counted(timed, allocator)[1])
    if device.type == "cuda":
        return Measured(timed_on_gpu(run, device), allocations, allocator is not None, layouts, hidden)
    if allocator is None or min(spent) <= _LONG_NS:
        spent = [one for one in spent[1:] if one > _ENOUGH_NS]  # of the others, recording is a part
        while len(spent) < _MAX_RUNS and sum(spent) <= (_ENOUGH_NS if len(spent) >= _MIN_RUNS else _LONG_NS):
            timed()
    return Measured(max(min(spent), 1), allocations, allocator is not None, layouts, hidden)


def clock_here() -> tuple[str, Callable[[], Nanoseconds]]:
    """Choose the clock of prices and steps: what other processes do counts only where torch has threads.

    >>> clock_here()[0] in ("thread CPU time", "wall time")
    True
    """
    if torch.get_num_threads() == 1:
        return "thread CPU time", time.thread_time_ns
    return "wall time", time.perf_counter_ns


def _layouts(result: Any) -> tuple[Layout, ...]:
    items = enumerate(result) if isinstance(result, tuple | list) else [(-1, result)]
    return tuple(
        Layout(
            position, str(item.dtype).removeprefix("torch."), tuple(item.stride()),
            int(item.storage_offset()), bits_of(item),
        )
        for position, item in items
        if isinstance(item, torch.Tensor) and item.untyped_storage().nbytes()
    )  # fmt: skip


def _record(run: Callable[[], Any], allocator: Allocator) -> tuple[tuple[Layout, ...], _Allocations, Bytes]:
    """Run an op; look at its results, list its allocations and count what it hides."""
    allocator.begin_record()
    try:
        result, hidden = _counted(run, allocator)
        inside = allocator.num_events()
        layouts = _layouts(result)
        items = list(result) if isinstance(result, tuple | list) else [result]
        del result
        until = []
        for position in range(len(items)):
            items[position] = None
            until.append(allocator.num_events())
    finally:
        record = allocator.end_record()
    found = []
    for buffer in record.buffers():
        if buffer.end < inside:
            found.append((buffer.bytes, -1, buffer.start, buffer.end))
        else:
            result_of = next((position for position, last in enumerate(until) if buffer.end < last), -1)
            found.append((buffer.bytes, result_of, buffer.start, -1 if result_of >= 0 else inside))
    return layouts, tuple(found), hidden


def _counted(run: Callable[[], Any], allocator: Allocator) -> tuple[Any, Bytes]:
    if allocator.index < 0:
        allocator.tidy()  # or a count finds what the matrix library kept of the one before, and misses it
    allocator.begin_hidden()
    try:
        result = run()
    finally:
        hidden = allocator.end_hidden().peak
    return result, hidden if hidden > UNSEEN else 0
