"""The slower tier of a CPU: a file without a name, and the thread that copies to and from it.

Idea        One file and one thread per compiled model. A copy is cut into pieces of 1 MiB, which go by way
            of one staging buffer: aligned, as direct I/O needs it, and counted as memory of the process.
            The step hands a copy over and goes on; it waits where the plan says so. Nobody else knows
            the file, so the checksums of what was written stay in memory.
Guarantee   What comes back is what was written, or `PagingError` is raised where the step waits for it:
            a full disk, a transfer that stops short and bytes that changed never become values. The
            system gives the file's blocks back when the process ends, however it ends.
Complexity  Every byte is copied once and summed once beside the transfer, without the interpreter lock.
Gaps        One copy at a time, in the order of issue. A change of any one word, as by a flipped bit, is
            always found, others with all but certainty; nothing guards against writing on purpose.
"""

import ctypes
import hashlib
import mmap
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from tightrope.core import (
    Bytes,
    Nanoseconds,
    Offset,
    PagingError,
    Tier,
    TightropeError,
    format_bytes,
    round_up,
)
from tightrope.core.arguments import check_kind, refuse_argument
from tightrope.core.units import shown

BLOCK: Final[Bytes] = 4096
"""Direct I/O moves whole blocks, so pages lie in the file at multiples of this."""
_PIECE: Final[Bytes] = 1 << 20
_COLUMNS: Final = 1024
_TRIAL: Final[Bytes] = 32 << 20
_WORK: Final = 1 << 15
"""Numbers that are worked on beside a trial of small copies, in some microseconds."""
_MUCH: Final = 1 << 20
"""And beside large ones: no more in the caches than what an op reads and writes."""
_UNITS: Final = 9
"""Rounds of that work which are timed without a copy."""
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_NEEDED: Final = ("preadv", "pwrite", "posix_fallocate", "statvfs")
"""Calls of the system, of which some systems lack one or all."""
preadv: Any = getattr(os, "preadv", None)
pwrite: Any = getattr(os, "pwrite", None)
_NEXT: Final = "Weights and optimizer are as they were. See to the disk, or give page_to another one."


class PageCopy:
    """One copy between memory and the file. It knows an address and no tensor: tensors die elsewhere."""

    def __init__(self, address: int, size: Bytes, offset: Offset, expected: bytes = b"") -> None:
        self.address, self.size, self.offset, self.expected = address, size, offset, expected
        self.done = threading.Event()
        self.checksum = b""
        self.problem = ""


