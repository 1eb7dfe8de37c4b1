"""Lock files: what an environment held when it was trusted, kept outside of it.

RECORD files can be changed together with the files that they list, so they prove nothing against who can
write into the environment. A lock is the second copy, and has to lie where such a package cannot write.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

import msgspec

from tightrope.core import Bytes, TightropeError
from tightrope.core.checking import few, refuse, within
from tightrope.core.files import dump, load, naming, read_file
from tightrope.core.graph import SCHEMA_VERSION
from tightrope.core.provenance import DIGEST
from tightrope.core.writing import write_whole
from tightrope_verify.environment import Environment

_MAX_FILES: Final = 2_000_000


class LockedDistribution(msgspec.Struct, frozen=True, array_like=True):
    """A distribution, by its name."""

    name: str
    version: str


class LockedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file.

    Attributes:
        path: below the environment's base.
        owner: position among the distributions; -1 = none owns it, and that was allowed.
        bytes: its size.
        digest: SHA-256, as RECORD files write it.
        bytecode: digest of what its ``.pyc`` holds, where that was compared with the source; or empty.
    """

    path: str
    owner: int
    bytes: Bytes
    digest: str
    bytecode: str = ""


class Lock(msgspec.Struct, frozen=True):
    """What an environment held.

    Attributes:
        interpreter: such as ``cpython-311``.
        distributions: by name.
        files: by path.
        links: (path, target) of symbolic links that were allowed.
        schema: version of this layout.
    """

    interpreter: str
    distributions: tuple[LockedDistribution, ...]
    files: tuple[LockedFile, ...]
    links: tuple[tuple[str, str], ...] = ()
    schema: Literal[2] = SCHEMA_VERSION

    def owner(self, file: LockedFile) -> str:
        """Name the distribution that owned a file, with its version."""
        if file.owner < 0:
            return ""
        distribution = self.distributions[file.owner]
        return f"{distribution.name} {distribution.version}"

    def about(self, names: Collection[str]) -> "Lock":
        """The same lock, with some of its files alone.

        Args:
            names: paths below the environment's base.
        """
        files = tuple(file for file in self.files if file.path in names)
        return msgspec.structs.replace(self, files=files)


def check_lock(lock: Lock) -> None:
    """Check that a lock is well formed.

    Raises:
        PlanFileError: names the field and quotes the value.
    """
    few(lock.files, "lock: $.files", most=_MAX_FILES)
    few(lock.distributions, "lock: $.distributions")
    most = len(lock.distributions) - 1
    before = ""
    for position, file in enumerate(lock.files):
        where = f"lock: $.files[{position}]"
        if file.path <= before:
            refuse(f"{where}.path", file.path, "behind the path before it, each once")
        before = file.path
        within(file.owner, f"{where}.owner", low=-1, high=most)
        within(file.bytes, f"{where}.bytes")
        for name, digest in (("digest", file.digest), ("bytecode", file.bytecode or file.digest)):
            if not DIGEST.fullmatch(digest):
                refuse(f"{where}.{name}", digest, "SHA-256 as RECORD files write it")


def read_lock(path: str | Path) -> Lock:
    """Read a lock file; nothing in it is executed.

    Raises:
        PlanFileError: it cannot be read, or is no lock of this version.
    """
    data = read_file(path)
    with naming(path):
        return load(data, Lock, check_lock)


def write_lock(path: str | Path, lock: Lock, environment: Environment) -> None:
    """Write a lock file, complete or not at all.

    Raises:
        TightropeError: it would lie inside of what it locks.
        PlanFileError: it cannot be written.
    """
    target = Path(path).resolve()
    for root in environment.roots:
        if target.is_relative_to(root.resolve()):
            raise TightropeError(
                f"{str(path)!r} lies inside of what it locks, {str(root)!r}: who can change a package there "
                "could change the lock too. Write it somewhere else."
            )
    write_whole(path, dump(lock, check_lock))
