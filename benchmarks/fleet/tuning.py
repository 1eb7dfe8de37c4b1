"""Train every configuration of a pool once, federated; write down errors at every rung.

Space: server Adam with lr 10^U(-6, -1), beta1 U(0, 0.9), beta2 U(0, 0.999), decay 0.9999 a round; client SGD
with momentum 0.9 and lr 10^U(-6, 0), batch 32, one epoch of at most 160 samples; 10 clients a round, 81
rounds, rungs 1, 3, 9, 27, 81. Published: batches of 32, 64 or 128, 405 rounds, 512 samples.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tightrope_fleet.devices.learning import (
    ClientPool,
    NetShape,
    gather,
    read_fashion,
    share_samples,
    train_clients,
    wrong_answers,
)
from tightrope_fleet.select.noise import TuningLog

ROUNDS = (1, 3, 9, 27, 81)
CONFIGURATIONS = 128


@dataclass(frozen=True, slots=True)
class Federation:
    """Clients that train, and clients that are asked."""

    pool: ClientPool
    asked: ClientPool


def fashion(train: int = 400, asked: int = 100, seed: int = 0) -> Federation:
    x, y = read_fashion()
    xt, yt = read_fashion(kind="t10k")
    return Federation(_pool(x, y, train, seed), _pool(xt, yt, asked, seed + 1))


def digits(train: int = 40, asked: int = 10, seed: int = 0) -> Federation:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = ((x - x.mean()) / x.std()).astype(np.float32)[order], y[order].astype(np.int64)
    return Federation(_pool(x[:1400], y[:1400], train, seed), _pool(x[1400:], y[1400:], asked, seed + 1))


def _pool(x: NDArray[np.float32], y: NDArray[np.int64], clients: int, seed: int) -> ClientPool:
    return ClientPool(torch.from_numpy(x), torch.from_numpy(y), share_samples(y, clients, 0.1, seed), 10)


def make_log(federation: Federation, *, hidden: int = 32, seed: int = 0) -> TuningLog:
    """Train the pool, all configurations at once."""
    knobs = np.random.default_rng(seed).random((CONFIGURATIONS, 4))
    server_rate, client_rate = 10.0 ** (-6 + 5 * knobs[:, 0]), 10.0 ** (-6 + 6 * knobs[:, 3])
    first, second = (
        torch.tensor(k, dtype=torch.float32)[:, None] for k in (0.9 * knobs[:, 1], 0.999 * knobs[:, 2])
    )
    shape = NetShape(federation.pool.inputs.shape[1], hidden, 10)
    weights = shape.begin(seed).repeat(CONFIGURATIONS, 1)
    m, v, errors = torch.zeros_like(weights), torch.zeros_like(weights), []
    rates = torch.tensor(client_rate, dtype=torch.float32)
    pace = torch.tensor(server_rate, dtype=torch.float32)[:, None]
    draws = np.random.default_rng(seed + 1)
    for number in range(1, ROUNDS[-1] + 1):
        clients = draws.choice(len(federation.pool.parts), 10, replace=False).tolist()
        data = gather(federation.pool, clients, 160, seed * 1000 + number)
        counts = data[2].sum(1)
        step = torch.zeros_like(weights)
        for place in range(10):  # a client of all configurations at once: fits into cache
            one = tuple(part[place : place + 1].expand(CONFIGURATIONS, *part.shape[1:]) for part in data)
            after = train_clients(shape, weights, one, rates)  # type: ignore[arg-type]
            step += (after - weights) * (counts[place] / counts.sum())
        step = torch.nan_to_num(step, nan=0.0, posinf=0.0, neginf=0.0)
        m = first * m + (1 - first) * step
        v = second * v + (1 - second) * step**2
        weights = weights + pace * 0.9999**number * m / (v.sqrt() + 1e-3)
        if number in ROUNDS:
            wrong = wrong_answers(shape, weights, federation.asked.inputs, federation.asked.labels)
            errors.append(
                np.stack([wrong[:, part].float().mean(1).numpy() for part in federation.asked.parts], 1)
            )
    sizes = np.array([len(part) for part in federation.asked.parts], np.float64)
    return TuningLog(knobs, ROUNDS, np.stack(errors, 1).astype(np.float64), sizes)
