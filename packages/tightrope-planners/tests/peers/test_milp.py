"""The thin layer over HiGHS."""

import math

import pytest

from tightrope.core import TightropeError
from tightrope_planners.peers.milp import MixedIntegerProgram


def knapsack() -> MixedIntegerProgram:
    program = MixedIntegerProgram()
    columns = [program.column(-value, upper=1, integer=True) for value in (6, 5, 3)]
    program.row(zip(columns, (3, 2, 2), strict=True), upper=4)
    return program


def test_it_finds_the_best_integer_point() -> None:
    answer = knapsack().solve()
    assert answer.status == "optimal"
    assert answer.values == pytest.approx((0, 1, 1))
    assert answer.objective == answer.bound == pytest.approx(-8)


def test_the_relaxation_is_a_bound() -> None:
    answer = knapsack().solve(relax=True)
    assert answer.bound == answer.objective == pytest.approx(-9)


def test_it_says_infeasible() -> None:
    program = knapsack()
    program.row([(0, 1.0)], lower=2)
    assert program.solve().status == "infeasible"
    assert program.solve().values == ()
    assert program.solve().bound == math.inf


def test_a_start_is_no_worse_than_what_it_gives() -> None:
    assert knapsack().solve(start=(1, 0, 0), nodes=0).objective <= -6


def test_a_number_that_is_none_is_refused() -> None:
    program = MixedIntegerProgram()
    program.row([(program.column(), math.inf)], upper=1)
    with pytest.raises(TightropeError, match="HiGHS refused"):
        program.solve()
