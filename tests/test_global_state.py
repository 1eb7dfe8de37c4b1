"""The library draws no number, registers no handler and starts no thread that its process would see."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.global_state import GENERATORS, present


def measured(*arguments: str) -> dict[str, dict[str, list[str]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.global_state", *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_nothing_of_the_process_moves_that_torch_leaves() -> None:
    (by_torch,) = measured("control").values()
    found = measured()
    assert found.pop("import") == {}
    assert found.pop("command line") == {}
    assert len(found) == 8
    for stage, moved in found.items():
        assert not {*GENERATORS} & {*moved}, stage
        for what, values in moved.items():
            assert set(values) <= set(by_torch.get(what, ())), (stage, what)


def test_what_is_compared_shows_a_draw_and_a_handler() -> None:
    before, state = present(), random.getstate()
    random.random()
    os.environ["TIGHTROPE_SHOWN"] = "1"
    try:
        now = present()
    finally:
        random.setstate(state)
        del os.environ["TIGHTROPE_SHOWN"]
    assert {what for what in now if now[what] != before[what]} == {"python", "environment"}
