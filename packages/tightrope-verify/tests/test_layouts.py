"""Layouts that installers make, untouched: no alarm, and an alarm once a file there is changed."""

import base64
import hashlib
import py_compile
from pathlib import Path

import pytest

from tightrope.core import TightropeError
from tightrope_verify import environment_at, make_lock, verify_environment


def _row(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}\n"


def test_a_target_folder_and_a_signed_record_are_as_they_were_installed(tmp_path: Path) -> None:
    info, script = tmp_path / "toy-1.0.dist-info", tmp_path / "bin" / "toy"
    info.mkdir()
    script.parent.mkdir()
    meta, code = b"Name: toy\nVersion: 1.0\n", b"#!/bin/sh\n"
    (info / "METADATA").write_bytes(meta)
    (info / "RECORD.jws").write_text("{}")
    script.write_bytes(code)
    (info / "RECORD").write_text(
        _row("../../bin/toy", code)
        + _row("toy-1.0.dist-info/METADATA", meta)
        + "toy-1.0.dist-info/RECORD,,\ntoy-1.0.dist-info/RECORD.jws,,\n"
    )
    environment = environment_at(tmp_path)
    assert [str(one) for one in verify_environment(environment).problems] == []
    script.write_bytes(b"#!/bin/sh\nrm -r .\n")
    changed = verify_environment(environment_at(tmp_path)).problems
    assert [one.path for one in changed] == ["bin/toy"]


def test_packages_without_record_files_are_checked_as_far_as_can_be(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info, module, other = site / "toy-1.0.dist-info", site / "toy.py", tmp_path / "elsewhere.py"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: toy\nVersion: 1.0\n")
    module.write_text("one = 1\n")
    other.write_text("two = 2\n")
    (site / "linked.py").symlink_to(other)  # as Bazel lays files out
    compiled = Path(py_compile.compile(str(module)) or "")
    plain = verify_environment(environment_at(site))
    assert any("--unrecorded" in one.why for one in plain.problems)
    found = verify_environment(environment_at(site), unrecorded=True)
    assert found.problems == ()
    assert found.num_bytecode == 1
    assert any(note.startswith("1 of 1 distributions have no RECORD, and 3 files") for note in found.notes)
    lock, verdict = make_lock(environment_at(site), unrecorded=True)
    assert verdict.holds
    code = bytearray(compiled.read_bytes())
    code[code.index(b"one") : code.index(b"one") + 3] = b"two"
    compiled.write_bytes(code)
    wrong = verify_environment(environment_at(site), unrecorded=True).problems
    assert [one.kind for one in wrong] == ["bytecode"]
    compiled.unlink()
    module.write_text("one = 2\n")
    changed = verify_environment(environment_at(site), lock, unrecorded=True).problems
    assert [one.path for one in changed] == ["toy.py"]


def test_a_folder_without_metadata_is_an_environment_where_none_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text("one = 1\n")
    with pytest.raises(TightropeError, match="holds no installed packages"):
        environment_at(tmp_path)
    assert verify_environment(environment_at(tmp_path, unrecorded=True), unrecorded=True).holds
