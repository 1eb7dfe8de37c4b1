"""The command ``place`` for ops on parallel streams."""

import gzip
import json
from pathlib import Path

import pytest
from stream_cases import FILE

from tests.cli.command import run
from tightrope.core import JudgeError
from tightrope_planners.judge.safety import Tenant, check_sharing


def test_the_command_adds_the_waits_that_a_capacity_needs(tmp_path: Path) -> None:
    file = tmp_path / "step.streams.json"
    file.write_text(json.dumps(FILE))
    free = run("place", file, "--minimize", "--json")
    assert json.loads(free.out)["peak_bytes"] == 256
    out = tmp_path / "placed.json"
    found = run("place", file, "--capacity", "192", "-o", out, "--json")
    assert found.code == 0, found.err
    figures = json.loads(found.out)
    assert figures["peak_bytes"] == figures["lower_bound_bytes"] == 192
    assert figures["added_waits"] == [[1, 3]]
    tree = json.loads(out.read_text())
    tenants = [
        Tenant(s["bytes"], s["writer"], s["reads"], s["mutates"], s["resident"]) for s in tree["storages"]
    ]
    check_sharing(tree["streams"], tree["waits"], tenants, [s["offset"] for s in tree["storages"]], arena=192)
    with pytest.raises(JudgeError):
        check_sharing(tree["streams"], [(0, 1)], tenants, [s["offset"] for s in tree["storages"]], arena=192)
    refused = run("place", file, "--capacity", "100", "--json")
    assert refused.code == 3
    assert "the capacity is 100 B" in refused.err + refused.out


def test_a_name_that_ends_in_gz_is_compressed_and_read_again(tmp_path: Path) -> None:
    file, plain, zipped = (tmp_path / name for name in ("step.json", "placed.json", "placed.json.gz"))
    file.write_text(json.dumps(FILE))
    for out in (plain, zipped):
        assert run("place", file, "--minimize", "-o", out).code == 0
    assert gzip.decompress(zipped.read_bytes()) == plain.read_bytes()
    assert run("place", zipped, "--minimize").code == 0


def test_what_streams_do_not_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "step.streams.json"
    file.write_text(json.dumps(FILE))
    assert "no common time axis" in run("place", file, "--minimize", "--svg", tmp_path / "a.svg").err
