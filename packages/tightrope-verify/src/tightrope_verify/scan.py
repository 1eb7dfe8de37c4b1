"""Read every file of an environment and compare it with the RECORD that names it.

Idea        Walk the folders of packages; hash each file; a file is right where exactly one distribution lists
            it, with this digest. Byte code in ``__pycache__`` has no digest in a RECORD: it is right where it
            is what its source compiles to.
Guarantee   A file that Python can import from these folders, and that is not as its owner installed it, is
            found. RECORD lines that were changed together with their file are not: that takes a lock.
Complexity  One read of every byte; where there is no lock, one compilation of every source with byte code.
Gaps        Sources of editable installs lie elsewhere and have no RECORD. Byte code of other programs
            (``pytest`` rewrites and keeps its own) is counted, not checked.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Final, TypeAlias

from tightrope.core import Bytes, TightropeError
from tightrope.core.collector import collector_paused
from tightrope_verify.codes import Bytecode, is_ours, level_of
from tightrope_verify.environment import Distribution, Environment, RecordLine
from tightrope_verify.findings import Finding, FindingKind, encode

Progress: TypeAlias = Callable[[int, Bytes], None]
"""Called now and then with the number of files and bytes read."""
_EVERY: Final = 500
_BUFFER: Final = 1 << 18
_CACHE: Final = "__pycache__"
_UNLISTED: Final = tuple(f".dist-info/RECORD{end}" for end in ("", ".jws", ".p7s"))
"""A RECORD has no digest of itself and of its signatures (packaging specification, binary distributions)."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it is: digest and size, and the digest of its byte code where that was found right."""

    digest: str
    bytes: Bytes
    bytecode: str = ""


@dataclass(slots=True)
class Scan:
    """What an environment holds, by path below its base.

    Attributes:
        files: those that were hashed.
        links: symbolic links and where they lead.
        problems: what is wrong.
        notes: what was not checked, or is worth knowing.
        num_bytes: of the files that were hashed.
        num_bytecode: files of byte code that were compared with their sources or with a lock.
        bytecode_bytes: of those.
    """

    files: dict[str, SeenFile] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_bytes: Bytes = 0
    num_bytecode: int = 0
    bytecode_bytes: Bytes = 0


