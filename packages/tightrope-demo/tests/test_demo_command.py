"""What the demo refuses, and a row of it."""

import json

import pytest

from tests.cli.command import run
from tightrope_demo import rows


def test_help_shows_examples() -> None:
    found = run("demo", "--help")
    assert found.code == 0
    assert "tightrope demo --net gpt2 --json" in found.out


def test_a_budget_of_the_demo_is_read_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_Demo", None)
    found = run("demo", "--net", "resnet", "--budget", "0%%")
    assert found.code == 2
    assert "'0%%'" in found.err


@pytest.mark.parametrize("words", [("--net", "alexnet"), ("--steps", "0"), ("--steps", "-3")], ids=" ".join)
def test_a_wrong_option_is_refused(words: tuple[str, ...]) -> None:
    assert run("demo", *words).code == 2


def test_a_long_name_of_a_demo_network_is_quoted_in_short() -> None:
    found = run("demo", "--net", "x" * 5000)
    assert found.code == 2
    assert "give gpt2 or" in found.err
    assert len(found.err) < 300


def test_a_row_has_the_bits_of_eager_and_its_peak() -> None:
    pytest.importorskip("sklearn")
    found = run("demo", "--net", "resnet", "--budget", "60%", "--steps", "2", "--json")
    assert found.code == 0, found.err
    (row,) = json.loads(found.out)["rows"]
    assert row["losses_equal"]
    assert row["gradients_equal"]
    assert row["observed_peak"] == row["forecast_peak"]
    assert row["num_recomputed"] > 0
