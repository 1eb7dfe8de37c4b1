"""The counter: building it, starting a process under it, and reading it from inside."""

import ctypes
import os
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

from tightrope.core import Bytes, TightropeError
from tightrope.native import compiler

_SOURCE = Path(__file__).with_name("counter.cpp")


class Count(NamedTuple):
    """Bytes counted; peaks are since `Counter.reset`.

    Attributes:
        peak: of tensors, kernels' blocks and mapped pages together; never less than the truth.
        tensors_peak: of tensors' blocks.
        kernels_peak: of kernels' blocks.
        pages_peak: of mapped pages.
        tensors: held now.
        kernels: held now.
        kernel_pages: mapped by kernels (code that they compile), now.
        pages: mapped by others (arenas), now.
        lost: requests that the counter had no room to note: 0, or nothing here is right.
    """

    peak: Bytes
    tensors_peak: Bytes
    kernels_peak: Bytes
    pages_peak: Bytes
    tensors: Bytes
    kernels: Bytes
    kernel_pages: Bytes
    pages: Bytes
    lost: int

    @property
    def held(self) -> Bytes:
        """Everything held now."""
        return self.tensors + self.kernels + self.kernel_pages + self.pages


class Counter:
    """The counter that was loaded before this process began."""

    def __init__(self) -> None:
        path = os.environ.get("LD_PRELOAD", "")
        if _SOURCE.stem not in path:
            raise TightropeError("this process was not started under the counter: use `environment`.")
        self._native = ctypes.CDLL(path)

    def begin(self) -> None:
        """Begin to count."""
        self._native.witness_begin()

    def look(self) -> None:
        """Look at the resident pages now."""
        self._native.witness_look()

    def reset(self) -> None:
        """Begin new peaks at what is held now."""
        self._native.witness_reset()

    def read(self) -> Count:
        """Read everything."""
        out = (ctypes.c_int64 * len(Count._fields))()
        self._native.witness_read(out)
        return Count(*out)


def build(folder: Path) -> Path:
    """Compile the counter into a folder.

    Raises:
        TightropeError: there is no C++ compiler, or it refused the source.
    """
    command = compiler()
    if command is None:
        raise TightropeError("the witness counts bytes with a C++ library, and there is no C++ compiler.")
    target = folder / f"{_SOURCE.stem}.so"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra"]
    done = subprocess.run(
        [*shlex.split(command), *flags, str(_SOURCE), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TightropeError(f"{command} could not compile {_SOURCE.name}:\n{done.stderr}")
    return target


def environment(counter: Path) -> dict[str, str]:
    """What to start a process with: under the counter, on one thread, files never fetched."""
    wanted = {"LD_PRELOAD": str(counter), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **wanted}
