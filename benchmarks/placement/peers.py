"""What others do with the same buffers. Everything here is measured in the same run as our own placer."""

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightrope.core import Bytes, NativeError, Offset
from tightrope.core.cache import cache_folder
from tightrope.place import Interval

_CMAKE = """cmake_minimum_required(VERSION 3.16)
project(peer CXX)
set(CMAKE_CXX_STANDARD 20)
set(ABSL_PROPAGATE_CXX_STD ON)
add_subdirectory({folder}/external/abseil-cpp absl EXCLUDE_FROM_ALL)
file(GLOB sources {folder}/src/*.cc)
add_executable(minimalloc ${{sources}})
target_include_directories(minimalloc PRIVATE {folder}/src)
target_link_libraries(minimalloc absl::flags absl::flags_parse absl::statusor absl::log absl::log_initialize)
"""


def first_fit_decreasing(buffers: Sequence[Interval]) -> Bytes:
    """Place largest first, each at the lowest free address; return the peak."""
    order = sorted(range(len(buffers)), key=lambda j: -buffers[j][0])
    return _packed(buffers, order, best=False, shared=False)


def somas(buffers: Sequence[Interval]) -> Bytes:
    """Emulate the portfolio of SOMAS: two orders, two fits, two kinds of container; return the best peak."""
    alive = _largest_load(buffers)
    by_size = sorted(range(len(buffers)), key=lambda j: (-buffers[j][0], j))
    hot_first = sorted(by_size, key=lambda j: j not in alive)
    return min(
        _packed(buffers, order, best=best, shared=shared)
        for order in (by_size, hot_first)
        for best in (False, True)
        for shared in (False, True)
    )


def _largest_load(buffers: Sequence[Interval]) -> set[int]:
    """Indices of the buffers alive at an instant of largest load."""
    events = _events(buffers)
    load = largest = instant = 0
    for now, begins, j in events:
        load += buffers[j][0] if begins else -buffers[j][0]
        if load > largest:
            largest, instant = load, now
    return {j for j, (_, start, end) in enumerate(buffers) if start <= instant < end}


def _events(buffers: Sequence[Interval]) -> list[tuple[int, bool, int]]:
    """List (time, whether it begins, buffer); at one time, ends come first."""
    begins = [(start, True, j) for j, (_, start, _) in enumerate(buffers)]
    return sorted(begins + [(end, False, j) for j, (_, _, end) in enumerate(buffers)])


def _packed(buffers: Sequence[Interval], order: Iterable[int], *, best: bool, shared: bool) -> Bytes:
    """Place in order, first or best fit; with ``shared``, only inside footprints of earlier buffers."""
    placed: list[tuple[Offset, Offset, int, int]] = []
    walls: list[Offset] = [0]
    peak = 0
    for j in order:
        size, start, end = buffers[j]
        taken = [(low, high) for low, high, begin, finish in placed if begin < end and start < finish]
        holes = _holes(taken, peak, walls if shared else [0])
        fitting = [(high - low, low) for low, high in holes if high - low >= size]
        if fitting:
            at = min(fitting)[1] if best else min(low for _, low in fitting)
        else:
            at = peak if shared else max((high for _, high in taken), default=0)
        if at + size > peak:
            peak = at + size
            if shared:
                walls.append(peak)
        insort(placed, (at, at + size, start, end))
    return peak


def _holes(
    taken: Sequence[tuple[Offset, Offset]], peak: Offset, walls: Sequence[Offset]
) -> list[tuple[Offset, Offset]]:
    """List free ranges below the peak, cut at the walls between shared objects."""
    free, reached = [], 0
    for low, high in taken:
        if low > reached:
            free.append((reached, low))
        reached = max(reached, high)
    if peak > reached:
        free.append((reached, peak))
    cut: list[tuple[Offset, Offset]] = []
    for low, high in free:
        at = bisect_right(walls, low)
        while at < len(walls) and walls[at] < high:
            cut.append((low, walls[at]))
            low = walls[at]
            at += 1
        cut.append((low, high))
    return cut


