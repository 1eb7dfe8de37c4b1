"""The command ``jobs``: figures, files, pictures and exit codes."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.command import run

TEXT = "name,start,end,gb\na,0,10,3\nb,2,4,1\nc,3,9,3\nd,5,8,2\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TEXT)
    return path


def printed(*arguments: str | Path, code: int = 0) -> Any:
    found = run("jobs", *arguments)
    assert found.code == code, found.err
    return json.loads(found.out)


def test_json_has_machine_time_and_bound(file: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "jobs.html", tmp_path / "plan.json"
    found = printed(
        file,
        "--capacity",
        "4",
        "--predict",
        "truth",
        "--rule",
        "aligned",
        "--json",
        "--page",
        page,
        "-o",
        out,
    )
    assert found["lower_bound"] <= found["machine_time"]
    assert found["num_jobs"] == 4
    text = page.read_text()
    assert text.count("<svg") == 2
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert set(json.loads(out.read_text())) == {"jobs", "plan"}


def test_the_exit_code_says_whether_every_job_has_a_machine(file: Path) -> None:
    more = ("--capacity", "4", "--rule", "best-fit", "--predict", "truth")
    assert printed(file, *more, "--machines", "1", "--json", code=3)["num_refused"] > 0
    assert run("jobs", file, *more, "--machines", "9").code == 0


def test_learned_predictions_count_the_second_half(file: Path) -> None:
    assert printed(file, "--capacity", "4", "--json")["num_jobs"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --capacity"),
        (("--capacity", "4,x"), "--capacity '4,x'"),
        (
            ("--capacity", "2", "--predict", "truth"),
            "jobs.csv, line 2: job 'a' takes 3 of gb; a machine has 2",
        ),
        (("--capacity", "4,9"), "jobs.csv, line 1: jobs have 1 sizes, gb; the capacity 4,9 has 2: give one"),
        (("--capacity", "4", "--since", "99"), "jobs.csv': no jobs are left"),
        (("--capacity", "-2"), "capacity=(-2,)"),
        (("--capacity", "4", "--predict", "luck"), "--predict 'luck'"),
        (("--capacity", "4", "--rule", "luck"), "rule='luck'"),
        (("--capacity", "4", "-o", "no/such/plan.json"), "no/such"),
    ],
)
def test_bad_input_is_named(file: Path, arguments: tuple[str, ...], said: str) -> None:
    found = run("jobs", file, *arguments)
    assert found.code == 2
    assert said in found.err
