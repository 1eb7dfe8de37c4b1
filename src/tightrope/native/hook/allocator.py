"""The allocator with planned addresses: typed access to ``allocator.cpp``, and to ``cuda_allocator.cpp``.

`allocator` installs it as torch's CPU allocator, once and for the life of the process. From then on
every CPU tensor is counted. A limit, a recording and a replay are switched on and off around a step.

    a = allocator()
    with a.limited(300 * 2**20):
        a.begin_record()
        train_step(batch)                      # raises torch.OutOfMemoryError above the limit
        record = a.end_record()
"""

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch

from tightrope.core import ALIGNMENT, Buffer, Bytes, NativeError, Offset
from tightrope.native.hook.refused import install_error
from tightrope.native.interface import load

KEPT: Final[Bytes] = 7_864_320
"""What the matrix library may keep from product to product, per thread: 7.5 MiB; products of floats take up
to 5.2 MB, those of doubles up to 10.6 MB."""


class MemoryStats(NamedTuple):
    """What the allocator counts; all but ``num_allocations`` in bytes, each block rounded up to 64.

    Attributes:
        charged: what the limit holds: heap blocks, plus arenas (see `Allocator.open_arena`).
        charged_peak: largest ``charged`` since `Allocator.reset_peaks`.
        heap_live: live blocks on the heap.
        live: live blocks on the heap and in arenas.
        live_peak: largest ``live`` since `Allocator.reset_peaks`.
        num_allocations: allocations served since the process began to count.
        refused: largest ``charged`` that a refused allocation would have made, since
            `Allocator.reset_peaks`; 0 = none was refused.
        heap_peak: largest ``heap_live`` since `Allocator.reset_peaks`.
        heap_refused: largest ``heap_live`` that a refused allocation would have made, likewise.
    """

    charged: Bytes
    charged_peak: Bytes
    heap_live: Bytes
    live: Bytes
    live_peak: Bytes
    num_allocations: int
    refused: Bytes
    heap_peak: Bytes
    heap_refused: Bytes


class MemoryEvent(NamedTuple):
    """One allocation or release.

    Attributes:
        kind: ``alloc`` or ``free``.
        allocation: number of the allocation in the recording, or -1 for the release of a block that
            was made before the recording began.
        bytes: requested size.
    """

    kind: Literal["alloc", "free"]
    allocation: int
    bytes: Bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What one thread allocated between `Allocator.begin_record` and `Allocator.end_record`.

    Attributes:
        events: allocations of that thread and releases from any thread, in order.
    """

    events: tuple[MemoryEvent, ...]

    def buffers(self) -> tuple[Buffer, ...]:
        """List the allocations in order, alive in ``[start, end)``, counted in events.

        An allocation that was not released gets ``end == len(events)``.
        """
        starts: list[int] = []
        sizes: list[Bytes] = []
        ends: dict[int, int] = {}
        for time, event in enumerate(self.events):
            if event.kind == "alloc":
                starts.append(time)
                sizes.append(event.bytes)
            elif event.allocation >= 0:
                ends[event.allocation] = time
        last = len(self.events)
        return tuple(
            Buffer(size, start, ends.get(k, last))
            for k, (size, start) in enumerate(zip(sizes, starts, strict=True))
        )

    def freed(self) -> tuple[bool, ...]:
        """Tell for each allocation, in order, whether it was released before the recording ended."""
        return tuple(buffer.end < len(self.events) for buffer in self.buffers())


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first allocation of a replay that did not go as planned.

    Attributes:
        index: number of the allocation in the plan.
        expected: planned bytes (0 past the end).
        got: requested bytes.
        reason: ``size``, ``past end``, ``overlap`` (a block that should be dead is still alive there) or,
            on a GPU, ``stream`` (the request is for another stream than the plan's).
        outside: bytes served from the heap since, because of it.
    """

    index: int
    expected: Bytes
    got: Bytes
    reason: str
    outside: Bytes


class ReplayEnd(NamedTuple):
    """How far a replay came: allocations served as planned, and the divergence that ended them."""

    reached: int
    divergence: Divergence | None


class ArenaInfo(NamedTuple):
    """One arena: its first address, its bytes, what it is charged now, and its live blocks."""

    address: int
    bytes: Bytes
    charge: Bytes
    num_blocks: int


