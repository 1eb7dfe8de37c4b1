"""Build the C++ sources of `hook` and `solvers` on first use and keep the results in a cache.

A library's file name holds a hash of everything that shapes it, so an upgrade of the source, the
compiler or torch builds a new file and never loads a stale one. Builds happen in a private folder
beside the target and are moved into place, so any number of processes may build at once.

A library runs as the user who loads it, so only files that this user alone could have written are
loaded: folder and file must be the user's own, and nobody else may write them. Another file in the
cache is built anew and replaced; another cache is left alone: the process builds into a folder of its own.
"""

import atexit
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

from tightrope.core import NativeError

SOURCES: Final = Path(__file__).parent
TORCH: Final = {
    "hook": ("-lc10", "-pthread"),
    "kernels": ("-ltorch_cpu", "-lc10"),
    "cuda": ("-lc10_cuda", "-lc10", "-pthread"),
}
"""Folders whose sources include torch's headers, and what they link; the others know nothing of torch."""

_COMMON: Final = ("-std=c++20", "-shared", "-fPIC", "-Wall", "-Wextra")
_INCLUDE: Final = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_SECONDS: Final = 600
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OWN_FOLDER: Final = "Set TIGHTROPE_CACHE to a folder of your own that only you can write (chmod 700)."
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


def cache_folder() -> Path:
    """Name the folder of built libraries: ``TIGHTROPE_CACHE``, else ``tightrope`` in the user's cache."""
    chosen = os.environ.get("TIGHTROPE_CACHE", "")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tightrope"


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
    beside = _torch_folder().parent
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
                f"the headers of the CUDA runtime ({header}) were not found: set CUDA_HOME to the folder in "
                "which CUDA is installed, or install the packages nvidia-cuda-runtime and nvidia-cuda-crt."
            )
        found.append(folder)
    return tuple(dict.fromkeys(found))


def library(name: str) -> Path:
    """Build ``<name>.cpp`` unless it is in the cache, and return the shared library.

    Args:
        name: one of `sources`.

    Returns:
        The path of the library.

    Raises:
        NativeError: no such source, no compiler, the compiler refused it, the cache cannot be written, or
            neither the cache nor the folder of temporary files is safe from other users.

    Example:
        >>> library("allocator").name.startswith("allocator-")  # doctest: +SKIP
        True
    """
    source = _sources().get(name)
    if source is None:
        raise NativeError(f"there is no native source {name!r}; there are: {', '.join(sources())}.")
    command = compiler()
    if command is None:
        raise NativeError(
            f"no C++ compiler found for {name}.cpp (CXX={os.environ.get('CXX', '')!r}). {_INSTALL}"
        )
    compile_command = shlex.split(command)
    flags = _flags(source, compile_command)
    target = _safe_folder(source.name) / f"{name}-{_key(source, compile_command, flags)}.so"
    if not _is_own_file(target):
        _compile(source, target, compile_command, flags)
    return target


def _safe_folder(source: str) -> Path:
    """Name a folder that nobody else can write: the cache, without symlinks, or one of this process."""
    cache = cache_folder()
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = cache.resolve(strict=True)
        if (why := _exposed(folder)) is None:
            return folder
        _warn_once(f"{why}, so native libraries are built again in every process. {_OWN_FOLDER}")
        return _process_folder(os.getpid())
    except OSError as error:
        raise NativeError(_cannot_build(source, error)) from error


def is_safe(target: Path) -> bool:
    """Tell whether this is a file of this user, in a folder where nobody else can change or replace it.

    Args:
        target: a file with code.
    """
    return _is_own_file(target) and _exposed(target.parent.resolve()) is None


def _exposed(folder: Path) -> str | None:
    """Say how another user could put a library into a folder or take its place; None = in no way.

    Of the folders above, those that everybody may write count, but for the sticky bit of ``/tmp``. A
    group that may write one of them is taken for the user's own, as many systems set it up.
    """
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to user {found.st_uid} and not to user {os.geteuid()}, who runs this"
    if found.st_mode & _OTHERS_WRITE:
        return f"{folder} can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    for above in folder.parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{above}, above {folder}, can be written by everybody (mode {stat.S_IMODE(mode):o})"
    return None


