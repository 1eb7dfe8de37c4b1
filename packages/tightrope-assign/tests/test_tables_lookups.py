"""Measurements of lookups, the fit of prices to them, and tables on ranks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tables_references import curved_costs

from tightrope.core import PlanFileError, TightropeError
from tightrope_assign.lookups.bench import LookupBench, MeasuredSet, collect, drawn_set
from tightrope_assign.lookups.learn import accuracy, fit_costs, nonnegative, predict
from tightrope_assign.tables import EmbeddingTable, TableSet
from tightrope_assign.values.costs import check_costs
from tightrope_assign.values.tables import touched_rows

EXAMPLE = Path(__file__).parents[1] / "examples" / "sharded_dlrm.py"


@pytest.fixture(scope="module")
def bench() -> LookupBench:
    return LookupBench(numbers=2**22 * 12)


@pytest.mark.parametrize(("rows", "skew"), [(1, 0.0), (50, 0.0), (5000, 1.0), (5000, 1.3), (100_000, 0.7)])
def test_as_many_rows_are_touched_as_expected(rows: int, skew: float, bench: LookupBench) -> None:
    index, length = bench.rows(EmbeddingTable("t", rows, 4, 2.5, skew), rows, 1000)
    assert len(index) == length.sum()
    assert 2300 < len(index) < 2700
    assert 0 <= index.min() <= index.max() < rows
    expected = touched_rows(rows, skew, len(index))
    assert len(set(index.tolist())) == pytest.approx(expected, rel=0.1)


def test_more_lookups_take_longer(bench: LookupBench) -> None:
    few, many = (bench.time([(EmbeddingTable("t", 50_000, 64, rows), 64)], 256) for rows in (1.0, 40.0))
    assert many > 3 * few
    assert bench.time([], 256) == 0


def test_measurements_go_on_where_they_ended(tmp_path: Path, bench: LookupBench) -> None:
    path = tmp_path / "measured"
    first = collect(path, seconds=0.3, bench=bench)
    assert collect(path, seconds=0.1, bench=bench) == first
    again = collect(path, seconds=0.6, bench=bench)
    assert again[: len(first)] == first
    assert len(again) > len(first)
    for text in (
        "[]\n",
        '{"machine": 7}\n',
        path.read_text() + "[1, 2]\n",
        path.read_text().replace('"ns":', '"ns":-'),
        path.read_text().replace('"spent":', '"spent":"x'),
    ):
        path.write_text(text)
        with pytest.raises(PlanFileError):
            collect(path, seconds=0.3, bench=bench)


def test_a_fit_finds_prices_that_have_the_form() -> None:
    sets = [drawn_set(f"fit {at}") for at in range(300)]
    true = predict(curved_costs(), sets)
    measured = [MeasuredSet(one, round(ns), 0.0, "") for one, ns in zip(sets, true, strict=True)]
    costs = fit_costs(measured, epochs=60)
    check_costs(costs)
    assert costs.figures["median_error"] < 0.1
    assert costs.figures["kendall"] > 0.9
    assert accuracy(costs, measured[::6])[0] == pytest.approx(costs.figures["median_error"], abs=1e-4)
    with pytest.raises(TightropeError, match="5 sets are too few"):
        fit_costs(measured[:5])


@pytest.mark.parametrize("seed", range(5))
def test_prices_of_sets_grow_and_are_convex(seed: int) -> None:
    """The bound rests on it."""
    one, other, third = (drawn_set(f"{seed} {name}").tables for name in "abc")
    both = TableSet(tuple(EmbeddingTable(f"u{at}", *_rest(t)) for at, t in enumerate((*one, *other))), 256)
    small = TableSet(both.tables[: len(one)], 256)
    low, high = predict(curved_costs(seed), [small, both])
    assert 0 < low <= high
    assert third


def _rest(table: EmbeddingTable) -> tuple[int, int, float, float]:
    return table.rows, table.dim, table.pooling, table.skew


def test_least_squares_keep_to_zero_and_above() -> None:
    a = np.random.default_rng(0).uniform(0, 1, (40, 3))
    assert nonnegative(a, a @ [2.0, 0.0, 5.0]) == pytest.approx([2, 0, 5], abs=1e-3)
    assert min(nonnegative(a, np.maximum(a @ [1.0, -0.2, 0.3], 0))) >= 0


@pytest.mark.slow
def test_a_recommender_on_four_ranks_equals_one_process() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "largest relative difference from one process" in done.stdout


@pytest.mark.slow
def test_exchanges_are_measured_on_four_ranks() -> None:
    from tightrope_assign.lookups.exchange import measure_exchanges

    forward, backward, _ = measure_exchanges(trials=10)
    assert 0 < forward.per_byte < 1000
    assert 0 <= backward.latency < 1e9