class Hidden(NamedTuple):
    """What kernels took behind torch's allocator, at the sizes asked for.

    Attributes:
        peak: most bytes that lived at once.
        left: bytes that still live.
    """

    peak: Bytes
    left: Bytes


class _Code(IntEnum):
    MISUSE = -1
    OVER_LIMIT = -2


_REASONS = ("", "size", "past end", "overlap", "stream")
_ENDED = 5
"""Numbers that say how a replay ended."""
_I64, _TABLE = ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
_RELIEF = ctypes.CFUNCTYPE(_I64)
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "tr_error": (ctypes.c_char_p, ()),
    "tr_install": (_I64, ()),
    "tr_set_note": (None, (ctypes.c_char_p,)),
    "tr_set_limit": (_I64, (_I64,)),
    "tr_set_relief": (None, (_RELIEF,)),
    "tr_limit": (_I64, ()),
    "tr_stats": (None, (_TABLE,)),
    "tr_reset_peaks": (None, ()),
    "tr_set_live_peak": (None, (_I64,)),
    "tr_owns": (_I64, (ctypes.c_void_p,)),
    "tr_begin_record": (_I64, ()),
    "tr_num_events": (_I64, ()),
    "tr_end_record": (_I64, ()),
    "tr_copy_events": (None, (_TABLE, _TABLE, _TABLE)),
    "tr_open_arena": (_I64, (_I64,)),
    "tr_lease": (_I64, (_I64,)),
    "tr_idle": (_I64, (_I64,)),
    "tr_resume": (_I64, (_I64,)),
    "tr_trim": (_I64, (_I64,)),
    "tr_retire": (_I64, (_I64,)),
    "tr_arena": (_I64, (_I64, _TABLE)),
    "tr_register_plan": (_I64, (_I64, _TABLE, _TABLE, _I64)),
    "tr_drop_plan": (_I64, (_I64,)),
    "tr_begin_replay": (_I64, (_I64, _I64, _I64)),
    "tr_end_replay": (_I64, (_TABLE,)),
    "tr_begin_span": (_I64, (_I64, _I64, _I64, _TABLE)),
    "tr_end_span": (_I64, (_TABLE,)),
    "tr_attach_hidden": (_I64, ()),
    "tr_begin_hidden": (None, ()),
    "tr_end_hidden": (None, (_TABLE,)),
    "tr_tidy": (_I64, (_I64,)),
}


