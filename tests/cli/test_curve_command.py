"""``tightrope curve``: what every budget costs in time."""

import json
from pathlib import Path

import pytest
from command import run


def test_a_function_and_a_graph_file_have_a_curve(net: Path, files: tuple[Path, Path]) -> None:
    for target in (f"{net}:build", files[1]):
        done = run("curve", target, "--seconds", "3")
        assert done.code == 0, done.err
        head, *rows = done.out.splitlines()
        assert head.split()[:3] == ["budget", "bytes", "step"]
        assert rows[0].split()[:2] == ["100.0", "%"]
        assert len(rows) > 3


def test_planning_that_takes_longer_is_announced(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightrope.run.base.status._PATIENCE", 0.01)
    assert "planning for a curve of budgets" in run("curve", files[1], "--seconds", "3").err


def test_json_has_points_whose_time_never_rises_with_the_budget(files: tuple[Path, Path]) -> None:
    found = json.loads(run("curve", files[1], "--seconds", "3", "--json").out)
    points = found["points"]
    assert points[-1]["budget_bytes"] == found["whole_bytes"]
    assert points[-1]["budget_percent"] == 100.0
    assert points[-1]["more_time_percent"] == 0.0
    budgets = [point["budget_bytes"] for point in points]
    times = [point["seconds"] for point in points]
    assert budgets == sorted(budgets)
    assert times == sorted(times, reverse=True)
    assert all(point["total_bytes"] <= point["budget_bytes"] for point in points)


def test_the_smallest_budget_says_what_is_computed_again(files: tuple[Path, Path]) -> None:
    found = json.loads(run("curve", files[1], "--seconds", "3", "--json").out)
    assert found["points"][0]["more_time_percent"] > 0
    assert all((p["num_recomputed"] > 0) == (p["more_time_percent"] > 0) for p in found["points"])


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "1e+40"])
def test_seconds_are_finite_and_positive(files: tuple[Path, Path], seconds: str) -> None:
    done = run("curve", files[1], "--seconds", seconds)
    assert done.code == 2
    assert f"--seconds={float(seconds)}: give a number of seconds" in done.err
