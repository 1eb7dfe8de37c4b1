"""Files are written whole or not at all."""

import os
import re
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from tightrope.core import PlanFileError
from tightrope.core.writing import replacing, write_whole

SOURCES = Path(__file__).parents[2] / "src" / "tightrope"


@contextmanager
def full_disk(room=4096):
    """Let files grow to so many bytes and no further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    with full_disk(), pytest.raises(PlanFileError, match=r"page.html' cannot be written: File too large"):
        write_whole(page, "x" * 100_000)
    assert page.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]


def test_an_interrupt_leaves_what_was_there(tmp_path):
    page = tmp_path / "page.html"

    def interrupted():
        with replacing(page) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_modes_and_links_stay(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    assert real.stat().st_mode & 0o777 == 0o640
    write_whole(tmp_path / "new", b"")
    (tmp_path / "plain").touch()
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_devices_and_the_longest_name_are_written(tmp_path):
    write_whole("/dev/null", "nothing")
    assert not os.path.isfile("/dev/null")
    write_whole(tmp_path / ("n" * 255), "something")
    with pytest.raises(PlanFileError, match=r"cannot be written: No space left on device"):
        write_whole("/dev/full", "something")


@pytest.mark.parametrize("name", ["no/such/file", "a\0b", "n" * 256])
def test_what_is_no_file_is_named(tmp_path, name):
    with pytest.raises(PlanFileError, match="cannot be written"):
        write_whole(tmp_path / name, "something")


def test_no_result_is_written_in_place():
    found = [
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if re.search(r"\.write_(text|bytes)\(", file.read_text(encoding="utf-8"))
    ]
    assert found == []
