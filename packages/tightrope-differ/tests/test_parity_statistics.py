"""The tests against definitions: all outcomes counted, and Holm by its steps."""

from itertools import product

import pytest

from tightrope_differ.parity.statistics import holm, mcnemar


@pytest.mark.parametrize(("a", "b"), [(a, b) for a in range(6) for b in range(6)])
def test_mcnemar_counts_outcomes_as_far_from_even(a: int, b: int) -> None:
    far = abs(a - b)
    outcomes = [abs(2 * sum(coins) - (a + b)) for coins in product((0, 1), repeat=a + b)]
    assert mcnemar(a, b) == pytest.approx(sum(one >= far for one in outcomes) / len(outcomes))


def test_mcnemar_takes_many_pairs() -> None:
    assert 0 < mcnemar(5000, 4000) < 1e-20
    assert mcnemar(20_000, 0) == 0.0 == mcnemar(0, 20_000)


def test_holm_stops_at_the_first_that_does_not_hold() -> None:
    assert holm([]) == []
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.9]) == [1.0, 1.0]


def test_holm_keeps_false_flags_below_its_level() -> None:
    import random

    rng = random.Random(0)
    rounds = [min(holm([rng.random() for _ in range(20)])) < 0.05 for _ in range(2000)]
    assert sum(rounds) / len(rounds) < 0.06
