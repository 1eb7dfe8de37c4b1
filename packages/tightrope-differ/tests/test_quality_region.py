"""Regions against applications that are known, brute force, and a judge that is fed wrong answers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tightrope.core import JudgeError, TightropeError
from tightrope_differ.judge.quality import check_region
from tightrope_differ.quality import Application, contains, find_region, read_region, region_of, write_region
from tightrope_differ.values.quality import QualityMetric, QualityRegion, QualityRun

AXES = {"a": (0.0, 1.0), "b": (0.0, 1.0)}
LINE = Application(AXES, dict, lambda e: 0.9 - e["a"] - 0.6 * e["b"])


def app(margin: Callable[[float, float], float]) -> Application:
    return replace(LINE, run=lambda e: margin(e["a"], e["b"]))


@pytest.mark.parametrize(
    ("margin", "least"),
    [
        (lambda a, b: 0.9 - a - 0.6 * b, 0.85),
        (lambda a, b: 0.49 - a * a - b * b, 0.85),
        (lambda a, b: min(0.6 - a, 0.35 - b), 0.85),
        (lambda a, b: 1.5 - a - b, 0.9),
        (lambda a, b: 0.45 - a * (1 + 0.3 * b) - 0.2 * b**3, 0.85),
        (lambda a, b: 1.0 if a < 0.6 - b * b else -1.0, 0.7),  # margins that say nothing more
    ],
)
def test_twenty_runs_find_most_of_the_region_and_accept_nothing_wrong(
    margin: Callable[[float, float], float], least: float
) -> None:
    found = find_region("app", app(margin), budget=20)
    check_region(found)
    places = (np.arange(60) + 0.5) / 60
    true = {(a, b): margin(a, b) > 0 for a in places for b in places}
    inside = {(a, b): contains(found, {"a": a, "b": b}) for a, b in true}
    assert len(found.runs) == 20
    assert not [place for place, yes in inside.items() if yes and not true[place]]
    assert found.accepted_share >= least * np.mean(list(true.values()))
    assert found.clashes == []


def test_applications_that_are_not_monotone_are_found_out() -> None:
    rng, found_out = np.random.default_rng(0), 0
    for _ in range(6):
        low = rng.uniform(0.02, 0.25, 2)
        high = low + rng.uniform(0.15, 0.3, 2)

        def margin(a: float, b: float, low: np.ndarray = low, high: np.ndarray = high) -> float:
            return -0.3 if ((low <= (a, b)) & ((a, b) <= high)).all() else 0.9 - a - 0.6 * b

        found = find_region("app", app(margin))
        check_region(found)
        found_out += bool(found.clashes)
        for _, at in found.clashes:
            assert not contains(found, dict(zip("ab", found.runs[at].values, strict=True)))
    assert found_out >= 3


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_are_those_of_a_grid(size: int) -> None:
    rng = np.random.default_rng(size)
    metrics = [QualityMetric(str(at), 1.0, 0.0) for at in range(size)]
    for _ in range(20):
        given = rng.random((9, size))
        runs = [QualityRun(list(map(float, one)), float(one.sum() - size * 0.5)) for one in given]
        found = region_of("app", metrics, runs)
        check_region(found)
        drawn = rng.random((4000, size))
        inside = np.mean(
            [contains(found, dict(zip(map(str, range(size)), one, strict=True))) for one in drawn]
        )
        assert abs(inside - found.accepted_share) < 0.04


def test_runs_are_kept_and_never_made_again(tmp_path: Path) -> None:
    calls: list[dict[str, float]] = []

    def counted(errors: dict[str, float]) -> float:
        calls.append(errors)
        if len(calls) == 8:
            raise OSError("the simulator is gone")
        return LINE.run(errors)

    file = tmp_path / "region.toml"
    with pytest.raises(TightropeError, match=r"fails at a = .*OSError: the simulator is gone"):
        find_region("app", replace(LINE, run=counted), budget=12, file=file)
    assert len(read_region(file).runs) == 7
    found = find_region("app", replace(LINE, run=counted), budget=12, file=file)
    assert len(calls) == 13
    assert found == find_region("app", LINE, budget=12) == read_region(file)
    assert find_region("app", replace(LINE, run=counted), budget=12, file=file) == found
    assert len(calls) == 13
    with pytest.raises(TightropeError, match="other metrics"):
        find_region("app", replace(LINE, metrics={"a": (0, 1)}), file=file)


def test_an_application_that_never_works_has_an_empty_region() -> None:
    found = find_region("app", app(lambda a, b: -1.0))
    check_region(found)
    assert (found.accepted_share, len(found.runs)) == (0.0, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accepted": [1]}, "run 1 is accepted"),
        ({"accepted": [0, 99]}, "there are 3"),
        ({"accepted": []}, "run 0 is in no box"),
        ({"rejected": [0]}, "run 0 is rejected"),
        ({"rejected": []}, "run 1 is in no box"),
        ({"accepted_share": 0.2}, "share is said to be 0.2"),
        ({"rejected_share": float("nan")}, "share is said to be nan"),
        ({"clashes": [[0, 1]]}, "the region has 1 clashes"),
        ({"runs": [QualityRun([2.0, 0.1], 1.0)] * 3}, "outside of 0"),
        ({"runs": [QualityRun([0.2], 1.0)] * 3}, "has 1 values"),
        ({"runs": [QualityRun([0.2, 0.1], float("inf"))] * 3}, "margin inf"),
    ],
)
def test_the_judge_refuses_wrong_regions(change: dict[str, object], said: str) -> None:
    metrics = [QualityMetric(name, *ends) for name, ends in AXES.items()]
    runs = [QualityRun([0.5, 0.2], 0.3), QualityRun([0.8, 0.7], -0.3), QualityRun([0.1, 0.1], 0.6)]
    right = region_of("app", metrics, runs)
    check_region(right)
    with pytest.raises(JudgeError, match=said):
        check_region(msgspec.structs.replace(right, **change))


def test_the_judge_refuses_a_corner_that_has_a_failure_inside() -> None:
    metrics = [QualityMetric("a", 0.0, 1.0)]
    runs = [QualityRun([0.6], 1.0), QualityRun([0.3], -1.0)]
    right = region_of("app", metrics, runs)
    check_region(right)
    assert (right.accepted, right.clashes) == ([], [[0, 1]])
    with pytest.raises(JudgeError, match="run 1 fails though it is no worse"):
        check_region(msgspec.structs.replace(right, accepted=[0], accepted_share=0.6))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("accepted_share = ", "accepted_share = 1", "says other than"),
        ("[[runs]]", "[[sums]]", "sums"),
        ("margin = ", "margin = x", "not TOML"),
        ("best = 0.0", "best = 1.0", "goes from 1.0 to 1.0"),
        ("schema = 1", "schema = 2", "schema 1"),
        ("margin = ", "margin = nan #", "says other than"),
        ("values = [0.0,0.0]", "values = [inf,0.0]", "'a' is inf, outside of 0.0 to 1.0"),
        ("values = [0.0,0.0]", "values = [0.0,-2.0]", "'b' is -2.0, outside of 0.0 to 1.0"),
    ],
)
def test_files_that_are_no_regions_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "region.toml"
    write_region(file, find_region("app", LINE, budget=5))
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(TightropeError, match=said):
        read_region(file)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": {}}, "metrics are none"),
        ({"metrics": {"a": (0.0, 0.0)}}, "goes from 0.0 to 0.0"),
        ({"metrics": {"a": (0.0, float("nan"))}}, "goes from 0.0 to nan"),
        ({"metrics": {"a": (-1.7e308, 1.7e308)}}, "goes from -1.7e"),
        ({"metrics": {"a": (0.0, 1.0, 2.0)}}, "give name"),
        ({"metrics": {"a": ("low", "high")}}, "give name"),
        ({"metrics": ["a"]}, "give name"),
        ({"metrics": dict.fromkeys("abcde", (0, 1))}, "1 to 4"),
        ({"run": lambda e: float("nan")}, "returns the margin nan"),
        ({"run": lambda e: "good"}, "ValueError"),
        ({"inject": lambda e: 1 / 0}, "the injector fails at a = 0, b = 0: ZeroDivisionError"),
    ],
)
def test_bad_applications_are_told_what_and_where(changes: dict[str, object], said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        find_region("app", replace(LINE, **changes))


def test_a_region_needs_all_of_its_metrics() -> None:
    region: QualityRegion = find_region("app", LINE, budget=5)
    with pytest.raises(TightropeError, match="no value of the metric 'b'"):
        contains(region, {"a": 0.0})
