"""The command ``streams``: figures, files, pictures and exit codes."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.command import run

QUICK = ("--moves", "200")


def printed(*arguments: str | Path, code: int = 0) -> Any:
    found = run("streams", *arguments)
    assert found.code == code, found.err
    return json.loads(found.out)


def test_json_has_score_bound_and_promises(tmp_path: Path) -> None:
    page, out = tmp_path / "timeline.html", tmp_path / "plan.json"
    found = printed("VR_gaming", "Single_8K-WS", *QUICK, "--json", "--page", page, "-o", out)
    assert 90 < found["score"] <= found["upper_bound"]
    assert found["seed"] == 0
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert set(json.loads(out.read_text())) == {"plan", "run"}


def test_the_reference_is_a_policy() -> None:
    found = printed("VR_gaming", "Single_4K-WS", "--policy", "latency", "--rules", "compatible", "--json")
    assert found["score"] == pytest.approx(86.466, abs=0.001)


def test_the_exit_code_says_whether_the_score_is_reached() -> None:
    assert run("streams", "VR_gaming", "Single_4K-OS", *QUICK, "--at-least", "99").code == 3
    found = run("streams", "VR_gaming", "Single_4K-WS", *QUICK, "--arena", "200MB", "--page-rate", "100GB")
    assert found.code == 0
    assert "arena" in found.out


def test_what_there_is_is_listed() -> None:
    assert "VR_gaming: ES_RITNet 60" in run("streams", "list").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("VR_gaming", "board"), "no machine is called 'board'"),
        (("kitchen", "Single_4K-WS"), "no scenario is called 'kitchen'"),
        (("VR_gaming", "Single_4K-WS", "--policy", "luck"), "--policy 'luck'"),
        (("VR_gaming", "Single_4K-WS", "--rules", "none"), "--rules 'none'"),
        (("VR_gaming", "Single_4K-WS", "--arena", "1KB"), "needs"),
        (("VR_gaming", "Single_4K-WS", "--arena", "-1"), "-1"),
        (("VR_gaming", "Single_4K-WS", "--file", "none.toml"), "none.toml"),
        (("VR_gaming", "Single_4K-WS", "--page", "no/such/folder.html"), "no/such"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], said: str) -> None:
    found = run("streams", *arguments)
    assert found.code == 2
    assert said in found.err


def test_what_was_named_first_is_looked_up_first():
    for arguments in (("nope",), ("nope", "nothing")):
        done = run("streams", *arguments)
        assert done.code == 2
        assert "no scenario is called 'nope'; there are: " in done.err


def test_a_machine_that_was_left_out_is_asked_for():
    done = run("streams", "VR_gaming")
    assert done.code == 2
    assert "no machine is given for 'VR_gaming'" in done.err
    assert "Dual_8K-WS_OS" in done.err
