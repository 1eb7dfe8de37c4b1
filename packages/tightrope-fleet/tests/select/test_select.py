"""The selector finds the best with few looks; noise has its scales; methods keep to their budgets."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fleet.two_forms import by_contest, by_selector, measure, two_forms
from tightrope.core import TightropeError
from tightrope.run.execute.contest import STEPS
from tightrope_fleet.select import Selector, shrink
from tightrope_fleet.select.methods import hyperband, proxy_search, random_search, select_configuration
from tightrope_fleet.select.noise import NoisyOracle, TuningLog, elimination_scale, release_scale


def _run(selector, truth, noise, random):
    while (one := selector.ask()) is not None:
        selector.tell(one, truth[one] * float(random.choice(noise)))
    return selector.choose()


def test_it_finds_a_plan_within_two_percent_with_few_timings():
    random = np.random.default_rng(3)
    noise = np.concatenate([np.exp(random.normal(0, 0.03, 970)), np.full(30, 20.0)])
    right = looks = 0.0
    for _ in range(150):
        truth = 10 * np.exp(random.normal(0, 0.1, 12))
        prior = (truth * np.exp(random.normal(0, 0.05, 12))).tolist()
        found = _run(
            Selector(12, prior=prior, prior_sd=0.05, noise_sd=0.03, logs=True, max_looks=200),
            truth,
            noise,
            random,
        )
        right += truth[found.candidate] <= 1.02 * truth.min()
        looks += found.looks
    assert right / 150 >= 0.88
    assert looks / 150 <= 12


@pytest.mark.parametrize("num", [4, 8, 24])
@pytest.mark.parametrize("noise_sd", [0.005, 0.03])
def test_it_is_as_often_right_as_it_says(num, noise_sd):
    random = np.random.default_rng(num)
    noise = np.exp(random.normal(0, noise_sd, 1000))
    right = said = looks = 0.0
    for _ in range(250):
        truth = 10 * np.exp(random.normal(0, 0.08, num))
        prior = (truth * np.exp(random.normal(0, 0.05, num))).tolist()
        selector = Selector(num, prior=prior, prior_sd=0.05, noise_sd=noise_sd, logs=True, confidence=0.9)
        found = _run(selector, truth, noise, random)
        assert found.confidence >= 0.9
        right += (truth[found.candidate] <= 1.02 * truth.min()) / 250
        said += found.confidence / 250
        looks += found.looks / 250
    assert abs(right - said) <= 0.055  # three standard errors
    assert looks <= (0.5 if num > 4 else 0.75) * num


def test_the_chance_that_somebody_is_better_is_that_of_drawn_values():
    selector = Selector(5, tolerance=0.05, noise_sd=0.3)
    for candidate, value in ((0, 1.0), (1, 1.2), (2, 1.25), (3, 1.6), (4, 1.1), (4, 1.5)):
        selector.tell(candidate, value)
    beliefs = selector.beliefs()
    draws = np.random.default_rng(0).normal([b.mean for b in beliefs], [b.sd for b in beliefs], (200_000, 5))
    truth = float(np.mean(draws[:, 0] - 0.05 <= draws[:, 1:].min(axis=1)))
    assert selector.choose().candidate == 0
    assert selector.choose().confidence == pytest.approx(truth, abs=0.01)


def test_few_predictions_say_little_of_their_own_spread():
    alone = Selector(2, prior=[1.0, 1.1], prior_sd=0.1).beliefs()
    assert [b.mean for b in alone] == pytest.approx([1.0, 1.1])
    many = Selector(40, prior=[1.0, 1.1] * 20, prior_sd=0.1).beliefs()
    assert many[1].mean - many[0].mean < 0.01
    assert many[0].sd < alone[0].sd


def test_without_noise_and_prior_it_is_the_minimum():
    random = np.random.default_rng(0)
    for _ in range(20):
        truth = random.uniform(1, 2, 6)
        found = _run(Selector(6, noise_sd=1e-3, tolerance=1e-4, logs=True), truth, np.ones(1), random)
        assert found.candidate == int(truth.argmin())
        assert found.confidence >= 0.95


def test_a_lucky_draw_does_not_win():
    selector = Selector(2, noise_sd=0.5, tolerance=0.01)
    for value in (1.0, 1.1, 0.9, 1.0, 1.05, 0.95):
        selector.tell(0, value)
    for value in (0.2, 1.5, 1.6, 1.4, 1.5, 1.55):
        selector.tell(1, value)
    assert selector.choose().candidate == 0


def test_it_repeats_and_keeps_to_its_looks():
    runs = [
        _run(Selector(5, noise_sd=1.0, max_looks=9), np.ones(5), np.ones(1), np.random.default_rng(0))
        for _ in "ab"
    ]
    assert runs[0] == runs[1]
    assert runs[0].looks == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Selector(0), "candidates=0"),
        (lambda: Selector(2, prior=[1.0]), "1 predictions for 2 candidates"),
        (lambda: Selector(2, noise_sd=0), "noise_sd=0"),
        (lambda: Selector(2, confidence=1), "confidence=1"),
        (lambda: Selector(2).tell(2, 1.0), "candidate 2: there are 0 to 1"),
        (lambda: Selector(2, logs=True).tell(0, -1.0), "finite positive"),
        (lambda: Selector(2).choose(), "nothing was predicted and nothing measured"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(TightropeError, match=message):
        make()


def test_shrinking_keeps_order_without_a_prior_and_follows_one_with():
    values = [0.1, 0.5, 0.4]
    assert np.argsort(shrink(values, 0.2)).tolist() == np.argsort(values).tolist()
    noisy = shrink([0.5, 0.1, 0.9, 0.4], 10.0, prior=[0.1, 0.2, 0.3, 0.4])
    assert noisy[0] < noisy[-1]


def _log(configurations=60, seed=0):
    random = np.random.default_rng(seed)
    best = random.beta(2, 2, configurations)
    rungs = [np.clip(best + 0.5 / r + random.normal(0, 0.03, configurations), 0, 1) for r in (1, 2, 4, 8, 16)]
    errors = np.clip(np.stack(rungs, 1)[:, :, None] + random.normal(0, 0.1, (configurations, 1, 50)), 0, 1)
    return TuningLog(
        random.random((configurations, 2)), (1, 3, 9, 27, 81), errors, random.integers(1, 9, 50) * 1.0
    )


def test_scales_are_those_of_the_protocol():
    assert release_scale(16, 9, 100.0) == 16 / 900
    assert elimination_scale(10, 1, 10.0) == 2 * 11 * 10 / 10
    assert release_scale(16, 9, math.inf) == elimination_scale(3, 9, math.inf) == 0.0


def test_looks_at_all_clients_are_the_truth_and_bias_lowers_errors():
    log = _log()
    assert NoisyOracle(log, 50).look(3, -1) == pytest.approx(log.truth[3, -1])
    means = [
        np.mean([NoisyOracle(log, 5, bias=b, seed=s).look(3, -1) for s in range(400)]) for b in (0, 1.5, 6)
    ]
    assert means[0] > means[1] > means[2]
    with pytest.raises(TightropeError, match="clients=51"):
        NoisyOracle(log, 51)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 9, 50])
@pytest.mark.parametrize("epsilon", [math.inf, 10.0])
def test_methods_keep_to_their_budgets_and_a_proxy_helps(clients, epsilon):
    log, budget = _log(), 16 * 84.0
    proxy = log.truth[:, -1] + np.random.default_rng(1).normal(0, 0.02, 60)
    for seed in range(3):
        found = [
            select_configuration(NoisyOracle(log, clients, epsilon, seed=seed), budget, prior)
            for prior in (None, proxy)
        ]
        assert all(one.rounds <= budget for one in found)
        assert found == [
            select_configuration(NoisyOracle(log, clients, epsilon, seed=seed), budget, prior)
            for prior in (None, proxy)
        ]
        assert log.truth[found[1].configuration, -1] <= np.quantile(log.truth[:, -1], 0.25)
    assert (
        hyperband(NoisyOracle(log, clients, epsilon)).looks
        > random_search(NoisyOracle(log, clients, epsilon)).looks
    )
    assert proxy_search(NoisyOracle(log, clients, epsilon), proxy).looks == 0


def test_two_forms_are_told_apart_without_noise_in_the_steps_that_the_contest_takes():
    for truth, faster in (((10.0, 10.5), 0), ((10.5, 10.0), 1)):
        assert by_contest(truth, iter([1.0] * STEPS)) == (faster, STEPS)
        for block in (1, 3):
            chosen, steps = by_selector(truth, iter([1.0] * STEPS), block=block)
            assert chosen == faster
            assert steps <= STEPS


def test_one_outlier_per_form_misleads_neither_way():
    late = [1.0] * STEPS
    late[4], late[9] = 20.0, 20.0
    assert by_contest((10.0, 12.0), iter(late))[0] == 0
    assert by_selector((10.0, 12.0), iter(late), block=3)[0] == 0
    assert measure("calm", 0.1, range(4)) == measure("calm", 0.1, range(4))


def test_a_question_of_ours_is_no_missed_bar():
    rows = two_forms(range(2))
    assert all(row.own and not row.missed for row in rows)
    assert replace(rows[0], own=False, held=False).missed
