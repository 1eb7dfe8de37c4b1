"""Ways to tune under noise: random search, Hyperband, one shot by a proxy, and ours.

Idea        Ours plans its looks before it spends any. Under privacy every look makes all others noisier, so
            how many candidates to look at is what expects the least error under the belief (by simulation),
            none included where the proxy is worth more. Without privacy, fresh clients are cheap beside
            training: candidates are halved over rungs by repeated looks, shrunk towards the proxy. The answer
            is the least expectation.
Source      On Noisy Evaluation in Federated Hyperparameter Tuning (MLSys 2023); Li et al., Hyperband (JMLR
            2018).
Guarantee   Repeatable from the seed; never more rounds than the budget. A look costs a thirtieth of a round
            per client: rounds train ten, and answering takes a third of training.
Complexity  Milliseconds beside training.
Gaps        Beliefs of spreads are constants here (0.15 of errors, 0.05 around a proxy), not learnt before
            looking.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope_fleet.select.noise import NoisyOracle, elimination_scale, release_scale
from tightrope_shared.select import shrink

SPREAD: Final = 0.15
AROUND_PROXY: Final = 0.05
_TRIED: Final = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a method chose.

    Attributes:
        configuration: its number.
        rounds: of training that were spent, looks included.
        looks: evaluations.
    """

    configuration: int
    rounds: float
    looks: int


def random_search(oracle: NoisyOracle, trials: int = 16) -> Tuning:
    """Train some, look once, take the least."""
    log, scale = oracle.log, release_scale(trials, oracle.clients, oracle.epsilon)
    chosen = oracle.random.choice(len(log.knobs), trials, replace=len(log.knobs) < trials)
    values = [oracle.look(int(c), -1, scale) for c in chosen]
    return Tuning(
        int(chosen[int(np.argmin(values))]), trials * log.rounds[-1] + trials * _cost(oracle), trials
    )