@dataclass
class _Segment:
    base: int
    size: Bytes
    free: list[tuple[Offset, Bytes]]


def caching_allocator(buffers: Sequence[Interval], *, iterations: int = 2) -> Bytes:
    """Emulate the PyTorch caching allocator on one stream and return the bytes reserved.

    Sizes are rounded up to 512; requests up to 1 MiB come from segments of 2 MiB, those below 10 MiB
    from segments of 20 MiB, larger ones from segments rounded up to 2 MiB; best fit with split and merge.
    """
    pool: dict[bool, list[_Segment]] = {True: [], False: []}
    reserved = 0
    events = _events(buffers)
    for _ in range(iterations):
        held: dict[int, tuple[_Segment, Offset]] = {}
        for _, begins, j in events:
            size = -(-max(buffers[j][0], 1) // 512) * 512
            small = size <= 2**20
            if not begins:
                _give_back(*held.pop(j), size)
                continue
            found = _best(pool[small], size, small)
            if found is None:
                length = 2**21 if small else 20 * 2**20 if size < 10 * 2**20 else -(-size // 2**21) * 2**21
                found = (_Segment(reserved, length, [(0, length)]), 0)
                pool[small].append(found[0])
                reserved += length
            held[j] = _take(*found, size)
    return reserved


def _best(segments: list[_Segment], size: Bytes, small: bool) -> tuple[_Segment, int] | None:
    """Smallest free block that fits; large blocks are only used when little of them is left over."""
    best: tuple[Bytes, int, _Segment, int] | None = None
    for segment in segments:
        for index, (_, length) in enumerate(segment.free):
            if length >= size and (best is None or (length, segment.base) < best[:2]):
                best = (length, segment.base, segment, index)
    return None if best is None else (best[2], best[3])


def _take(segment: _Segment, index: int, size: Bytes) -> tuple[_Segment, Offset]:
    offset, length = segment.free.pop(index)
    if length > size:
        insort(segment.free, (offset + size, length - size))
    return segment, offset


def _give_back(segment: _Segment, offset: Offset, size: Bytes) -> None:
    merged: list[tuple[Offset, Bytes]] = []
    for low, length in sorted([*segment.free, (offset, size)]):
        if merged and merged[-1][0] + merged[-1][1] == low:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((low, length))
    segment.free = merged


def cp_sat(buffers: Sequence[Interval], *, seconds: float) -> tuple[Bytes | None, bool]:
    """Minimise the peak with CP-SAT's ``no_overlap_2d``, one worker; return peak and whether it is proved.

    It runs in a process of its own: OR-Tools cannot be loaded beside another copy of HiGHS.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.placement.cp_sat", str(seconds)],
        input=json.dumps([list(buffer) for buffer in buffers]),
        capture_output=True,
        text=True,
        check=True,
    )
    peak, proved = json.loads(done.stdout)
    return peak, proved


def build_minimalloc(folder: Path) -> Path:
    """Build MiniMalloc from its own sources, with abseil in ``external/abseil-cpp``, once.

    Raises:
        NativeError: cmake is absent or the build fails.
    """
    if shutil.which("cmake") is None:
        raise NativeError("MiniMalloc is built with cmake, which is not installed.")
    target = (cache_folder() or Path(tempfile.gettempdir())) / "peer-minimalloc"
    target.mkdir(parents=True, exist_ok=True)
    (target / "CMakeLists.txt").write_text(_CMAKE.format(folder=folder.resolve()))
    for command in (
        ["cmake", "-S", str(target), "-B", str(target / "build"), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(target / "build"), "--target", "minimalloc"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NativeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-600:]}")
    return target / "build" / "minimalloc"


def minimalloc(program: Path, file: Path, capacity: Bytes, *, seconds: float) -> tuple[float, bool]:
    """Ask MiniMalloc whether a file fits; return its CPU seconds and whether it found a solution."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.csv"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [
                program,
                f"--capacity={capacity}",
                f"--input={file}",
                f"--output={output}",
                f"--timeout={seconds}s",
            ],
            capture_output=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        solved = output.is_file() and re.search(r"offset", output.read_text()) is not None
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, solved
