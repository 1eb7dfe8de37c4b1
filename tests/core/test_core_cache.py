"""The folder of kept files: where it is, and what is read, written and removed in it."""

import os
from pathlib import Path

import pytest

from tightrope.core import cache
from tightrope.core.cache import Folder, cache_folder


def test_the_folder_is_the_users_and_relative_paths_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIGHTROPE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.pwd, "getpwuid", lambda user: {}[user])  # as in a container
    assert cache_folder() is None
    monkeypatch.setenv("HOME", "/home/me")
    for ignored in ("", "somewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path("/home/me/.cache/tightrope")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/tightrope")
    monkeypatch.setenv("TIGHTROPE_CACHE", "here")
    assert cache_folder() == Path("here")


def test_links_below_the_folder_are_not_followed(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "file.json").write_text("not ours")
    folder = Folder(tmp_path / "cache")
    folder.write("own.json", b"ours")
    (folder.path / "link.json").symlink_to(elsewhere / "file.json")
    (folder.path / "below").symlink_to(elsewhere)
    for place, name in ((folder, "link.json"), (folder / "below", "file.json")):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            place.read(name)
        assert place.find(name) is None
    assert (folder / "below").names() == []
    with pytest.raises(OSError, match="Not a directory"):
        (folder / "below").write("new.json", b"")
    folder.write("link.json", b"ours")
    folder.remove("below")
    assert (elsewhere / "file.json").read_text() == "not ours"
    assert [path.name for path in elsewhere.iterdir()] == ["file.json"]
    assert folder.names() == ["link.json", "own.json"]


def test_only_names_of_kept_files_are_removed_when_there_are_many(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "cache")
    for age, name in enumerate(("thesis.txt", "first.json", "second.json", "third.json")):
        folder.write(name, b"")
        os.utime(folder.path / name, (age, age))
    (folder / ("0" * 32)).write("inside", b"")
    (folder / "chapters").write("one", b"")
    folder.drop_oldest(2)
    assert folder.names() == ["0" * 32, "chapters", "thesis.txt", "third.json"]


def test_a_file_is_limited_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "cache")
    folder.write("one.json", b"12345")
    assert folder.read("one.json", limit=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        folder.read("one.json", limit=4)

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        folder.write("one.json", b"6")
    assert os.listdir(folder.path) == ["one.json"]
    assert folder.read("one.json") == b"12345"


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "circle of links" in Folder(tmp_path / "a").refusal()
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("x/../real")
    (tmp_path / "x").mkdir()
    Folder(tmp_path / "link").write("one.json", b"")
    assert Folder(tmp_path / "link").find("one.json") == tmp_path / "real" / "one.json"
