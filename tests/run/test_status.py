"""What a reader of standard error sees while something takes long."""

import logging
import re
import shutil
import time

import pytest
import torch

import tightrope
from tightrope.run.base import status
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.accounts import accounts


@pytest.mark.parametrize("lines", [False, True])
def test_where_there_is_no_terminal_a_long_task_is_one_line_or_silent(
    capsys: pytest.CaptureFixture[str], lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = StatusLine(lines=lines)
    with progress.task("measuring ops", 12):
        pass
    assert capsys.readouterr().err == ""  # what is refused at once is one line
    monkeypatch.setattr(status, "_PATIENCE", 0.01)
    with progress.task("measuring ops", 12) as tick:
        tick(1, 12, "aten.mm")
        time.sleep(0.2)
        with progress.search(2**20):
            time.sleep(0.2)
    said = capsys.readouterr()
    wanted = "tightrope: measuring ops (12) ...\ntightrope: planning for 1.00 MiB ...\n"
    assert (said.out, said.err) == ("", wanted if lines else "")


def test_lines_are_records_of_a_logger_that_a_user_can_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[logging.LogRecord] = []
    mine = logging.Handler()
    monkeypatch.setattr(mine, "emit", seen.append)
    logger = logging.getLogger("tightrope")
    monkeypatch.setattr(logger, "handlers", [mine])
    with StatusLine().planning(2**20, "first plan"):
        pass
    StatusLine(shown=False).say("nothing of this")
    assert [(one.levelname, one.getMessage()[:36]) for one in seen] == [
        ("INFO", "planning for 1.00 MiB (first plan) .")
    ]
    assert capsys.readouterr().err == ""
    monkeypatch.undo()
    logger.setLevel(logging.WARNING)
    try:
        StatusLine().say("not at this level")
        assert capsys.readouterr().err == ""
    finally:
        logger.setLevel(logging.INFO)
    StatusLine().say("a line")
    assert capsys.readouterr().err == "tightrope: a line\n"


def test_on_a_terminal_a_task_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(shown=True).task("measuring ops", 12) as tick:
        time.sleep(0.11)
        tick(3, 12, "aten.mm")
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line.rstrip() for line in said.err.split("\r") if line]
    assert lines == ["tightrope: measuring ops (12)", "tightrope: measuring ops 3/12 aten.mm", ""]
    assert max(map(len, said.err.split("\r"))) < shutil.get_terminal_size().columns


def test_every_plan_is_one_line_with_its_reason_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
    for size in (2, 2, 4):
        model(torch.ones(size, 8)).sum().backward()
    said = capsys.readouterr()
    first, again = said.err.splitlines()
    assert said.out == ""
    assert re.fullmatch(r"tightrope: planning for 64\.00 MiB \(first plan\) \.\.\. \d+\.\d\d s", first)
    assert re.fullmatch(
        r"tightrope: planning for .* \(another captured graph: .*\) \.\.\. \d+\.\d\d s", again
    )
    report = tightrope.report(model)
    assert [proof.cause in line for proof, line in zip(report.proofs, (first, again), strict=True)] == [
        True
    ] * 2
    assert "planned 2 times:" in str(report)


def test_a_refused_plan_says_so_and_progress_false_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    wide = torch.nn.Linear(512, 512)
    with pytest.raises(tightrope.InfeasibleError):
        tightrope.compile(wide, budget=accounts().charged() + 2**21)(torch.ones(512, 512)).sum().backward()
    assert re.search(r"\.\.\. refused, \d+\.\d\d s\n", capsys.readouterr().err)
    model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB", progress=False)
    model(torch.ones(2, 8)).sum().backward()
    assert capsys.readouterr().err == ""


def test_a_command_that_writes_lines_says_a_plan_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StatusLine(lines=True)
    with progress.planning(2**20, "first plan"), progress.search(2**20):
        pass
    assert capsys.readouterr().err.count("planning for") == 1


def test_on_a_terminal_the_line_stands_when_planning_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(shown=True).planning(2**20, "first plan"):
        assert "first plan" not in capsys.readouterr().err
    assert "(first plan) ... 0.0" in capsys.readouterr().err


def test_a_task_is_named_once_it_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_PATIENCE", 0.05)
    with StatusLine().slow("building"):
        time.sleep(0.3)
    assert capsys.readouterr().err == "tightrope: building ...\n"
    monkeypatch.setattr(status, "_PATIENCE", 60.0)
    with StatusLine().slow("building"):
        pass
    with StatusLine(shown=False).slow("building"):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""
