"""What a check of installed code found: one value per file that is not as it should be."""

import base64
import hashlib
from enum import StrEnum
from pathlib import Path

import msgspec

from tightrope.core import Bytes, IntegrityError
from tightrope.core.units import printable


class FindingKind(StrEnum):
    """In what way something is not as it should be."""

    CHANGED = "changed"
    MISSING = "missing"
    OWNERS = "owners"
    UNOWNED = "unowned"
    RECORD = "record"
    SYMLINK = "symlink"
    UNHASHED = "unhashed"
    UNREADABLE = "unreadable"
    BYTECODE = "bytecode"
    LOCK = "lock"
    VERSION = "version"
    CODE = "code"
    GRAPH = "graph"


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be.

    Attributes:
        kind: in what way.
        path: of the file, below the environment where it lies in it.
        owner: distributions that own it, such as ``numpy 2.0``; empty = none does.
        expected: digest, version or target that was expected; empty = nothing was.
        found: what is there.
        why: one sentence without the names and digests.
    """

    kind: FindingKind
    path: str
    owner: str
    expected: str
    found: str
    why: str

    def __str__(self) -> str:
        owner = f" (owner: {self.owner or 'no distribution'})"
        both = f"; expected {self.expected or 'nothing'}, found {self.found or 'nothing'}"
        return printable(f"{self.kind}: {self.path}{owner}: {self.why}{both}")


class Inspection(msgspec.Struct, frozen=True):
    """What a check looked at and found.

    Attributes:
        problems: what is wrong; empty = everything is as it should be.
        notes: what was not checked, or is worth knowing.
        num_distributions: installed ones.
        num_files: files whose bytes were hashed.
        num_bytes: of those files.
        cpu_seconds: of this process.
        locked: whether there was a lock to compare with.
        num_bytecode: files of byte code that were compared.
        bytecode_bytes: of those, which `num_bytes` does not count.
    """

    problems: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    num_distributions: int = 0
    num_files: int = 0
    num_bytes: Bytes = 0
    cpu_seconds: float = 0.0
    locked: bool = False
    num_bytecode: int = 0
    bytecode_bytes: Bytes = 0

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def demand(self) -> "Inspection":
        """Return this verdict, or refuse.

        Raises:
            IntegrityError: something is wrong; names the first file, its owner and both digests.

        Example:
            >>> Inspection(()).demand().holds
            True
        """
        if self.problems:
            more = len(self.problems) - 1
            others = f" And {more} more." * bool(more)
            raise IntegrityError(
                f"{self.problems[0]}.{others} Find out what changed it. Where the change is wanted, plan "
                "again and make the lock again; else install the package again."
            )
        return self


def digest_of(data: bytes) -> str:
    """Hash bytes as RECORD files do: SHA-256 in base64 for URLs, without padding.

    >>> digest_of(b"")
    '47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU'
    """
    return encode(hashlib.sha256(data).digest())


def digest_of_file(path: str | Path) -> str:
    """Hash the bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return encode(hashlib.file_digest(file, "sha256").digest())


def encode(digest: bytes) -> str:
    """Write a digest as RECORD files do."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