def hyperband(oracle: NoisyOracle) -> Tuning:
    """Five brackets with eta 3: 81, 34, 15, 8 and 5 configurations from 1, 3, 9, 27 and 81 rounds on.

    Under privacy every rung is a one-shot choice of its survivors, of ten in the last rungs, as published.
    """
    log, spent, looks = oracle.log, 0.0, 0
    best, least = 0, np.inf
    for first, count in enumerate((81, 34, 15, 8, 5)):
        alive = oracle.random.choice(len(log.knobs), count, replace=len(log.knobs) < count)
        for rung in range(first, len(log.rounds)):
            survivors = max(len(alive) // 3, 1)
            scale = elimination_scale(max(survivors, 10), oracle.clients, oracle.epsilon)
            values = np.array([oracle.look(int(c), rung, scale) for c in alive])
            spent += len(alive) * (log.rounds[rung] - (log.rounds[rung - 1] if rung > first else 0))
            spent, looks = spent + len(alive) * _cost(oracle), looks + len(alive)
            if rung == len(log.rounds) - 1:
                if values.min() < least:
                    best, least = int(alive[values.argmin()]), float(values.min())
            else:
                alive = alive[np.argsort(values, kind="stable")[:survivors]]
    return Tuning(best, spent, looks)


def proxy_search(oracle: NoisyOracle, proxy: NDArray[np.float64], trials: int = 16) -> Tuning:
    """Take the best of some by the proxy, without noise, and train that one."""
    chosen = oracle.random.choice(len(proxy), trials, replace=False)
    return Tuning(int(chosen[int(np.argmin(proxy[chosen]))]), float(oracle.log.rounds[-1]), 0)


def select_configuration(
    oracle: NoisyOracle, budget: float, proxy: NDArray[np.float64] | None = None
) -> Tuning:
    """Choose a configuration under noise, within a budget of rounds.

    Args:
        oracle: what answers with noise.
        budget: rounds of training, looks included.
        proxy: error of every configuration on other data; None = nothing is known.
    """
    log = oracle.log
    pool = oracle.random.permutation(len(log.knobs))
    if proxy is not None:
        pool = pool[np.argsort(proxy[pool], kind="stable")]
    if np.isinf(oracle.epsilon):
        return _halving(oracle, budget, pool, proxy)
    most = int(budget // (log.rounds[-1] + _cost(oracle)))
    trials = _worth(oracle, most, None if proxy is None else proxy[pool])
    if trials <= 1:
        return Tuning(int(pool[0]), float(log.rounds[-1]), 0)
    chosen, scale = pool[:trials], release_scale(trials, oracle.clients, oracle.epsilon)
    values = [oracle.look(int(c), -1, scale) for c in chosen]
    kept = _expected(values, oracle.spread(scale), None if proxy is None else proxy[chosen])
    spent = trials * (log.rounds[-1] + _cost(oracle))
    return Tuning(int(chosen[int(np.argmin(kept))]), spent, trials)


def _cost(oracle: NoisyOracle) -> float:
    return oracle.clients / 30


def _expected(values: list[float], noise: float, proxy: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Expected errors after looking, with the proxy as prior."""
    seen = np.array(values)
    if proxy is None:
        return np.array(shrink(values, noise))
    prior = proxy + (seen.mean() - proxy.mean())
    weight = AROUND_PROXY**2 / (AROUND_PROXY**2 + noise**2)
    return np.asarray(prior + weight * (seen - prior))


def _worth(oracle: NoisyOracle, most: int, proxy: NDArray[np.float64] | None) -> int:
    """How many candidates to look at: what expects the least error, by simulation of the belief."""
    random, best, least = np.random.default_rng(oracle.seed), 1, np.inf
    for trials in (one for one in _TRIED if one <= most):
        noise = oracle.spread(release_scale(trials, oracle.clients, oracle.epsilon))
        if proxy is None:
            truth = np.abs(random.normal(0, SPREAD, (2000, trials)))
            seen = np.clip(truth + random.normal(0, noise, truth.shape), -0.3, 1)
        else:
            prior = proxy[:trials]
            truth = prior + random.normal(0, AROUND_PROXY, (2000, trials))
            weight = AROUND_PROXY**2 / (AROUND_PROXY**2 + noise**2)
            seen = prior + weight * (truth + random.normal(0, noise, truth.shape) - prior)
        expected = float(np.take_along_axis(truth, seen.argmin(1)[:, None], 1).mean())
        if expected < least - 1e-4:
            best, least = trials, expected
    return best


def _halving(
    oracle: NoisyOracle, budget: float, pool: NDArray[np.intp], proxy: NDArray[np.float64] | None
) -> Tuning:
    """Halve twice over the last three rungs, each time with repeated looks; decide among the last of both."""
    log, spent, looks, finals = oracle.log, 0.0, 0, []
    every = oracle.clients == len(log.weights)
    for bracket in range(2):
        alive = pool[bracket * 27 : bracket * 27 + 27]
        for rung in (-3, -2, -1):
            before = log.rounds[rung - 1] if rung > -3 else 0
            repeats = 1 if every else int(min(max((log.rounds[rung] - before) / 4 / _cost(oracle), 1), 40))
            noise = oracle.spread(0.0) / np.sqrt(repeats)
            cost = len(alive) * (log.rounds[rung] - before + repeats * _cost(oracle))
            if spent + cost > budget or not len(alive):
                break
            spent, looks = spent + cost, looks + repeats * len(alive)
            values = [float(np.mean([oracle.look(int(c), rung) for _ in range(repeats)])) for c in alive]
            kept = _expected(values, max(noise, 1e-3), None if proxy is None else proxy[alive])
            alive = alive[np.argsort(kept, kind="stable")[: max(len(alive) // 3, 3 if rung < -1 else 1)]]
            if rung == -1:
                finals.append((float(kept.min()), int(alive[0])))
    return Tuning(min(finals)[1] if finals else int(pool[0]), spent, looks)
