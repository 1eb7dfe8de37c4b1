"""Noise is what the mechanisms say, and the ledger adds up."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tightrope.core import TightropeError
from tightrope_fleet.judge.trees import ledger_problems
from tightrope_fleet.trees.params import Boosting
from tightrope_fleet.trees.private import Privacy, PrivateChoice, Spent, score_of
from tightrope_fleet.trees.rows import share_rows, train_over_rows

PARAMS = Boosting(trees=4, depth=3, bins=8, hessian="one", child_weight=0.0)


def _rows(count=300, seed=0):
    random = np.random.default_rng(seed)
    table = random.random((count, 3)).astype(np.float32)
    return table, (table[:, 0] > 0.5).astype(np.float64)


def _choice(epsilon, **change):
    made = PrivateChoice(Privacy(epsilon, ((0.0, 1.0),), seed=5), dataclasses.replace(PARAMS, **change))
    made.begin_tree()
    return made


def test_leaves_have_laplace_noise_of_the_scale_in_the_ledger():
    choice = _choice(8.0)
    values = choice.worth(np.zeros(20_000), np.zeros(20_000))
    (line,) = choice.ledger
    assert line.scale == pytest.approx(1.0 / 2.0 / (8.0 / 4 / 2))
    assert stats.kstest(values, "laplace", args=(0, line.scale)).pvalue > 0.01


def test_splits_are_drawn_by_the_exponential_mechanism():
    choice = _choice(60.0)
    gain = np.array([0.0, 1.0, 3.0, 2.0])
    picked = choice.choose(np.tile(gain, (40_000, 1)))
    weights = np.exp(60.0 / 4 / 2 / 3 * gain / (2 * 3.0))
    assert stats.chisquare(np.bincount(picked, minlength=4), 40_000 * weights / weights.sum()).pvalue > 0.01


def test_one_row_changes_a_score_by_no_more_than_the_sensitivity():
    random, most = np.random.default_rng(1), 0.0
    for _ in range(4000):
        size = random.integers(1, 6)
        g, left = random.choice([-1.0, 1.0], size), random.random(size) < 0.5
        most = max(most, abs(score_of(g, left, 0.01) - score_of(g[1:], left[1:], 0.01)))
    assert 1.0 < most <= _choice(1.0).gain_sensitivity


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_ledger_adds_up_and_the_judge_refuses_others(epsilon):
    privacy = Privacy(epsilon, ((0.0, 1.0),))
    choice = PrivateChoice(privacy, PARAMS)
    gain = np.zeros((1, 5))
    for _ in range(PARAMS.trees):
        choice.begin_tree()
        for _ in range(PARAMS.depth):
            choice.choose(gain)
        choice.worth(np.zeros(1), np.zeros(1))
    judged = (epsilon, PARAMS.trees, PARAMS.depth)
    assert ledger_problems(choice.ledger, *judged) == []
    assert sum(line.epsilon for line in choice.ledger) == pytest.approx(epsilon)
    assert ledger_problems(choice.ledger[1:], *judged)
    assert ledger_problems([*choice.ledger, choice.ledger[0]], *judged)
    cheaper = [Spent(line.tree, line.what, line.epsilon * 2, line.scale) for line in choice.ledger]
    assert ledger_problems(cheaper, *judged)


def test_infinite_epsilon_is_the_forest_without_noise_and_seeds_repeat():
    rows = share_rows(*_rows(), 2)
    endless = train_over_rows(rows, PARAMS, privacy=Privacy(np.inf, ((0.0, 1.0),)))[0]
    chosen = train_over_rows(rows, PARAMS, privacy=Privacy(np.inf, ((0.0, 1.0),), seed=9))[0]
    assert endless.hash == chosen.hash
    one, again, other = (
        train_over_rows(rows, PARAMS, privacy=Privacy(2.0, ((0.0, 1.0),), seed=seed))[0].hash
        for seed in (1, 1, 2)
    )
    assert one == again != other


def test_what_is_not_private_is_refused():
    for change in ({"leaves": 4}, {"hessian": "exact"}, {"child_weight": 1.0}):
        with pytest.raises(TightropeError, match="differential privacy holds for"):
            _choice(1.0, **change)
    with pytest.raises(TightropeError, match="epsilon=0"):
        Privacy(0, ((0.0, 1.0),))
    with pytest.raises(TightropeError, match="public range"):
        Privacy(1.0, ())