class Allocator:
    """Torch's allocator of one device of this process; get it from `allocator` or `cuda_allocator`.

    It may be called from any thread. The thread that begins a recording or a replay owns it: only
    its allocations are recorded or placed, those of other threads go to the heap, and all of them
    count under the limit. Misuse raises `NativeError`.
    """

    def __init__(self, native: ctypes.CDLL, index: int = -1) -> None:
        self._native = native
        self.index = index
        self._refusals = int(_Code.OVER_LIMIT), int(_Code.MISUSE)  # globals are gone when the process ends
        self._reliefs: dict[Callable[[], bool] | None, Any] = {None: _RELIEF()}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._native, name)
            function.restype, function.argtypes = result, arguments
        if index >= 0:
            self._native.tr_install_on.restype = _I64
        install_error()
        self._checked(self._native.tr_install() if index < 0 else self._native.tr_install_on(_I64(index)))

    @property
    def native(self) -> ctypes.CDLL:
        """The library, for `tightrope.native.hook.evicting`."""
        return self._native

    # counting and limiting

    @property
    def limit(self) -> Bytes | None:
        """Largest number of charged bytes, or None when there is no limit."""
        limit = int(self._native.tr_limit())
        return None if limit < 0 else limit

    @limit.setter
    def limit(self, limit: Bytes | None) -> None:
        if limit is not None and limit < 0:
            raise NativeError(f"a limit of {limit} bytes: it must be at least 0, or None for no limit.")
        self._checked(self._native.tr_set_limit(-1 if limit is None else limit))

    @contextmanager
    def limited(self, limit: Bytes | None) -> Iterator[None]:
        """Hold ``limit`` inside a ``with`` block and put the previous one back at its end."""
        before, self.limit = self.limit, limit
        try:
            yield
        finally:
            self.limit = before

    def stats(self) -> MemoryStats:
        """Read the counters."""
        out = (_I64 * len(MemoryStats._fields))()
        self._native.tr_stats(out)
        return MemoryStats(*out)

    def explain(self, note: str) -> None:
        """End the message of every refusal with ``note``: what the reader should know of the limit."""
        self._native.tr_set_note(f" {note}".encode() if note else b"")

    def relieve_with(self, relief: Callable[[], bool] | None) -> None:
        """Ask ``relief`` to make room before the calling thread is refused memory; None = ask nobody.

        It is called in the middle of an op, so it must not allocate through torch.
        """
        if relief not in self._reliefs and relief is not None:
            self._reliefs[relief] = _RELIEF(lambda: int(relief()))
        self._native.tr_set_relief(self._reliefs[relief])

    def reset_peaks(self) -> None:
        """Set both peaks to the present values, and forget what was refused."""
        self._native.tr_reset_peaks()

    @contextmanager
    def beside_live_peak(self) -> Iterator[None]:
        """Leave what lives inside a ``with`` block, and not behind it, out of the peak of live bytes."""
        before = self.stats().live_peak
        try:
            yield
        finally:
            self._native.tr_set_live_peak(before)

    def owns(self, address: int) -> bool:
        """Tell whether an address is a live heap block, or lies in an arena, of this allocator."""
        return bool(self._native.tr_owns(address))

    # recording

    def begin_record(self) -> None:
        """Start to record the allocations of the calling thread."""
        self._checked(self._native.tr_begin_record())

    def num_events(self) -> int:
        """Count the events recorded so far, to tell which op they belong to."""
        return int(self._native.tr_num_events())

    def end_record(self) -> Record:
        """Stop recording and return the events."""
        count = self._checked(self._native.tr_end_record())
        table = np.empty((3, count), dtype=np.int64)
        self._native.tr_copy_events(*(row.ctypes.data_as(_TABLE) for row in table))
        index, sizes, is_free = table.tolist()
        return Record(
            tuple(
                MemoryEvent("free" if free else "alloc", number, size)
                for number, size, free in zip(index, sizes, is_free, strict=True)
            )
        )

    # arenas

    def open_arena(self, size: Bytes) -> int:
        """Map an arena, charge it in full, and lease it to the caller.

        Args:
            size: bytes, rounded up to 64.

        Returns:
            The arena's id.

        Raises:
            torch.OutOfMemoryError: it does not fit under the limit, even after idle arenas gave back
                the pages that hold no live block.
        """
        return self._checked(self._native.tr_open_arena(size))

    def lease(self, arena: int) -> bool:
        """Take an arena for a replay: charge it in full if no block in it is alive.

        Returns:
            False when a block is alive; then `retire` it and open another.

        Raises:
            torch.OutOfMemoryError: its free pages were given back and no longer fit under the limit.
        """
        code = self._native.tr_lease(arena)
        return (code if code >= 0 else self._checked(code)) == 1

    def idle(self, arena: int) -> None:
        """End a lease. Live blocks stay; the other pages are given back when the limit needs them."""
        if (code := self._native.tr_idle(arena)) < 0:
            self._checked(code)

    def resume(self, arena: int) -> None:
        """Lease an idle arena in which blocks are alive: charge it in full again.

        Raises:
            torch.OutOfMemoryError: pages that were given back no longer fit under the limit.
        """
        if (code := self._native.tr_resume(arena)) < 0:
            self._checked(code)

    def trim(self, arena: int) -> None:
        """Give the free pages of an idle arena back now, and not only when the limit needs them."""
        self._checked(self._native.tr_trim(arena))

    def retire(self, arena: int) -> None:
        """Give an arena back. Live blocks keep their addresses and are charged by page until they die."""
        self._checked(self._native.tr_retire(arena))

    def arena(self, arena: int) -> ArenaInfo:
        """Describe an arena that was not retired."""
        out = (_I64 * len(ArenaInfo._fields))()
        self._checked(self._native.tr_arena(arena, out))
        return ArenaInfo(*out)

    # replay

    def register_plan(
        self, sizes: Sequence[Bytes], offsets: Sequence[Offset], *, alignment: Bytes = ALIGNMENT
    ) -> int:
        """Hand over a plan: per allocation its requested bytes, and its offset or -1 for the heap.

        Args:
            sizes: bytes as they will be requested.
            offsets: multiples of the alignment, or -1.
            alignment: blocks in the arena are charged in multiples of this, a multiple of 64 itself.

        Returns:
            The plan's id, valid until `drop_plan` (a replay that has begun keeps its own hold).
        """
        if len(sizes) != len(offsets):
            raise NativeError(
                f"a plan of {len(sizes)} sizes and {len(offsets)} offsets: they must be as many."
            )
        table = np.array([sizes, offsets], dtype=np.int64).reshape(2, -1)
        rows = (row.ctypes.data_as(_TABLE) for row in table)
        return self._checked(self._native.tr_register_plan(len(sizes), *rows, alignment))

    def drop_plan(self, plan: int) -> None:
        """Forget a registered plan."""
        self._checked(self._native.tr_drop_plan(plan))

    def begin_replay(self, arena: int, plan: int, *, start: int = 0) -> None:
        """Serve the calling thread's allocations from ``arena`` as planned, from number ``start`` on.

        An allocation of another size, past the end, or over a block that is still alive is a
        divergence: it and all later ones come from the heap, under the same limit.
        """
        self._checked(self._native.tr_begin_replay(arena, plan, start))

    def end_replay(self) -> ReplayEnd:
        """Stop serving planned addresses; the arena stays leased, and a replay may go on in it."""
        out = (_I64 * _ENDED)()
        self._checked(self._native.tr_end_replay(out))
        return _replay_end(out[:])

    def begin_span(self, arena: int, plan: int, *, start: int = 0) -> MemoryStats:
        """Do what `stats`, `reset_peaks` and `begin_replay` do, at once."""
        out = (_I64 * len(MemoryStats._fields))()
        if (code := self._native.tr_begin_span(arena, plan, start, out)) < 0:
            self._checked(code)
        return MemoryStats(*out)

    def end_span(self) -> tuple[ReplayEnd, MemoryStats]:
        """Do what `end_replay`, `stats` and `reset_peaks` do, at once."""
        out = (_I64 * (_ENDED + len(MemoryStats._fields)))()
        if (code := self._native.tr_end_span(out)) < 0:
            self._checked(code)
        reached, reason = out[:2]
        end = _replay_end(out[:_ENDED]) if reason else ReplayEnd(reached, None)
        return end, MemoryStats(*out[_ENDED:])

    # what kernels take elsewhere

    def attach_hidden(self) -> bool:
        """Be ready to count what kernels take from the C library, in all libraries of torch loaded by now.

        Returns:
            Whether that can be counted on this system.
        """
        return bool(self._native.tr_attach_hidden())

    def begin_hidden(self) -> None:
        """Begin to count the blocks that kernels take from the C library, on every thread; this may nest."""
        self._native.tr_begin_hidden()

    def end_hidden(self) -> Hidden:
        """Tell what was taken since the last `begin_hidden` that has not ended yet."""
        out = (_I64 * len(Hidden._fields))()
        self._native.tr_end_hidden(out)
        return Hidden(*out)

    def tidy(self) -> None:
        """Give back what the matrix library keeps, but for `KEPT` bytes that need no memory until used.

        On a GPU, give back what torch keeps free: blocks that are cut out of it would keep it.
        """
        self._checked(self._native.tr_tidy(KEPT))

    def _checked(self, code: int) -> int:
        over_limit, misuse = self._refusals
        if code == over_limit:
            raise torch.OutOfMemoryError(self._native.tr_error().decode())
        if code == misuse:
            raise NativeError(f"allocator: {self._native.tr_error().decode()}.")
        return code


def _replay_end(found: Sequence[int]) -> ReplayEnd:
    """Read what says how a replay ended."""
    reached, reason, expected, got, outside = found
    if not reason:
        return ReplayEnd(reached, None)
    return ReplayEnd(reached, Divergence(reached, expected, got, _REASONS[reason], outside))


@functools.cache
def allocator() -> Allocator:
    """Install the allocator at the first call, and return it.

    Tensors made before that are not counted (see `Allocator.owns`).

    Raises:
        NativeError: there is no C++ compiler, the build failed, or another library has installed
            a CPU allocator that does not give way.
    """
    return Allocator(load("allocator"))


@functools.cache
def cuda_allocator(index: int) -> Allocator:
    """Put the allocator in front of torch's caching allocator of one GPU at the first call, and return it.

    Args:
        index: of the device; one of a process.

    Raises:
        NativeError: there is no C++ compiler or no headers of CUDA, the build failed, another device was
            chosen before, or torch allocates otherwise than by its caching allocator.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.empty(1, device=f"cuda:{index}")
    return Allocator(load("cuda_allocator"), index)
