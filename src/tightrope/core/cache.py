"""The folder of kept files: where it is, who may write it, and how files in it are read, written and removed.

Idea        Libraries, plans, prices and compiled stretches are kept for the next process. A library runs as
            the user who loads it and a plan decides what a step does, so nothing is read from, written to or
            removed from a place that another user can change.
Guarantee   A folder is opened from the root down, each by the descriptor of the one above. Folders and
            links on the way belong to this user or to the owner of the root folder, and nobody else may
            replace what is in them. So what was checked stays what it was, and its path can be given to a
            compiler or to the loader. Below the folder no link is followed, and a file is judged when open.
Gaps        The owner of the root folder and other processes of this user are trusted. Access lists count
            where the system shows them in a file's mode, as Linux does.
"""

import atexit
import functools
import grp
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from tightrope.core.json_text import MAX_FILE_BYTES
from tightrope.core.units import Bytes

VARIABLE: Final = "TIGHTROPE_CACHE"
ADVICE: Final = f"Set {VARIABLE} to a folder of your own that only you can write (chmod 700)."
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | _FLAGS
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
_REMOVABLE: Final = re.compile(r"[0-9a-f]{16,64}|[^/]*\.json")
"""Names that are removed when there are too many: those of hashes, and files of values."""

_NAMELESS: Final = "neither XDG_CACHE_HOME nor HOME is set and this user has no home"
_SAID: Final[set[str]] = set()
"""What was warned of in this process."""