class PageFile:
    """A file that pages go to; state of the runtime.

    Args:
        folder: on a disk with room for it.

    Attributes:
        direct: whether transfers pass by the system's page cache.

    Raises:
        TightropeError: there is no such folder, nothing can be written there, it lies in memory itself, or
            the system lacks a call that pages need.
    """

    def __init__(self, folder: object) -> None:
        check_kind("page_to", folder, (str, Path), "the path of a folder on a disk")
        if lacking := [name for name in _NEEDED if not hasattr(os, name)]:
            raise TightropeError(
                f"page_to={shown(str(folder))}: on this system ({sys.platform}) Python lacks "
                f"{', '.join(f'os.{name}' for name in lacking)}, which pages need. Leave page_to out, or "
                "train on Linux."
            )
        self._folder = Path(str(folder))
        if not self._folder.is_dir():
            refuse_argument("page_to", folder, "the path of a folder that exists, on a disk")
        if (kind := _file_system(self._folder)) in _IN_MEMORY:
            refuse_argument("page_to", folder, f"a folder on a disk; this one lies in memory ({kind})")
        self._fd, self.direct = _opened(self._folder)
        self._memory = torch.empty(_PIECE + BLOCK, dtype=torch.uint8)  # counted like any tensor
        self._queue: SimpleQueue[PageCopy | None] = SimpleQueue()
        self._free: list[tuple[Bytes, Offset]] = []
        self._end: Offset = 0
        self._tier: Tier | None = None
        staging = _Staging(self._fd, self._memory)
        threading.Thread(target=_serve, args=(staging, self._queue), daemon=True, name="pages").start()

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._queue.put(None)  # behind what is on its way; the thread closes the file

    @property
    def bytes(self) -> Bytes:
        """Size of the file."""
        return self._end

    def tier(self) -> Tier:
        """Describe it as a tier: nine tenths of what is free there, and the rates of a trial.

        Raises:
            PagingError: the trial failed.
        """
        if self._tier is None:
            self._tier = self._measured()
        return self._tier

    def lease(self, size: Bytes) -> "Pages":
        """Reserve exactly ``size`` bytes until the result is dropped.

        Raises:
            PagingError: the disk is full.
        """
        for free, offset in sorted(self._free):
            if free >= size:
                self._free.remove((free, offset))
                if free > size:
                    self._free.append((free - size, offset + size))
                return Pages(self, size, offset)
        if sum(free for free, _ in self._free) == self._end:  # nobody has pages: begin again
            self._free, self._end = [], 0
        try:
            os.posix_fallocate(self._fd, self._end, max(size, 1))
        except OSError as error:
            raise PagingError(
                f"{format_bytes(size)} for pages are not to be had in {shown(str(self._folder))}: "
                f"{error.strerror}. {_NEXT}"
            ) from error
        self._end += size
        return Pages(self, size, self._end - size)

    def give_back(self, size: Bytes, offset: Offset) -> None:
        """Take a region back; for `Pages`."""
        self._free.append((size, offset))

    def start(self, transfer: PageCopy) -> None:
        """Hand a copy to the thread."""
        self._queue.put(transfer)

    def _measured(self) -> Tier:
        room = os.statvfs(self._folder)
        free = room.f_bavail * room.f_frsize // 10 * 9
        size = max(min(_TRIAL, free // BLOCK * BLOCK), 2 * BLOCK)
        array = np.frombuffer(mmap.mmap(-1, size), np.uint64)  # beside the budget's allocator
        array[:] = np.arange(len(array))
        pages = self.lease(size)
        little, much = np.ones(_WORK, np.float32), np.ones(_MUCH, np.float32)
        small = [_timed(pages, array.ctypes.data, BLOCK, little) for _ in range(9)]
        large = [_timed(pages, array.ctypes.data, size, much) for _ in range(3)]
        latency = min(median(trial.ns for trial in way) for way in zip(*small, strict=True))
        write, read = (
            1e9 * size / (median(trial.ns for trial in way) - latency) for way in zip(*large, strict=True)
        )
        unit = _unit(much)
        toll = median((trial.ns - unit * trial.units) / size for way in large for trial in way)
        return Tier(
            "file", free, BLOCK, read=read, write=write, latency=latency * 1e-9, toll=max(0.0, toll * 1e-9)
        )


class _Trial(NamedTuple):
    """One timed copy: by the clock on the wall, and rounds of work done beside it."""

    ns: Nanoseconds
    units: int


def _timed(pages: "Pages", address: int, size: Bytes, work: Any) -> tuple[_Trial, _Trial]:
    """Time one copy out and one back by the clock on the wall, beside work of this thread, as in a step.

    Where both threads have to share a processor, or wait for each other, that is in the rates; and where
    the work takes longer beside copies than alone, that is their toll.
    """
    found = []
    for copy in (pages.out, pages.back):
        start, units = time.perf_counter_ns(), 0
        copy(0, address, size, 0)
        while not pages.has_ended(0):
            np.multiply(work, work, out=work)
            units += 1
        pages.wait(0)
        found.append(_Trial(time.perf_counter_ns() - start, units))
    return found[0], found[1]


def _unit(work: Any) -> Nanoseconds:
    """Time a round of work without a copy."""
    spent = []
    for _ in range(_UNITS):
        start = time.perf_counter_ns()
        np.multiply(work, work, out=work)
        spent.append(time.perf_counter_ns() - start)
    return round(median(spent))


class Pages:
    """A region of the file that belongs to one execution, and the copies that are on their way."""

    def __init__(self, file: PageFile, size: Bytes, offset: Offset) -> None:
        self._file, self._size, self._offset = file, size, offset
        self._checksums: dict[int, bytes] = {}
        self._on_their_way: dict[int, tuple[PageCopy, Any]] = {}

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for transfer, _ in self._on_their_way.values():  # memory stays while it is copied
                transfer.done.wait()
            self._file.give_back(self._size, self._offset)

    def out(self, key: int, address: int, size: Bytes, offset: Offset, holds: Any = None) -> None:
        """Begin to write memory, which must not change until `wait`.

        Args:
            key: of the page.
            address: where to begin.
            size: in bytes.
            offset: in the region.
            holds: what keeps the memory.
        """
        self._begin(key, PageCopy(address, size, self._offset + offset), holds)

    def back(self, key: int, address: int, size: Bytes, offset: Offset, holds: Any = None) -> None:
        """Begin to read what was written under a key; arguments as those of `out`."""
        self._begin(key, PageCopy(address, size, self._offset + offset, self._checksums[key]), holds)

    def _begin(self, key: int, transfer: PageCopy, holds: Any) -> None:
        self._on_their_way[key] = transfer, holds
        self._file.start(transfer)

    def has_ended(self, key: int) -> bool:
        """Whether the copy under a key is over, so that `wait` does not wait."""
        return self._on_their_way[key][0].done.is_set()

    def wait(self, key: int) -> None:
        """Wait until the copy under a key has ended.

        Raises:
            PagingError: it failed, or brought other bytes back than were written.
        """
        transfer, _ = self._on_their_way[key]
        transfer.done.wait()
        del self._on_their_way[key]
        if transfer.problem:
            raise PagingError(transfer.problem)
        self._checksums[key] = transfer.checksum


class _Staging:
    """The buffer that every byte passes through, and the two ways through it."""

    def __init__(self, fd: int, memory: torch.Tensor) -> None:
        self.fd, self._memory = fd, memory
        self._address = round_up(memory.data_ptr(), BLOCK)
        raw = (ctypes.c_char * _PIECE).from_address(self._address)
        self._bytes = memoryview(raw).cast("B")
        self._words = np.frombuffer(self._bytes, np.uint64).reshape(-1, _COLUMNS)

    def run(self, transfer: PageCopy) -> None:
        """Make one copy."""
        sums = np.zeros(_COLUMNS, np.uint64)
        for start in range(0, transfer.size, _PIECE):
            count = min(_PIECE, transfer.size - start)
            address, at, moved = transfer.address + start, transfer.offset + start, round_up(count, BLOCK)
            if transfer.expected:
                _whole(preadv(self.fd, [self._bytes[:moved]], at), moved, "read")
                sums = self._added(sums, count)
                ctypes.memmove(address, self._address, count)
            else:
                ctypes.memmove(self._address, address, count)
                sums = self._added(sums, count)
                _whole(pwrite(self.fd, self._bytes[:moved], at), moved, "written")
        transfer.checksum = hashlib.blake2b(sums.tobytes(), digest_size=16).digest()
        if transfer.expected and transfer.checksum != transfer.expected:
            raise PagingError(f"a page came back from the disk with other bytes than were written. {_NEXT}")

    def _added(self, sums: Any, count: Bytes) -> Any:
        """Add a piece to the sums of its 1,024 columns of words, those so far times 3: order matters."""
        rows = -(-count // (8 * _COLUMNS))
        self._bytes[count : rows * 8 * _COLUMNS] = bytes(rows * 8 * _COLUMNS - count)
        return sums * np.uint64(3) + np.add.reduce(self._words[:rows], axis=0)


def _whole(done: Bytes, asked: Bytes, verb: str) -> None:
    if done != asked:
        raise PagingError(f"{done} bytes of a page were {verb}, not {asked}. {_NEXT}")


def _serve(staging: _Staging, queue: "SimpleQueue[PageCopy | None]") -> None:
    """Make copies in the order of issue until nobody is left to ask for one."""
    while (transfer := queue.get()) is not None:
        try:
            staging.run(transfer)
        except PagingError as error:
            transfer.problem = str(error)
        except Exception as error:  # raised where the step waits for it
            transfer.problem = f"a page could not be copied: {error}. {_NEXT}"
        transfer.done.set()
        del transfer
    os.close(staging.fd)


def _opened(folder: Path) -> tuple[int, bool]:
    """Open a file without a name, for direct I/O where the file system knows it."""
    for direct in (getattr(os, "O_DIRECT", 0), 0):
        try:
            return _nameless(folder, direct), bool(direct)
        except OSError as error:
            found = error
    raise TightropeError(
        f"page_to={shown(str(folder))}: no file can be made there ({found.strerror}). Give another folder."
    ) from found


def _nameless(folder: Path, direct: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | direct
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # not every file system has files without names
        made, name = tempfile.mkstemp(prefix="tightrope-", dir=folder)
        try:
            return os.open(name, flags)
        finally:
            os.close(made)
            os.unlink(name)


def _file_system(folder: Path) -> str:
    """Name the kind of file system that a folder lies in; empty where the system does not say."""
    device = folder.stat().st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    info = Path("/proc/self/mountinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        fields = line.split()
        if fields[2] == here:
            return fields[fields.index("-") + 1]
    return ""
