"""`python -m benchmarks families`: the list, one family run to its end, and the bars."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.families import FAMILIES, is_kept
from benchmarks.families.bars import line, summary
from benchmarks.families.main import run


def test_the_list_is_long_and_half_of_it_is_kept_unseen() -> None:
    assert len(FAMILIES) >= 60
    assert 0.4 < sum(map(is_kept, FAMILIES)) / len(FAMILIES) < 0.6


def test_a_family_is_run_in_processes_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "families.json"
    given = ["--only", "deep_equilibrium", "--budgets", "100%", "--json", str(path)]
    run(given, Console())
    row = json.loads(path.read_text())["deep_equilibrium"]
    assert row["runs"]["100%"]["bits"] == "equal"
    assert row["runs"]["100%"]["kept"]
    assert row["runs"]["100%"]["pairs"] > 0
    assert row["eager"]["peak"] > 0
    assert "deep_equilibrium" in capfd.readouterr().out
    path.write_text(json.dumps({"deep_equilibrium": row | {"said": "before"}}))
    run(given, Console())
    assert json.loads(path.read_text())["deep_equilibrium"]["said"] == "before"


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=slow) for name in ("jamba", "bamba", "zamba2", "deepseek_v3", "hubert")),
        *(pytest.param(name, marks=slow) for name in ("jagged_nested", "qwen3_next", "informer")),
        "packed_gru",
    ],
)
def test_what_once_crashed_or_was_refused_trains_with_eager_s_bits(name: str, tmp_path: Path) -> None:
    path = tmp_path / "families.json"
    run(["--only", name, "--budgets", "100%", "--json", str(path)], Console())
    found = json.loads(path.read_text())[name]["runs"]["100%"]
    assert found.get("bits") == "equal", found
    assert found["kept"]


@slow
def test_second_derivatives_are_refused_in_words_that_say_what_works(tmp_path: Path) -> None:
    path = tmp_path / "families.json"
    run(["--only", "wgan_gp", "--budgets", "100%", "--json", str(path)], Console())
    found = json.loads(path.read_text())["wgan_gp"]["runs"]["100%"]
    assert found["refused"] == "TightropeError"
    assert "For second derivatives use tightrope.replay(budget)" in found["said"]


def row(**whole: Any) -> dict[str, Any]:
    trained = {
        "level": "L1", "graphs": 1, "bits": "equal", "kept": True, "as_forecast": True, "ratio": 1.0,
        "first": 1.0, "plans": 1, "unplanned": 2**20,
    }  # fmt: skip
    return {
        "name": "net", "kept": False, "aot": {"graphs": 1, "breaks": [], "cpu": [1.0]},
        "eager": {"ms": 20.0, "peak": 2**20, "share": 0.7}, "runs": {"100%": trained | whole},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "bar"),
    [
        ({"ratio": 2.0}, "G2 at 100%, one graph over 10 ms"),
        ({"bits": "DIFFER"}, "G4 bits equal"),
        ({"kept": False}, "G4 bytes within"),
        ({"as_forecast": False}, "G4 as forecast"),
        ({"first": 40.0}, "G5 CPU seconds"),
        ({"later": {"failed": "IndexError", "said": "", "step": 9}}, "G1 raise nothing"),
    ],
)
def test_a_bar_is_missed_where_its_figure_is_bad(whole: dict[str, Any], bar: str) -> None:
    assert summary([row()])[1]
    lines, met = summary([row(**whole)])
    assert not met
    assert any(bar in said and "MISSED" in said for said in lines)
    assert "net" in line(row(**whole))
