"""An environment of installed packages, and what their RECORD files say that they installed."""

import csv
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from tightrope.core import TightropeError
from tightrope_verify.findings import Finding, FindingKind

_FOLDER: Final = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")
_DIGEST: Final = re.compile(r"(sha256|sha384|sha512)=([A-Za-z0-9_-]+)={0,2}")
_PLAIN: Final = re.compile(r'([^",\0]+),(?:sha256=([A-Za-z0-9_-]{43})=?)?,\d*')
_UNUSUAL: Final = re.compile(r"^\.?/|\.\.|//|/\./|\\")
_MARKS: Final = ('"', "..", "//", "./", "\\", "\n/")
"""Without any of them a RECORD has plain rows alone."""
_ABOVE: Final = "../../"
_READ: Final = 1 << 13
_LENGTHS: Final = {"sha256": 43, "sha384": 64, "sha512": 86}
_PYTHON: Final = re.compile(r"python(\d+)\.(\d+)")


class RecordLine(NamedTuple):
    """A line of a RECORD.

    Attributes:
        path: of the file, below the environment's base.
        algorithm: of the digest; empty = the line has none.
        digest: as it is written.
    """

    path: str
    algorithm: str
    digest: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution.

    Attributes:
        name: as its metadata says.
        version: as its metadata says.
        folder: its ``.dist-info``, below the environment's base.
        lines: what it installed.
        wrong: what is wrong with its metadata.
        recorded: whether it has a RECORD.
    """

    name: str
    version: str
    folder: str
    lines: tuple[RecordLine, ...]
    wrong: tuple[Finding, ...] = ()
    recorded: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Environment:
    """Folders of installed packages.

    Attributes:
        base: what paths are relative to: the root of a virtual environment.
        roots: folders of packages, below it.
        interpreter: whose byte code counts here, such as ``cpython-311``.
        sees_system: whether packages of the system can be imported too, which are not checked.
    """

    base: Path
    roots: tuple[Path, ...]
    interpreter: str
    sees_system: bool = False

    def name(self, path: str | Path) -> str:
        """Write a path below the base, or absolute where it is elsewhere."""
        text, base = str(path), f"{self.base}{os.sep}"
        return text[len(base) :].replace(os.sep, "/") if text.startswith(base) else text

    @cached_property
    def distributions(self) -> tuple[Distribution, ...]:
        """Every distribution with a ``.dist-info``, in the order of their folders."""
        return tuple(_distribution(self, root, entry) for root, entry in self._folders())

    def _folders(self) -> Iterator[tuple[Path, str]]:
        for root in self.roots:
            for entry in sorted(os.listdir(root)):
                if entry.endswith(".dist-info") and (root / entry).is_dir():
                    yield root, entry

    def about(self, names: Collection[str]) -> "Environment":
        """The same environment, with the rows of RECORD files about some paths alone.

        Args:
            names: paths below the base.
        """
        wanted = frozenset(names)
        if wanted <= self.__dict__.get("named", frozenset()):
            return self
        found = Environment(self.base, self.roots, self.interpreter, self.sees_system)
        found.__dict__["named"] = wanted
        found.__dict__["distributions"] = tuple(
            _distribution(self, root, entry, wanted) for root, entry in self._folders()
        )
        return found

    @cached_property
    def owners(self) -> dict[str, tuple[tuple[Distribution, RecordLine], ...]]:
        """Who installed each file, by path below the base."""
        found: dict[str, tuple[tuple[Distribution, RecordLine], ...]] = {}
        for distribution in self.distributions:
            for line in distribution.lines:
                pair = ((distribution, line),)
                found[line.path] = found[line.path] + pair if line.path in found else pair
        return found

    def owner(self, name: str) -> str:
        """Name the distributions that installed a file, by its path below the base."""
        return " and ".join(str(distribution) for distribution, _ in self.owners.get(name, ()))


def running_environment() -> Environment:
    """The environment of this interpreter.

    Example:
        >>> running_environment().interpreter == sys.implementation.cache_tag
        True
    """
    paths = sysconfig.get_paths()
    return _environment(Path(sys.prefix), [Path(paths["purelib"]), Path(paths["platlib"])])


def environment_at(place: str | Path, *, unrecorded: bool = False) -> Environment:
    """Find an environment by its root, or by a folder of packages.

    Args:
        place: a virtual environment, or a ``site-packages``.
        unrecorded: take a folder without a ``.dist-info`` too.

    Raises:
        TightropeError: there are no packages.
    """
    path = Path(os.path.abspath(place))
    if not path.is_dir():
        raise TightropeError(f"{str(place)!r} is no folder: give a virtual environment or a site-packages.")
    below = [*sorted(path.glob("lib/python*/site-packages")), *path.glob("Lib/site-packages")]
    if below:
        return _environment(path, below)
    if (path / "pyvenv.cfg").exists() or not (unrecorded or any(path.glob("*.dist-info"))):
        raise TightropeError(
            f"{str(place)!r} holds no installed packages: give a virtual environment or a site-packages."
        )
    base = path.parents[2] if path.match("lib/python*/site-packages") else path
    return _environment(base, [path])


def _environment(base: Path, roots: Sequence[Path]) -> Environment:
    kept: list[Path] = []
    for root in roots:
        if root.is_dir() and not any(root.samefile(other) for other in kept):
            kept.append(root)
    base = Path(os.path.commonpath([base, *kept]))
    tag = sys.implementation.cache_tag or ""
    if kept and (match := _PYTHON.search(str(kept[0].relative_to(base)))):
        tag = f"{tag.split('-')[0]}-{match[1]}{match[2]}"
    config = base / "pyvenv.cfg"
    text = config.read_text(encoding="utf-8", errors="replace").lower() if config.is_file() else ""
    sees = re.search(r"(?m)^include-system-site-packages\s*=\s*true", text) is not None
    return Environment(base, tuple(kept), tag, sees)


def _rows_about(environment: Environment, root: Path, text: str, wanted: Collection[str]) -> list[str]:
    """List the rows of a RECORD that may name one of some paths: those that say so, and unusual ones."""
    before = environment.name(root) + "/" if root != environment.base else ""
    below = {name[len(before) :] for name in wanted if name.startswith(before)}
    if not any(top in text for top in {name.partition("/")[0] for name in below}):
        return []  # however a row spells a path below, its first folder is there
    rows = text.splitlines()
    found = [row for row in rows if row.split(",", 1)[0] in below]
    beside, back = "../../../", f"/{root.name}/"  # beside the packages, unless it leads back to them
    rows = [row for row in rows if not row.startswith(beside) or back in row or ".." in row[len(beside) :]]
    rest = "\n".join(["", *rows])
    if any(mark in rest for mark in _MARKS):
        found += [row for row in rows if '"' in row or _UNUSUAL.search(row)]
    return found


def _distribution(
    environment: Environment, root: Path, entry: str, wanted: Collection[str] | None = None
) -> Distribution:
    folder = environment.name(root / entry)
    name, version, wrong = _identity(root / entry, folder)
    said = f"{name} {version}"

    def damaged(why: str, found: str = "") -> Finding:
        return Finding(FindingKind.RECORD, f"{folder}/RECORD", said, "", found, why)

    try:
        with open(f"{root}{os.sep}{entry}{os.sep}RECORD", "rb", buffering=0) as file:
            text = file.readall().decode()
    except FileNotFoundError:
        none = "there is no RECORD of its files: --unrecorded checks what can be without"
        return Distribution(name, version, folder, (), (*wrong, damaged(none)), recorded=False)
    except (OSError, UnicodeDecodeError) as error:
        return Distribution(name, version, folder, (), (*wrong, damaged(f"cannot be read: {error}")))
    rows = text.splitlines() if wanted is None else _rows_about(environment, root, text, wanted)
    lines: dict[str, RecordLine] = {}
    before = environment.name(root) + "/" if root != environment.base else ""
    for number, row in enumerate(rows, 1):
        if (match := _PLAIN.fullmatch(row)) and not _UNUSUAL.search(row):  # almost all: 4 times as fast
            path, digest, problem = before + match[1], match[2] or "", ""
            line: RecordLine | None = RecordLine(path, "sha256" if digest else "", digest)
        else:
            problem, line = _line(environment, root, row)
        if line is not None and line.path in lines:
            problem = "names a file twice"
        if problem:
            wrong = (*wrong, damaged(f"line {number} {problem}", row[:120]))
        elif line is not None:
            lines[line.path] = line
    if not text and not wrong:
        wrong = (*wrong, damaged("is empty"))
    return Distribution(name, version, folder, tuple(lines.values()), wrong)


def _identity(folder: Path, shown: str) -> tuple[str, str, tuple[Finding, ...]]:
    """Name and version by the folder, and what is wrong where the metadata says otherwise."""
    match = _FOLDER.fullmatch(folder.name)
    name, version = (match["name"], match["version"]) if match else (folder.name, "")
    said = f"{name} {version}"

    def wrong(why: str, found: str = "") -> tuple[Finding, ...]:
        return (Finding(FindingKind.RECORD, f"{shown}/METADATA", said, said, found, why),)

    try:
        head = _head(f"{folder}{os.sep}METADATA")
    except OSError:
        return name, version, wrong("there is no METADATA")
    told = [line.partition(":") for line in head.split("\n") if line.startswith(("Name:", "Version:"))]
    fields = {key: value.strip() for key, _, value in told}
    if set(fields) != {"Name", "Version"}:
        return name, version, wrong("has no name or no version")
    same = _plain(fields["Name"]) == _plain(name) and _plain(fields["Version"]) == _plain(version)
    return fields["Name"], fields["Version"], () if same else wrong(
        "is of another distribution than its folder", f"{fields['Name']} {fields['Version']}"
    )  # fmt: skip


def _head(path: str) -> str:
    """Read a file up to its first empty line, behind which a METADATA has a description of any length."""
    data = head = empty = b""
    with open(path, "rb", buffering=0) as file:
        while not empty and (more := file.read(_READ)):
            data += more
            head, empty, _ = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").partition(b"\n\n")
    return head.decode(errors="replace")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(environment: Environment, root: Path, text: str) -> tuple[str, RecordLine | None]:
    """Read a line; say what is wrong with it, or give what it says; neither for an empty one."""
    try:
        row = next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        return f"is no row of values with commas ({error})", None
    if not row:
        return "", None
    if len(row) != 3 or not row[0] or "\0" in row[0]:
        return "is not path, digest, size", None
    path, digest, _ = row
    if root == environment.base and path.startswith(_ABOVE) and (root / path.removeprefix(_ABOVE)).is_file():
        path = path.removeprefix(_ABOVE)  # pip install --target moves bin and data to the packages
    name = environment.name(os.path.normpath(os.path.join(root, path)))
    if os.path.isabs(name):
        return "names a file outside of the environment", None
    if not digest:
        return "", RecordLine(name, "", "")
    match = _DIGEST.fullmatch(digest)
    if match is None or len(match[2]) != _LENGTHS[match[1]]:
        return "has no digest of SHA-256, SHA-384 or SHA-512", None
    return "", RecordLine(name, match[1], match[2])
