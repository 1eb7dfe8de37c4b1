"""Layouts that installers make, untouched: no alarm, and an alarm once a file there is changed."""

import base64
import hashlib
from pathlib import Path

from tightrope.integrity import environment_at, verify_environment


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