class Folder:
    """A folder whose files are this user's alone; every call checks it again.

    Args:
        path: made at the first `write`, parents included.
        below: names of folders inside it, through which no link is followed.

    Example:
        >>> folder = Folder(Path(tempfile.mkdtemp())) / "notes"
        >>> folder.write("one.json", b"{}")
        >>> folder.read("one.json"), folder.names()
        (b'{}', ['one.json'])
    """

    def __init__(self, path: Path, below: tuple[str, ...] = ()) -> None:
        self._root, self._below = path, below
        self.path = path.joinpath(*below)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self._root, (*self._below, name))

    def refusal(self) -> str:
        """Say why this user's files cannot be kept here, or nothing; makes the folder."""
        try:
            with self._opened(make=True):
                return ""
        except OSError as error:
            return said(self.path, error)

    def names(self) -> list[str]:
        """List what is in it, sorted, but for hidden files; nothing where it is not there or not safe."""
        try:
            with self._opened() as way:
                return sorted(name for name in _listed(way.handle) if not name.startswith("."))
        except OSError:
            return []

    def find(self, name: str, *, run: bool = False) -> Path | None:
        """Name a file's path, free of links, if nobody else can have written it.

        Args:
            name: of the file.
            run: whether it will be loaded as code, which some file systems forbid.
        """
        try:
            with self._opened() as way, way.file(name) as file:
                return None if run and _forbids_code(file) else way.path / name
        except OSError:
            return None

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading.

        Raises:
            OSError: it is not there, or somebody else can have written it.
        """
        with self._opened() as way, way.file(name) as file, open(file, "rb", closefd=False) as stream:
            yield stream

    def read(self, name: str, *, limit: Bytes = MAX_FILE_BYTES) -> bytes:
        """Read a file of at most ``limit`` bytes.

        Raises:
            OSError: it is not there, is larger, or somebody else can have written it.
        """
        with self.opened(name) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise OSError(f"{self.path / name} is larger than {limit} bytes")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file in one go: who reads it meanwhile sees the old one or the new one.

        Raises:
            OSError: the folder cannot be written, or is not safe.
        """
        with self._opened(make=True) as way:
            handle = way.handle
            part = f".{secrets.token_hex(8)}.part"
            made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=handle)
            try:
                with os.fdopen(made, "wb") as stream:
                    stream.write(data)
                os.replace(part, name, src_dir_fd=handle, dst_dir_fd=handle)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part, dir_fd=handle)
                raise

    @contextmanager
    def building(self, name: str) -> Iterator[Path]:
        """Give a path in a private folder for a library; it becomes ``name`` where the block ends well.

        Raises:
            OSError: the folder cannot be written, is not safe, or code cannot be loaded from it.
        """
        with self._opened(make=True) as way:
            handle, path = way.handle, way.path
            if _forbids_code(handle):
                raise PermissionError(f"{path} is mounted so that no code in it can be loaded (noexec)")
            private = f".build-{secrets.token_hex(8)}"
            os.mkdir(private, 0o700, dir_fd=handle)
            try:
                yield (made := path / private / name)
                made.chmod(0o755)
                os.replace(f"{private}/{name}", name, src_dir_fd=handle, dst_dir_fd=handle)
            finally:
                shutil.rmtree(private, ignore_errors=True, dir_fd=handle)

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a folder with all that is in it; what cannot be removed stays."""
        with suppress(OSError), self._opened(own=True) as way:
            _remove(way.handle, name)

    def drop_oldest(self, most: int) -> None:
        """Keep the newest entries; what another process drops meanwhile is left to it."""
        with suppress(OSError), self._opened(own=True) as way:
            handle = way.handle
            names = [name for name in _listed(handle) if _REMOVABLE.fullmatch(name)]
            if len(names) <= most:
                return
            made = {name: os.stat(name, dir_fd=handle, follow_symlinks=False).st_mtime_ns for name in names}
            for name in sorted(names, key=lambda name: made[name])[: len(names) - most]:
                _remove(handle, name)

    @contextmanager
    def _opened(self, *, make: bool = False, own: bool = False) -> "Iterator[_Way]":
        """Open it.

        Args:
            make: whether to make what is missing.
            own: whether it must be this user's, which ``make`` implies.
        """
        way = _Way(self._root, make=make)
        try:
            way.to_end()
            way.judge_end(own=own or make)
            for name in self._below:
                way.into(name)
                way.judge_end(own=own or make)
            yield way
        finally:
            os.close(way.handle)


class _Way:
    """The way from the root to a folder.

    Attributes:
        handle: descriptor of the folder reached.
        path: of it, without links.
    """

    def __init__(self, whole: Path, *, make: bool) -> None:
        self._whole, self._make = whole, make
        self._names = list(reversed(whole.absolute().parts[1:]))
        self._num_links = 0
        self.path, self.handle = Path("/"), os.open("/", _FOLDER)
        self._trusted = {0, os.geteuid(), os.fstat(self.handle).st_uid}

    def to_end(self) -> None:
        """Go all the way."""
        while self._names:
            self._judge()
            self.into(self._names.pop(), follow=True)

    def into(self, name: str, *, follow: bool = False) -> None:
        """Go one folder down, or where a link leads."""
        try:
            below = self._open(name)
        except FileNotFoundError:
            if not self._make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o755 if follow else 0o700, dir_fd=self.handle)
            below = self._open(name)
        except OSError:
            found = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
            if not (follow and stat.S_ISLNK(found.st_mode)):
                raise
            self._follow(name, found)
            return
        os.close(self.handle)
        self.handle, self.path = below, self.path.parent if name == ".." else self.path / name

    def judge_end(self, *, own: bool) -> None:
        """Refuse a folder that others own or may write.

        Raises:
            PermissionError: says why.
        """
        found, user = os.fstat(self.handle), os.geteuid()
        if found.st_uid not in ({user} if own else self._trusted):
            raise PermissionError(
                f"{self.path} belongs to user {found.st_uid} and not to user {user}, who runs this"
            )
        if found.st_mode & _OTHERS_WRITE:
            raise PermissionError(
                f"{self.path} can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
            )

    @contextmanager
    def file(self, name: str) -> Iterator[int]:
        """Open a file for reading that nobody else can have written.

        Raises:
            OSError: there is none, or it is a link, or somebody else's, or writable by others.
        """
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=self.handle)
        try:
            found = os.fstat(file)
            own = stat.S_ISREG(found.st_mode) and found.st_uid in self._trusted
            if not own or found.st_mode & _OTHERS_WRITE:
                raise PermissionError(f"{self.path / name} can have been written by others")
            yield file
        finally:
            os.close(file)

    def _open(self, name: str) -> int:
        return os.open(name, _FOLDER, dir_fd=self.handle)

    def _follow(self, name: str, link: os.stat_result) -> None:
        self._num_links += 1
        if link.st_uid not in self._trusted:
            raise PermissionError(f"{self.path / name} is a link of user {link.st_uid}")
        if self._num_links > _MOST_LINKS:
            raise OSError(f"{self._whole} is a circle of links")
        target = Path(os.readlink(name, dir_fd=self.handle))
        self._names.extend(reversed([part for part in target.parts if part != "/"]))
        if target.is_absolute():
            os.close(self.handle)
            self.handle, self.path = os.open("/", _FOLDER), Path("/")

    def _judge(self) -> None:
        """Refuse a folder on the way in which somebody else may replace what this user has there."""
        found = os.fstat(self.handle)
        mode = found.st_mode
        by_group = mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        if found.st_uid not in self._trusted:
            raise PermissionError(f"{self.path}, above {self._whole}, belongs to user {found.st_uid}")
        if (mode & stat.S_IWOTH or by_group) and not mode & stat.S_ISVTX:
            who = "everybody" if mode & stat.S_IWOTH else "its group"
            raise PermissionError(
                f"{self.path}, above {self._whole}, can be written by {who} (mode {stat.S_IMODE(mode):o})"
            )


@functools.cache
def _is_own_group(group: int) -> bool:
    """Tell whether a group has the user's name and no other members, as many systems set it up."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    mine = found.gr_name == user.pw_name and group == user.pw_gid
    return mine and set(found.gr_mem) <= {user.pw_name}