class _Scanner:
    def __init__(
        self,
        environment: Environment,
        allow: Sequence[str],
        known: Mapping[str, SeenFile] | None,
        progress: Progress | None,
        *,
        digests: bool,
        unrecorded: bool,
    ) -> None:
        self.environment, self.allow, self.known, self.progress = environment, allow, known, progress
        self.digests = digests or known is not None
        self.unrecorded, self.nobodys = unrecorded, 0
        self.scan = Scan()
        self.buffer = memoryview(bytearray(_BUFFER))
        self.compiled: list[tuple[str, str]] = []
        self.skipped: Counter[str] = Counter()
        self.at_start: list[str] = []

    def add(self, kind: FindingKind, name: str, expected: str, found: str, why: str) -> None:
        owner = self.environment.owner(name)
        self.scan.problems.append(Finding(kind, name, owner, expected, found, why))

    def allowed(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.allow)

    def run(self, *, bytecode: bool, only: Collection[str] | None) -> Scan:
        """Scan everything, or some files and their byte code."""
        if only is None:
            for distribution in self.environment.distributions:
                lacks = self.unrecorded and not distribution.recorded
                self.scan.problems += distribution.wrong[: -1 if lacks else None]
            self.report_twins()
            for root in self.environment.roots:
                self.walk(str(root))
            self.follow_records()
        else:
            self.some(only)
        if bytecode:
            with collector_paused():
                self.check_bytecode()
        self.note(bytecode=bytecode)
        self.scan.problems.sort(key=lambda one: (one.path, one.kind))
        return self.scan

    def report_twins(self) -> None:
        """Report distributions that are installed twice."""
        first: dict[str, Distribution] = {}
        for one in self.environment.distributions:
            other = first.setdefault(one.name.lower().replace("_", "-"), one)
            if other is not one:
                why = "one distribution has two folders, as an interrupted installation leaves them"
                self.scan.problems.append(
                    Finding(FindingKind.RECORD, one.folder, str(one), str(other), str(one), why)
                )

    def some(self, names: Collection[str]) -> None:
        """Look at some files, and at what is wrong with the metadata of their owners."""
        suffix = f".{self.environment.interpreter}.pyc"
        told: set[str] = set()
        for name in sorted(names):
            path = str(self.environment.base / name)
            if os.path.islink(path):
                self.link(path, name)
            elif os.path.isfile(path):
                self.file(path, name)
            elif name in self.environment.owners:
                expected = self.environment.owners[name][0][1].digest
                self.add(FindingKind.MISSING, name, expected, "", "an installed file is not there")
            for distribution, _ in self.environment.owners.get(name, ()):
                if distribution.wrong and distribution.folder not in told:
                    told.add(distribution.folder)
                    self.scan.problems += distribution.wrong
            folder, _, last = name.rpartition("/")
            cached = f"{folder}/{_CACHE}/{last.removesuffix('.py')}{suffix}"
            if last.endswith(".py") and os.path.isfile(self.environment.base / cached):
                self.compiled.append((str(self.environment.base / cached), cached))

    def walk(self, folder: str) -> None:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            name = self.environment.name(entry.path)
            if entry.is_symlink():
                self.link(entry.path, name)
            elif entry.is_dir():
                self.walk(entry.path)
            elif entry.is_file():
                self.file(entry.path, name)
            elif not self.allowed(name):
                self.add(FindingKind.UNREADABLE, name, "a file", "", "is neither a file nor a folder")

    def link(self, path: str, name: str) -> None:
        target = os.readlink(path)
        self.scan.links[name] = target
        if self.known is None and not self.unrecorded and not self.allowed(name):
            self.add(
                FindingKind.SYMLINK, name, "a file", f"a link to {target}", "wheels hold no symbolic links"
            )
        if os.path.isfile(path) and (self.unrecorded or name in self.environment.owners):
            self.file(path, name)

    def file(self, path: str, name: str) -> None:
        """Hash one file and compare it with the lines that name it."""
        lines = self.environment.owners.get(name, ())
        folder, _, last = name.rpartition("/")
        if folder.endswith(_CACHE) and last.endswith(".pyc") and not any(line.digest for _, line in lines):
            self.compiled.append((path, name))
            return
        try:
            seen = self.hashed(path, lines)
        except OSError as error:
            self.add(FindingKind.UNREADABLE, name, "a file", "", f"cannot be read: {error.strerror}")
            return
        self.scan.files[name] = seen
        self.scan.num_bytes += seen.bytes
        if not lines:
            if self.unrecorded:
                self.nobodys += 1
            elif not self.allowed(name):
                self.add(FindingKind.UNOWNED, name, "", seen.digest, "no distribution installed this file")
            return
        if len({line.digest for _, line in lines}) > 1:
            both = " and ".join(f"{line.digest} of {one}" for one, line in lines)
            self.add(FindingKind.OWNERS, name, both, seen.digest, f"{len(lines)} distributions wrote it")
        if last.endswith(".pth") and self.environment.base / folder in self.environment.roots:
            self.at_start.append(name)
        if self.progress is not None and len(self.scan.files) % _EVERY == 0:
            self.progress(len(self.scan.files), self.scan.num_bytes)

    def hashed(self, path: str, lines: Sequence[tuple[Distribution, RecordLine]]) -> SeenFile:
        """Hash a file; report every line with another digest."""
        whole, size = hashlib.sha256(), 0
        with open(path, "rb", buffering=0) as stream:
            while num := stream.readinto(self.buffer):
                whole.update(self.buffer[:num])
                size += num
        digest = encode(whole.digest())
        name = self.environment.name(path)
        for distribution, line in lines:
            if not line.digest:
                record = line.path.endswith(_UNLISTED)
                if not record and not self.allowed(name):
                    self.add(
                        FindingKind.UNHASHED, name, "", digest, f"the RECORD of {distribution} has no digest"
                    )
                continue
            found = digest
            if line.algorithm != "sha256":
                with open(path, "rb", buffering=0) as stream:
                    found = encode(hashlib.file_digest(stream, line.algorithm).digest())
            if found != line.digest:
                why = f"its bytes are not those that {distribution} installed"
                self.add(FindingKind.CHANGED, name, line.digest, found, why)
        return SeenFile(digest, size)

    def follow_records(self) -> None:
        """Look at files of RECORDs that the walk did not reach, and report those that are missing."""
        for name, lines in self.environment.owners.items():
            if name in self.scan.files or name in self.scan.links:
                continue
            if name.endswith(".pyc") and f"/{_CACHE}/" in name and not lines[0][1].digest:
                continue
            path = str(self.environment.base / name)
            if os.path.isfile(path):
                self.file(path, name)
            elif not os.path.lexists(path):
                self.add(FindingKind.MISSING, name, lines[0][1].digest, "", "an installed file is not there")

    def check_bytecode(self) -> None:
        """Compare byte code that Python would load with its source; what a lock knows is not compiled."""
        for position, (path, name) in enumerate(self.compiled):
            if self.progress is not None and position % (_EVERY // 10) == 0:
                self.progress(len(self.scan.files) + position, self.scan.num_bytes)
            folder, _, last = name.rpartition("/")
            known = level_of(last, self.environment.interpreter)
            if known is None:
                self.skipped["of other programs or interpreters"] += 1
                continue
            stem, level = known
            source = f"{folder.removesuffix(_CACHE)}{stem}.py"
            seen = self.scan.files.get(source)
            if seen is None:
                self.skipped["without a source beside them, which are never imported"] += 1
                continue
            try:
                self.compare(path, name, source, level)
            except OSError as error:
                self.add(FindingKind.UNREADABLE, name, "a file", "", f"cannot be read: {error.strerror}")

    def compare(self, path: str, name: str, source: str, level: int) -> None:
        code = Bytecode(path, f"{self.environment.base}{os.sep}{source}")
        if not code.is_loaded():
            self.skipped["older than their sources, which Python does not load"] += 1
            return
        self.scan.num_bytecode += 1
        self.scan.bytecode_bytes += code.size
        seen, digest = self.scan.files[source], code.digest if self.digests else ""
        before = (self.known or {}).get(source)
        if before is None or (before.digest, before.bytecode) != (seen.digest, digest):
            expected, found = code.compare(level)
            if found:
                last = source.rpartition("/")[2]
                why = f"byte code that is loaded in place of {last} is not compiled from it"
                self.scan.problems.append(
                    Finding(FindingKind.BYTECODE, name, self.environment.owner(source), expected, found, why)
                )
                return
        if level == 0:
            self.scan.files[source] = SeenFile(seen.digest, seen.bytes, digest)

    def note(self, *, bytecode: bool) -> None:
        """Say what was not checked."""
        notes = self.scan.notes
        if self.unrecorded:
            every = self.environment.distributions
            lacking = [str(one) for one in every if not one.recorded]
            notes.append(
                f"{len(lacking)} of {len(every)} distributions have no RECORD, and {self.nobodys} files are "
                "in none: only who installed them can tell whether they are as installed (rpm -V); what "
                "was checked is that byte code is what its source compiles to"
            )
        if not bytecode:
            notes.append("byte code was not compared with its sources")
        notes += [
            f"{count} files of byte code {what} were not compared" for what, count in self.skipped.items()
        ]
        notes += [f"{name} runs or adds paths when Python starts" for name in self.at_start]
        if self.environment.sees_system:
            notes.append("packages of the system can be imported too, and were not checked")


def scan(
    environment: Environment,
    *,
    allow: Sequence[str] = (),
    known: Mapping[str, SeenFile] | None = None,
    bytecode: bool = True,
    digests: bool = True,
    only: Collection[str] | None = None,
    unrecorded: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """Read every file of an environment.

    Args:
        environment: where.
        allow: patterns of paths below its base that may be there without an owner or digest, or as links.
        known: what a lock holds, so that links are left to it and byte code that it knows is not compiled.
        bytecode: compare byte code with sources.
        digests: of byte code are wanted; with ``known`` they always are.
        only: paths below its base; None = all.
        unrecorded: files that no RECORD names are counted, and no problem.
        progress: see there.

    Raises:
        TightropeError: byte code of this environment cannot be read by this interpreter.
    """
    if bytecode and not is_ours(environment.interpreter):
        raise TightropeError(
            f"the packages are for {environment.interpreter}, and only that interpreter can read their "
            "byte code. Run tightrope with it, or leave byte code out (--no-bytecode)."
        )
    scanner = _Scanner(environment, allow, known, progress, digests=digests, unrecorded=unrecorded)
    return scanner.run(bytecode=bytecode, only=only)
