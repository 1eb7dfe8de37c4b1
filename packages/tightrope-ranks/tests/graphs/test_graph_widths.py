"""The choice of widths: never below its bound, never above one step a link, near what HiGHS finds."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.graphs.exact import brute, milp, random_problem
from tightrope.core import TightropeError
from tightrope_ranks.graphs.widths import choose_widths, objective, scales


def test_a_hundred_small_problems_meet_brute_force() -> None:
    above = []
    for seed in range(100):
        problem = random_problem(
            seed, 2 + seed % 2, 3 - 2 * (seed % 2), weight=(0.2, 0.5, 0.8)[seed % 3],
            columns=(128, 1, 33)[seed % 3], rows=(1, 100, 10)[seed % 3],
        )  # fmt: skip
        choice, best = choose_widths(problem), brute(problem)
        assert choice.bound <= best + 1e-9
        assert best - 1e-9 <= choice.objective == objective(problem, choice.bits)
        above.append(choice.objective / best - 1 if best > 1e-9 else choice.objective)
    assert max(above) < 0.1
    assert np.mean(above) < 0.01


@pytest.mark.few(1)
@pytest.mark.parametrize("weight", [0.5, 0.8])
def test_twelve_pairs_of_forty_groups_are_within_one_per_cent_of_the_program(weight: float) -> None:
    problem = random_problem(1, 4, 40, weight=weight)
    choice = choose_widths(problem)
    found, proved = milp(problem, seconds=5.0, gap=2e-3)
    assert choice.objective <= 1.01 * found
    assert choice.bound <= found
    assert choice.bound <= proved * 1.01
    assert choice.gap <= 0.01


def test_equal_problems_get_equal_choices_and_floats_can_be_chosen() -> None:
    problem = random_problem(4, 4, 100)
    assert np.array_equal(choose_widths(problem).bits, choose_widths(random_problem(4, 4, 100)).bits)
    exact = replace(problem, widths=(2, 4, 8, 32), weight=1 - 1e-9)
    assert set(choose_widths(exact).bits.tolist()) == {32}
    hasty = choose_widths(replace(problem, weight=1e-9))
    assert hasty.seconds == pytest.approx(scales(problem)[2])  # more bits only where others are slower


def test_one_number_a_row_has_the_fewest_bytes_as_a_float() -> None:
    problem = replace(random_problem(1, 2, 3, columns=1), widths=(2, 4, 8, 32))
    assert set(choose_widths(problem).bits.tolist()) == {32}


def test_wrong_numbers_are_refused() -> None:
    problem = random_problem(1, 2, 3)
    beta = problem.beta.copy()
    beta[1] = np.nan
    with pytest.raises(TightropeError, match="beta of the widths"):
        choose_widths(replace(problem, beta=beta))
    with pytest.raises(TightropeError, match="weight 1"):
        choose_widths(replace(problem, weight=1.0))