def _forbids_code(handle: int) -> bool:
    return bool(os.fstatvfs(handle).f_flag & getattr(os, "ST_NOEXEC", 0))


def _listed(handle: int) -> list[str]:
    """List a folder; the descriptor of a way is not one to read from."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=handle)
    try:
        return os.listdir(readable)
    finally:
        os.close(readable)


def _remove(handle: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
        shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
    else:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)


def said(path: Path, error: OSError) -> str:
    """Say why a folder cannot be used."""
    return f"{path} cannot be used ({error.strerror})" if error.strerror else str(error)


def cache_folder() -> Path | None:
    """Name the folder of kept files: ``TIGHTROPE_CACHE``, else ``tightrope`` in the user's cache.

    Returns:
        A path, or None where neither ``XDG_CACHE_HOME``, nor ``HOME``, nor the system names the user's cache.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return Path(chosen)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "tightrope"
    home = Path(os.environ.get("HOME", ""))
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            return None
    return home / ".cache" / "tightrope"


def folders(*, last: bool = False) -> Iterator[Folder]:
    """Give the folders in which libraries are looked for and kept, the best first.

    The first is `cache_folder`, the second this user's among temporary files, the last this process's, which
    goes with it.

    Args:
        last: whether to make the last one, where it is not there.
    """
    named = cache_folder()
    if named is not None:
        yield Folder(named)
    with suppress(OSError):  # there may be no folder of temporary files
        yield _among_temporary_files()
        if last or _process_folder.cache_info().currsize:
            yield Folder(_process_folder(os.getpid()))


def own_folder() -> Folder | None:
    """Choose the folder in which plans and prices are kept, or None where there is none.

    One that cannot be written is taken for what is in it: that nothing is added only costs time.
    """
    named, why = cache_folder(), _NAMELESS
    if named is not None:
        why = (first := Folder(named)).refusal()
        if not why:
            return first
    with suppress(OSError):
        if not (second := _among_temporary_files()).refusal():
            warn_of(why, second.path)
            return second
    return None


def warn_of(why: str, instead: Path) -> None:
    """Warn that files are not kept where they should be, unless a warning said so."""
    if not _SAID:
        warn_once(f"{why}: files are kept in {instead} instead. {ADVICE}")


def warn_once(text: str) -> None:
    """Warn, unless it was said in this process."""
    if text not in _SAID:
        _SAID.add(text)
        warnings.warn(f"tightrope: {text}", RuntimeWarning, stacklevel=3)


def _among_temporary_files() -> Folder:
    return Folder(Path(tempfile.gettempdir()) / f"tightrope-{os.geteuid()}")


@functools.cache
def _process_folder(process: int) -> Path:
    """Make a folder that lasts as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="tightrope-"))
    atexit.register(_remove_at_exit, folder, process)
    return folder


def _remove_at_exit(folder: Path, process: int) -> None:
    """Remove the folder, unless it is a forked process that exits."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
