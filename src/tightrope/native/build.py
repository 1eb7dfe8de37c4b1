"""Find the C++ part that the wheel brings, or build it on first use and keep the results in a cache.

A library's file name holds a hash of its sources, torch's version and the processor, so an upgrade builds
a new file and never loads a stale one. The compiler is not part of it: an image that was built with a
compiler runs without. Builds happen in a private folder beside the target and are moved into place, so any
number of processes may build at once. `tightrope.core.cache` says where, and what is safe to load.
"""

import errno
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from tightrope.core import NativeError
from tightrope.core.cache import ADVICE, folders, said, warn_of
from tightrope.native.prebuilt import prebuilt, read_by, torch_folder
from tightrope.native.processor import described

SOURCES: Final = Path(__file__).parent
TORCH: Final = {
    "hook": ("-ltorch_cpu", "-lc10", "-pthread"),
    "kernels": ("-ltorch_cpu", "-lc10"),
    "cuda": ("-lc10_cuda", "-lc10", "-pthread"),
}
"""Folders whose sources include torch's headers, and what they link; the others know nothing of torch."""

_FAST: Final = ("-O3", "-march=native")
_AGAINST_TORCH: Final = "-O2"
_COMMON: Final = ("-std=c++20", "-shared", "-fPIC", "-Wall", "-Wextra")
FIRST: Final = ("packer", "allocator", "solver", "batch_norm")
"""What a first step needs; what takes longest to build comes first."""
_SECONDS: Final = 600
_INSTALL: Final = 'Install one (Debian: "apt install g++", macOS: "xcode-select --install") or set CXX.'


def compiler() -> str | None:
    """Find the C++ compiler: ``CXX`` if set, else the first of g++, c++ and clang++ on the path.

    Returns:
        The command as a shell would read it, or None when there is none (also when ``CXX`` names a
        program that does not exist: another compiler is never taken in its place).
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        return chosen if shutil.which(shlex.split(chosen)[0]) else None
    return next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), None)


def sources() -> tuple[str, ...]:
    """List the names that `library` accepts."""
    return tuple(sorted(_sources()))


def _sources() -> dict[str, Path]:
    found = {file.stem: file for file in SOURCES.rglob("*.cpp")}
    return found if has_cuda() else {name: file for name, file in found.items() if file.parent.name != "cuda"}


@functools.cache
def has_cuda() -> bool:
    """Tell whether the installed torch is built for CUDA, by its headers: torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "include/c10/cuda/impl/cuda_cmake_macros.h").is_file()


def _cuda_headers() -> tuple[Path, ...]:
    """Find the headers of the CUDA runtime: where CUDA is installed, or in the packages beside torch.

    The package of the runtime lacks those that it includes from ``crt/``: the package triton has them.
    """
    beside = torch_folder().parent
    chosen = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "include"
    packages = [
        *sorted(beside.glob("nvidia/*/include"), reverse=True),
        beside / "triton/backends/nvidia/include",
    ]
    found = []
    for header in ("cuda_runtime_api.h", "crt/host_config.h"):
        folder = next((one for one in (chosen, *packages) if (one / header).is_file()), None)
        if folder is None:
            raise NativeError(
                f"the headers of the CUDA runtime ({header}) were not found. Set CUDA_HOME to the folder of "
                "CUDA, or install the packages nvidia-cuda-runtime and nvidia-cuda-crt."
            )
        found.append(folder)
    return tuple(dict.fromkeys(found))


def library(name: str | Path) -> Path:
    """Build ``<name>.cpp`` unless it is in the cache, and return the shared library.

    Args:
        name: one of `sources`, or the path of a plug-in's source that knows nothing of torch.

    Returns:
        The path of the library.

    Raises:
        NativeError: no such source, no compiler, the compiler refused it, or no folder can hold it that is
            safe from other users.

    Example:
        >>> library("allocator").name.startswith("allocator-")  # doctest: +SKIP
        True
    """
    source = name if isinstance(name, Path) else _sources().get(name)
    if source is None:
        raise NativeError(f"there is no native source {name!r}; there are: {', '.join(sources())}.")
    return _found(source) or _built(source)


def unbuilt() -> tuple[str, ...]:
    """List what a first step needs that is not there yet; nothing where no compiler can build it."""
    known = _sources()
    return tuple(name for name in FIRST if compiler() and name in known and _found(known[name]) is None)


