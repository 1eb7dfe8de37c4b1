"""Where the library runs in containers: each row enforces budgets, or says once how it could.

Users here have no entry in the system's list, as in containers that run as any number.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from other_users import IN_PYTHON, TRAIN, OtherUsers, refusal

from tightrope.native import build

pytestmark = [
    pytest.mark.skipif(bool(refusal()), reason=refusal() or "-"),
    pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler"),
]
NO_COMPILER: Final = {"CXX": "/no/compiler"}
USERS: Final = count(30_001)
TOUCH: Final = """
from tightrope.native.interface import missing
from tightrope.plan.kept import plans_folder
from tightrope.price import Measured, PriceStore
from tightrope.run.ledger.accounts import accounts

found["enforced"] = accounts().allocator is not None
missing("solver")
prices = PriceStore((("row", "of a test"),))
prices.put("op", Measured(1))
prices.save()
plans_folder()
"""
"""Everything that a training does with the cache."""


class Place(NamedTuple):
    """Where a row's files are.

    Attributes:
        folder: of this row, of root.
        user: who runs it.
        built: libraries that are built, of root.
    """

    folder: Path
    user: int
    built: Path

    def own(self, name: str, *, mode: int = 0o700, user: int | None = None, libraries: bool = False) -> Path:
        """Make a folder of the user, or of another one."""
        made = self.folder / name
        made.mkdir(mode=0o700)
        for file in self.built.glob("*.so") if libraries else ():
            shutil.copy(file, made)
        for path in (made, *made.iterdir()):
            os.chown(path, *[self.user if user is None else user] * 2)
        made.chmod(mode)
        return made

    def link(self, name: str, to: Path, *, user: int | None = None) -> Path:
        """Make a link of the user, or of another one."""
        (made := self.folder / name).symlink_to(to)
        os.chown(made, *[self.user if user is None else user] * 2, follow_symlinks=False)
        return made


Environment = Mapping[str, str | Path]


class Row(NamedTuple):
    """One situation.

    Attributes:
        prepare: makes its folders, and gives the environment; ``MOUNT`` is a command of root before.
        says: what its only warning says; the empty string = there is none.
        enforced: whether budgets are.
        again: whether a second process without a compiler enforces them too; it may say nothing.
        captures: what a second warning says of training, where torch captures nothing; empty = it does.
    """

    prepare: Callable[[Place], Environment]
    says: str = ""
    enforced: bool = True
    again: bool = False
    captures: str = ""


def tmpfs(place: Path, user: int, options: str) -> str:
    """Mount a file system in memory of this user alone."""
    return f"mount -t tmpfs -o uid={user},gid={user},mode=700,{options} none {place}"


def full(place: Place) -> Environment:
    (folder := place.folder / "full").mkdir()
    fill = f"head -c 65536 /dev/zero > {folder}/zeros || true"
    return {"TMPDIR": folder, "MOUNT": f"{tmpfs(folder, place.user, 'size=64k')} && {fill}"}


def disk_full(place: Place) -> Environment:
    (folder := place.folder / "small").mkdir()
    return {"TIGHTROPE_CACHE": folder, "MOUNT": tmpfs(folder, place.user, "size=16k")}


def noexec(place: Place, *, everywhere: bool = False) -> Environment:
    folder = place.own("cache", libraries=True)
    mount = f"mount --bind {folder} {folder} && mount -o remount,bind,noexec {folder}"
    if everywhere:
        mount += " && mount -o remount,bind,noexec /tmp"
    return {"TIGHTROPE_CACHE": folder, "MOUNT": mount}


def read_only(place: Place, *, libraries: bool) -> Environment:
    folder = place.own("cache", libraries=libraries)
    return {
        "TIGHTROPE_CACHE": folder,
        "MOUNT": f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}",
    }


def nothing_writable(place: Place) -> Environment:
    mounts = (f"mount --rbind {one} {one} && mount -o remount,bind,ro {one}" for one in ("/tmp", "/var/tmp"))
    return {"HOME": "/", "MOUNT": " && ".join(mounts)}


def file_in_the_way(place: Place) -> Environment:
    (file := place.folder / "file").touch()
    os.chown(file, place.user, place.user)
    return {"TIGHTROPE_CACHE": file}


def damaged(place: Place) -> Environment:
    folder = place.own("cache", libraries=True)
    (library,) = folder.glob("allocator-*")
    library.write_bytes(b"no library")
    return {"TIGHTROPE_CACHE": folder, **NO_COMPILER}


ROWS: Final = {
    "HOME unset": Row(lambda _: {}, "neither XDG_CACHE_HOME nor HOME is set", again=True),
    "HOME=/": Row(lambda _: {"HOME": "/"}, r"/\.cache/tightrope cannot be used", again=True),
    "HOME points nowhere": Row(lambda _: {"HOME": "/no/home"}, "/no/home/.cache/tightrope cannot be used"),
    "a home of its own": Row(lambda place: {"HOME": place.own("home")}, again=True),
    "XDG_CACHE_HOME relative": Row(lambda place: {"HOME": place.own("home"), "XDG_CACHE_HOME": "cache"}),
    "cache read-only": Row(lambda place: read_only(place, libraries=True), again=True),
    "cache read-only and empty": Row(
        lambda place: read_only(place, libraries=False), "Read-only", again=True
    ),
    "built with a compiler, run without": Row(
        lambda place: {"TIGHTROPE_CACHE": place.own("cache", libraries=True), **NO_COMPILER}
    ),
    "no compiler": Row(lambda place: {"HOME": place.own("home"), **NO_COMPILER}, "set CXX", enforced=False),
    "no compiler and HOME unset": Row(lambda _: NO_COMPILER, "set CXX", enforced=False),
    "a compiler that fails": Row(lambda place: {"CXX": "/bin/false"}, "could not compile", enforced=False),
    "cache of root, run without a compiler": Row(
        lambda place: {
            "TIGHTROPE_CACHE": place.own("cache", mode=0o755, user=0, libraries=True), **NO_COMPILER
        },
        "belongs to user 0",
    ),
    "cache of root alone": Row(
        lambda place: {"TIGHTROPE_CACHE": place.own("cache", user=0, libraries=True)},
        "cannot be used|belongs to user 0",
        again=True,
    ),
    "cache of another user": Row(
        lambda place: {"TIGHTROPE_CACHE": place.own("cache", mode=0o755, user=40_000, libraries=True)},
        "belongs to user 40000",
        again=True,
    ),
    "cache below a folder of another user": Row(
        lambda place: {"TIGHTROPE_CACHE": place.own("theirs", mode=0o755, user=40_000) / "cache"},
        "belongs to user 40000",
    ),
    "cache writable by a group": Row(
        lambda place: {"TIGHTROPE_CACHE": place.own("cache", mode=0o770, libraries=True)},
        "can be written by others",
        again=True,
    ),
    "cache is a file": Row(file_in_the_way, "Not a directory", again=True),
    "cache is a link to an own folder": Row(
        lambda place: {
            "TIGHTROPE_CACHE": place.link("link", place.own("cache", libraries=True)), **NO_COMPILER
        }
    ),
    "cache is a link of another user": Row(
        lambda place: {
            "TIGHTROPE_CACHE": place.link("link", place.own("cache", libraries=True), user=40_000)
        },
        "is a link of user 40000",
    ),
    "TMPDIR not writable": Row(lambda place: {"HOME": place.own("home"), "TMPDIR": place.folder}),
    "TMPDIR not writable and HOME unset": Row(
        lambda place: {"TMPDIR": place.folder}, "are kept in /tmp/tightrope-"
    ),
    "TMPDIR full": Row(full, "are kept in /tmp/tightrope-", again=True),
    "TMPDIR missing": Row(lambda place: {"TMPDIR": "/nothing"}, "are kept in /tmp/tightrope-"),
    "nothing can be written": Row(
        nothing_writable, "cannot be kept", enforced=False, captures="set TMPDIR to one that can be written"
    ),
    "no room on the disk": Row(disk_full, "is full|No space left", again=True),
    "no code may be loaded from the cache": Row(noexec, "noexec", again=True),
    "no code may be loaded from anywhere": Row(
        lambda place: noexec(place, everywhere=True), "noexec", enforced=False
    ),
    "a library that does not load": Row(damaged, "does not load", enforced=False),
}  # fmt: skip


def check(row: Row, users: OtherUsers, script: str) -> None:
    place = Place(users.folder / str(user := next(USERS)), user, users.folder / "built")
    place.folder.mkdir()
    environment = {name: str(value) for name, value in row.prepare(place).items()}
    mount = environment.pop("MOUNT", "")
    environment = {"CXX": str(users.folder / "c++"), **environment}
    for once in (environment, {**environment, **NO_COMPILER}) if row.again else (environment,):
        answer = users.run(script, user=user, mount=mount, **once)
        assert answer["error"] == ""
        assert answer["found"]["enforced"] is row.enforced
        said = answer["warnings"]
        if row.captures and script is TRAIN:
            assert re.search(row.captures, said.pop()), said
        assert len(said) == bool(row.says) or (once is not environment and not said), said
        if said:
            assert re.search(row.says, said[0]), said
            assert re.search("Set TIGHTROPE_CACHE|set CXX|Delete", said[0]), said
            assert row.enforced or "checked, not enforced" in said[0]


@pytest.mark.few(12)
@pytest.mark.parametrize("name", ROWS)
def test_a_container_enforces_or_says_how_it_could(users: OtherUsers, name: str) -> None:
    check(ROWS[name], users, TOUCH)


@pytest.mark.parametrize("name", ["HOME unset", "no compiler", "cache of root, run without a compiler"])
def test_a_training_in_a_container_enforces_or_says_how_it_could(users: OtherUsers, name: str) -> None:
    if name == "no compiler" and not IN_PYTHON.is_dir():
        pytest.skip("tightrope-planners is not here, which plans without a compiler")
    check(ROWS[name], users, TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_training_in_a_container_enforces_or_says_how_it_could(users: OtherUsers, name: str) -> None:
    check(ROWS[name], users, TRAIN)
