"""Commands of their own processes answer a sample of bad inputs: one line, exit code 2, torch unseen."""

import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]


def test_every_command_answers_bad_inputs_with_one_line_and_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    given = [sys.executable, "-m", "benchmarks.commands", "--quick", "--json", str(file)]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = msgspec.json.decode(file.read_bytes())["answers"]
    assert len({" ".join(answer["given"][:1]) for answer in answers}) >= 20
    late = "slow"  # a busy machine takes longer than two seconds; torch is never busy
    wrong = [answer for answer in answers if answer["wrong"] and not (answer["wrong"].startswith(late))]
    assert not wrong
    assert not [answer for answer in answers if answer["torch"]]