def build(names: Sequence[str]) -> None:
    """Build libraries, as many at once as there are processors; `library` says what is wrong with one."""

    def one(name: str) -> None:
        with suppress(NativeError):
            library(name)

    with ThreadPoolExecutor(os.cpu_count(), "tightrope build") as pool:
        list(pool.map(one, names))


def _found(source: Path) -> Path | None:
    """Find a library that is built: the wheel's, or else the first that is right where one may be kept."""
    if source.is_relative_to(SOURCES) and (brought := prebuilt(source.stem)):
        return brought
    file = _file(source)
    kept = (folder.find(file, run=True) for folder in folders())
    return next((path for path in kept if path is not None), None)


def _file(source: Path) -> str:
    return f"{source.stem}-{_key(source)}.so"


def _built(source: Path) -> Path:
    """Build a library in the first folder that can hold it."""
    command, file = compiler(), _file(source)
    if command is None:
        raise NativeError(
            f"no C++ compiler found for {source.name} (CXX={os.environ.get('CXX', '')!r}). {_INSTALL}"
        )
    compile_command = shlex.split(command)
    flags = _flags(source, compile_command)
    reasons: list[str] = []
    for folder in folders(last=True):
        try:
            with folder.building(file) as path:
                compile_one(source, path, compile_command, flags)
        except OSError as error:
            reasons.append(said(folder.path, error))
            continue
        made = folder.find(file, run=True)
        if made is None:
            reasons.append(f"{folder.path} was changed meanwhile")
            continue
        if reasons:
            warn_of(reasons[0], folder.path)
        return made
    reasons = reasons or ["there is neither a cache folder nor one of temporary files"]
    raise NativeError(f"{source.name} cannot be kept: {'; '.join(reasons)}. {ADVICE}")


def compile_one(source: Path, path: Path, command: list[str], flags: tuple[str, ...]) -> None:
    """Compile a source, with the compiler's temporary files beside the result.

    Raises:
        OSError: there is no room.
        NativeError: the compiler refused it.
    """
    # Libraries stand after the source: the linker drops them otherwise.
    run = [*command, *_COMMON, str(source), "-o", str(path), *flags]
    try:
        result = subprocess.run(
            run, capture_output=True, text=True, timeout=_SECONDS, check=False,
            env={**os.environ, "TMPDIR": str(path.parent)},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NativeError(
            f"{source.name} was still compiling after {_SECONDS} s; try another CXX."
        ) from error
    if result.returncode != 0:
        if os.strerror(errno.ENOSPC) in result.stderr:
            raise OSError(f"{path.parent.parent} is full")
        raise NativeError(_refusal(source.name, command, result.stderr))


def _refusal(source: str, command: list[str], stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if "error" in line] or stderr.splitlines()
    quoted = "\n".join(f"  {line}" for line in lines[:5]) or "  (it printed nothing)"
    return (
        f"{shlex.join(command)} could not compile {source}:\n{quoted}\n"
        "A compiler with C++20 is needed (g++ 11 or clang 14, or newer): set CXX to one."
    )


def _flags(source: Path, command: list[str]) -> tuple[str, ...]:
    if source.parent.name not in TORCH:
        return _FAST if _knows_native(command) else _FAST[:1]
    torch = torch_folder()
    links = TORCH[source.parent.name]
    if source.parent.name == "cuda":
        links = (*(flag for folder in _cuda_headers() for flag in ("-isystem", str(folder))), *links)
    return (_AGAINST_TORCH, "-isystem", str(torch / "include"), "-L", str(torch / "lib"), *links)


def _knows_native(command: list[str]) -> bool:
    """Tell whether a compiler knows ``-march=native``."""
    run = [*command, "-march=native", "-###", "-E", "-x", "c++", "-"]
    result = subprocess.run(
        run, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False
    )
    return result.returncode == 0


def _key(source: Path) -> str:
    """Hash what shapes a library, and no compiler: where there is none, one that was built is found."""
    digest = hashlib.sha256()
    for file in read_by(source):
        digest.update(file.read_bytes())
    digest.update(repr((_COMMON, _FAST, _AGAINST_TORCH, sys.platform, platform.machine())).encode())
    if source.parent.name in TORCH:
        digest.update((torch_folder() / "version.py").read_bytes())
    else:  # built for the processor: home folders, and so the cache, may be shared by different ones
        digest.update(described()[1].encode())
    return digest.hexdigest()[:32]
