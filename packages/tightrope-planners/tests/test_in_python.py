"""Without a compiler: the search and the placer in Python serve, and plans say so."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import oracles
from tightrope.core import NativeError
from tightrope.lower import problems
from tightrope.native.interface import load
from tightrope.native.solvers.packer import native_function
from tightrope.place import place
from tightrope.plan import smallest, solve


@pytest.fixture(autouse=True)
def _no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tightrope.native.build.prebuilt", lambda _: None)
    monkeypatch.setattr("tightrope.native.solvers.solver._library", lambda: load("solver"))
    monkeypatch.setattr("tightrope.native.solvers.packer.native_function", native_function.__wrapped__)


def test_plans_are_made_and_say_so() -> None:
    graph = oracles.random_graph(3, num_ops=30)
    least = smallest(graph)
    plan = solve(graph, budget=least.forecast.total * 21 // 20)
    for one in (least, plan):
        assert "in Python (no native part)" in one.planner or one.planner == "given"
        assert problems(graph, one) == []
    assert plan.forecast.total <= least.forecast.total * 21 // 20


def test_buffers_are_placed_without_overlaps() -> None:
    draw = Random(5)
    starts = [draw.randint(0, 40) for _ in range(60)]
    ends = [start + draw.randint(1, 9) for start in starts]
    sizes = [draw.randint(1, 90) for _ in range(60)]
    found = place([*zip(sizes, starts, ends, strict=True)])
    assert "in Python (no native part)" in found.method
    for tick in range(50):
        alive = sorted((found.offsets[i], sizes[i]) for i in range(60) if starts[i] <= tick < ends[i])
        assert all(a + size <= b for (a, size), (b, _) in pairwise(alive))


def test_without_the_plug_in_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.core.plugins.installed", lambda _: {})
    with pytest.raises(NativeError, match=r"no C\+\+ compiler found for packer.cpp .*\[planners\]"):
        place([(4, 0, 1), (4, 0, 1)])
