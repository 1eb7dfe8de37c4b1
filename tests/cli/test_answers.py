"""Commands of their own processes answer a sample of bad inputs: one line, exit code 2, torch unseen."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from command import run

ROOT = Path(__file__).parents[2]


def test_every_command_answers_bad_inputs_with_one_line_and_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    given = [sys.executable, "-m", "benchmarks.commands", "--quick", "--json", str(file)]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = msgspec.json.decode(file.read_bytes())["answers"]
    assert len({" ".join(answer["given"][:1]) for answer in answers}) > 12
    late = "slow"  # a busy machine takes longer than two seconds; torch is never busy
    wrong = [answer for answer in answers if answer["wrong"] and not (answer["wrong"].startswith(late))]
    assert not wrong
    assert not [answer for answer in answers if answer["torch"]]


def test_a_mistyped_function_is_told_without_running_the_file(tmp_path: Path) -> None:
    file, marker = tmp_path / "train.py", tmp_path / "ran"
    file.write_text(f"open({str(marker)!r}, 'w').close()\n\ndef build():\n    return 3\n")
    done = run("plan", f"{file}:biuld", "--budget", "8GiB")
    assert done.code == 2
    assert "has no function 'biuld'" in done.err
    assert not marker.exists()
    done = run("plan", f"{file}:build", "--budget", "8GiB")
    assert "must return (model, inputs)" in done.err
    assert marker.exists()


@pytest.mark.parametrize(
    "making", ["from os.path import *", "globals()['built'] = 3", "def __getattr__(name): return 3"]
)
def test_a_name_that_only_running_the_file_makes_is_found(tmp_path: Path, making: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{making}\n")
    name = "join" if "import" in making else "built"
    assert "has no function" not in run("plan", f"{file}:{name}", "--budget", "8GiB").err


@pytest.mark.parametrize(
    "given",
    [
        ("run", "t.csv", "--budget", "\u0663"),
        ("report", "t.csv", "--also", "missing.json", "-o", "new.html"),
    ],
    ids=" ".join,
)
def test_numbers_and_files_that_were_taken_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("candidate,value\na,1\nb,2\n")
    done = run(*given)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
