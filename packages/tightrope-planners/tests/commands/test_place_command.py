"""The command ``place``: figures, files, pictures and exit codes."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.command import run
from tightrope_planners.place import read_csv

TEXT = "id,lower,upper,size\nb0,0,3,4\nb1,3,9,4\nb2,0,9,4\nb3,9,21,4\nb4,0,21,4\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(TEXT)
    return path


def printed(*arguments: str | Path, code: int = 0) -> Any:
    found = run(*arguments)
    assert found.code == code, found.err
    return json.loads(found.out)


def test_json_has_status_peak_bound_and_time(file: Path) -> None:
    found = printed("place", file, "--capacity", "12", "--json")
    assert (found["status"], found["peak_bytes"], found["lower_bound_bytes"]) == ("optimal", 12, 12)
    assert found["cpu_seconds"] >= 0
    assert set(found["witness"]) <= {"b0", "b1", "b2", "b3", "b4"}


@pytest.mark.parametrize(("capacity", "code", "status"), [("11", 3, "infeasible"), ("20", 0, "optimal")])
def test_the_exit_code_says_whether_it_fits(file: Path, capacity: str, code: int, status: str) -> None:
    found = printed("place", file, "--capacity", capacity, "--minimize", "--json", code=code)
    assert found["status"] == status


def test_the_columns_come_back_with_offsets_and_the_picture_is_drawn(file: Path, tmp_path: Path) -> None:
    done = run("place", file, "--minimize", "-o", tmp_path / "out.csv", "--svg", tmp_path / "out.svg")
    assert done.code == 0, done.err
    assert "optimal: 5 buffers in 12 bytes" in done.out
    placed = read_csv(tmp_path / "out.csv")
    assert placed.buffers == read_csv(file).buffers
    assert min(placed.offsets) == 0
    assert (tmp_path / "out.csv").read_text().startswith("id,lower,upper,size,offset\n")
    assert ElementTree.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_equal_seeds_give_equal_files(file: Path, tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        assert run("place", file, "--minimize", "--seed", "3", "-o", tmp_path / name).code == 0
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what is wanted"),
        (("--capacity", "many"), "capacity 'many' is not an amount"),
        (("--minimize", "--seconds", "0"), "greater than or equal"),
    ],
)
def test_what_makes_no_sense_is_an_error(file: Path, arguments: tuple[str, ...], message: str) -> None:
    found = run("place", file, *arguments)
    assert found.code == 2
    assert message in found.err


def test_files_that_cannot_be_read_are_errors_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "s.pickle").write_bytes(b"\x80\x04N.")
    for name, message in (("none.csv", "cannot read"), ("s.pickle", "nothing is unpickled")):
        found = run("place", tmp_path / name, "--minimize")
        assert found.code == 2
        assert message in found.err
        assert found.err.count("\n") == 1
