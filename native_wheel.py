"""Build a wheel that brings the native part: ``make wheel``, or ``python -m native_wheel``.

What knows no torch is built once, for a baseline of processors. The rest is built for every torch whose
environment is named. What includes CUDA's headers is left out: `tightrope.native.build` builds it.
"""

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tightrope.core import NativeError
from tightrope.core.writing import write_whole
from tightrope.native.build import SOURCES, TORCH, compile_one, compiler
from tightrope.native.prebuilt import MANIFEST, BuiltLibrary, hash_of, torch_folder, torch_minor

FOLDER: Final = "TIGHTROPE_LIBRARIES"
TAG: Final = "TIGHTROPE_TAG"
"""Variables that ``hatch_build.py`` reads: the folder of libraries to add, and the tag of the platform."""

_BASELINE: Final = ("-march=x86-64-v2",) if platform.machine() == "x86_64" else ()
_ALONE: Final = ("-O3", *_BASELINE, "-s")
_WITH_TORCH: Final = ("-O2", "-s")
_NEEDED: Final = re.compile(r"\((GLIBC|GLIBCXX|CXXABI)_([\d.]+)\)")
_WHERE: Final = "import importlib.util as i; print(i.find_spec('torch').origin)"


def make(torches: Sequence[Path], built: Path, wheels: Path) -> Path:
    """Build the libraries and the wheel; a library that is there and fits is kept.

    Args:
        torches: folders of installed torch packages, one a minor version.
        built: where the libraries lie.
        wheels: where the wheel goes.

    Returns:
        The wheel.

    Raises:
        NativeError: no compiler, or it refused a source.
    """
    built.mkdir(parents=True, exist_ok=True)
    libraries = [
        *(
            _built(source, built)
            for source in sorted(SOURCES.rglob("*.cpp"))
            if source.parent.name not in TORCH
        ),
        *(
            _built(source, built, folder)
            for folder in torches
            for source in sorted(SOURCES.rglob("*.cpp"))
            if source.parent.name in ("hook", "kernels")
        ),
    ]
    known = {MANIFEST, *(library.file for library in libraries)}
    for file in built.glob("*"):
        if file.name not in known and file.suffix != ".stamp":
            file.unlink()
    write_whole(built / MANIFEST, msgspec.json.format(msgspec.json.encode(libraries)))
    tag = f"py3-none-{platform_of(built / library.file for library in libraries)}"
    run = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    # Hatchling runs in the environment that has it: no network is needed.
    result = subprocess.run(
        run, capture_output=True, text=True, check=True, env={**os.environ, FOLDER: str(built), TAG: tag}
    )
    return Path((result.stdout + result.stderr).split()[-1])


def _built(source: Path, folder: Path, torch: Path | None = None) -> BuiltLibrary:
    library = BuiltLibrary(source.stem, hash_of(source), torch_minor(torch) if torch else "")
    command = compiler()
    if command is None:
        raise NativeError("a wheel is built with a C++ compiler, and there is none: set CXX to one.")
    flags = _ALONE
    if torch is not None:
        links = ("-L", str(torch / "lib"), *TORCH[source.parent.name])
        flags = (*_WITH_TORCH, "-isystem", str(torch / "include"), *links)
    stamp, path = folder / f"{library.file}.stamp", folder / library.file
    wanted = hashlib.sha256(repr((library, command, flags)).encode()).hexdigest()
    if not (path.is_file() and stamp.is_file() and stamp.read_text() == wanted):
        compile_one(source, path, shlex.split(command), flags)
        write_whole(stamp, wanted)
    return library


def platform_of(libraries: Iterable[Path]) -> str:
    """Name the oldest platform on which libraries load, by the versions of symbols that they need.

    A version of libstdc++ counts as that of the glibc with which it came in Debian and in Red Hat's systems.

    Returns:
        A tag, such as "manylinux_2_34_x86_64".
    """
    needed = [version for library in libraries for version in _versions(library)]
    minor = max([17, *(_glibc(kind, numbers) for kind, numbers in needed)])
    return f"manylinux_2_{minor}_{platform.machine()}"


def _versions(library: Path) -> list[tuple[str, tuple[int, ...]]]:
    listing = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True)
    undefined = (line for line in listing.stdout.splitlines() if "*UND*" in line)
    found = {match for line in undefined for match in _NEEDED.findall(line)}
    return [(kind, tuple(int(part) for part in version.split("."))) for kind, version in sorted(found)]


def _glibc(kind: str, version: tuple[int, ...]) -> int:
    """Say which minor version of glibc 2 has a symbol's version, or comes with a libstdc++ that has it."""
    if kind == "GLIBC":
        return version[1]
    # The policies of manylinux: libstdc++ of gcc 4.8, 8, 11 and 13.
    policies = {
        "GLIBCXX": ((19, 17), (24, 28), (29, 34), (32, 39)),
        "CXXABI": ((7, 17), (11, 28), (13, 34), (14, 39)),
    }
    last = version[2] if len(version) > 2 else 0
    for newest, glibc in policies[kind]:
        if last <= newest:
            return glibc
    raise NativeError(f"{kind}_{'.'.join(map(str, version))} is newer than what any platform's tag allows.")


def torch_of(python: str) -> Path:
    """Find the torch that an interpreter imports."""
    found = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).parent


def main(pythons: Sequence[str]) -> int:
    """Build the wheel for the torch of every interpreter that is named, else of this one; print its path."""
    torches = [torch_of(python) for python in pythons] or [torch_folder()]
    wheel = make(torches, Path("build/libraries").absolute(), Path("dist").absolute())
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