def _is_own_file(target: Path) -> bool:
    """Tell whether this is a file, and no link, of this user that nobody else may write."""
    try:
        found = target.lstat()
    except OSError:
        return False
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return own and not found.st_mode & _OTHERS_WRITE


@functools.cache
def _process_folder(process: int) -> Path:
    """Make a folder that lasts as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="tightrope-")).resolve()
    atexit.register(_remove, folder, process)
    if (why := _exposed(folder)) is not None:
        raise NativeError(f"{why}: no native library is loaded from there. {_OWN_FOLDER}")
    return folder


def _remove(folder: Path, process: int) -> None:
    """Remove the folder at exit, unless it is a forked process that exits."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _warn_once(what: str) -> None:
    warnings.warn(what, RuntimeWarning, stacklevel=4)


def _compile(source: Path, target: Path, command: list[str], flags: tuple[str, ...]) -> None:
    """Compile into a private folder beside ``target``, then move the library into place."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            built = Path(folder) / target.name
            # Libraries stand after the source: the linker drops them otherwise.
            run = [*command, *_COMMON, str(source), "-o", str(built), *flags]
            result = subprocess.run(run, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if result.returncode != 0:
                raise NativeError(_refusal(source.name, command, result.stderr))
            built.chmod(0o700)
            os.replace(built, target)
    except OSError as error:
        raise NativeError(_cannot_build(source.name, error)) from error
    except subprocess.TimeoutExpired as error:
        raise NativeError(
            f"{source.name} was still compiling after {_SECONDS} s; try another CXX."
        ) from error


def _cannot_build(source: str, error: OSError) -> str:
    return f"could not build {source}: {error}. Set TIGHTROPE_CACHE to a folder that can be written."


def _refusal(source: str, command: list[str], stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if "error" in line] or stderr.splitlines()
    quoted = "\n".join(f"  {line}" for line in lines[:5]) or "  (it printed nothing)"
    return (
        f"{shlex.join(command)} could not compile {source}:\n{quoted}\n"
        "A compiler with C++20 is needed (g++ 11 or clang 14, or newer): set CXX to one."
    )


def _flags(source: Path, command: list[str]) -> tuple[str, ...]:
    if source.parent.name not in TORCH:
        return ("-O3", "-march=native") if _target(command) else ("-O3",)
    torch = _torch_folder()
    links = TORCH[source.parent.name]
    if source.parent.name == "cuda":
        links = (*(flag for folder in _cuda_headers() for flag in ("-isystem", str(folder))), *links)
    return ("-O2", "-isystem", str(torch / "include"), "-L", str(torch / "lib"), *links)


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NativeError("torch is not installed, and the allocator is built against its headers.")
    return Path(spec.origin).parent


def _target(command: list[str]) -> str:
    """Ask what ``-march=native`` means here; empty when the compiler does not know the option."""
    return _ask([*command, "-march=native", "-###", "-E", "-x", "c++", "-"])


def _ask(run: list[str]) -> str:
    result = subprocess.run(
        run, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False
    )
    return result.stdout + result.stderr if result.returncode == 0 else ""


def _read_by(source: Path) -> list[Path]:
    """List the source and every file that it includes by a name in quotes, directly or not."""
    files = [source.resolve()]
    for file in files:
        included = ((file.parent / name).resolve() for name in _INCLUDE.findall(file.read_text("utf-8")))
        files.extend(path for path in included if path not in files)
    return files


def _key(source: Path, command: list[str], flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file in _read_by(source):
        digest.update(file.read_bytes())
    digest.update(
        repr((_ask([*command, "--version"]).partition("\n")[0], _COMMON, flags, sys.platform)).encode()
    )
    if "-march=native" in flags:
        # Home folders, and so the cache, may be shared by machines with different processors.
        digest.update(_target(command).encode())
    if source.parent.name in TORCH:
        digest.update((_torch_folder() / "version.py").read_bytes())
    return digest.hexdigest()[:32]
