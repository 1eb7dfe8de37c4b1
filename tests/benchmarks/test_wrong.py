"""Wrong calls are drawn the same again, and what is wrong about an answer is told."""

from pathlib import Path
from random import Random

import pytest
import torch

from benchmarks.wrong.case import _call, _judged, run_case
from benchmarks.wrong.doors import Argument, Door
from benchmarks.wrong.files import World, damaged
from benchmarks.wrong.values import FAMILIES, Drawn
from tightrope.core import TightropeError

DRAWN = {"seed": Drawn("x", "junk")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    files = {kind: str(tmp_path / f"{kind}.json") for kind in ("plan", "graph")}
    for path in files.values():
        Path(path).write_text('{"schema": 2, "ops": [1, 2, 3]}')
    return World(tmp_path, files)


def test_a_case_is_drawn_again_from_its_seed(world: World) -> None:
    again = [FAMILIES["budget"](Random("a/1"), world, ()).value for _ in range(2)]
    assert again[0] == again[1]
    found = [Path(damaged(Random("a/7"), world, "plan")[1]).read_bytes() for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TightropeError("seed='x': give a whole number."), ""),
        (TightropeError("no."), "message"),
        (TightropeError("give another."), "message"),
        (TightropeError("seed is odd."), "message"),
        (KeyError("x"), "internal"),
        (torch.OutOfMemoryError("x"), "memory"),
    ],
)
def test_answers_are_judged(error: Exception, kind: str) -> None:
    assert _judged(error, DRAWN, lambda: None)[0] == kind


def test_an_error_of_torch_itself_is_right() -> None:
    assert _judged(TypeError("a"), DRAWN, lambda: TypeError("a"))[:2] == ("", "as torch")
    assert _judged(TypeError("a"), DRAWN, lambda: TypeError("b"))[0] == "internal"


def test_nonsense_that_is_taken_is_wrong(world: World) -> None:
    door = Door({"seed": Argument(lambda world: 0, ("junk",))}, lambda world, given: None)
    assert _call(world, door, DRAWN)[0] == "accepted"
    assert _call(world, door, {"seed": Drawn("x", "junk", must=False)})[0] == ""


def test_what_a_case_leaves_behind_is_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.wrong.case._broken", lambda: "the folder is another")
    monkeypatch.setattr("benchmarks.wrong.case._argument", lambda *_: ("door", (), ("", "taken", "")))
    assert run_case(world, "a", 4).kind == "state"
