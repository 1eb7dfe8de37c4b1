"""What makes federated evaluation noisy: few clients, clients that can answer, and differential privacy.

Source      On Noisy Evaluation in Federated Hyperparameter Tuning (MLSys 2023), its protocol.
Guarantee   Scales of Laplace noise are exactly those of the protocol; sampling without bias is unbiased.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightrope.core.errors import TightropeError
from tightrope.core.units import shown

Errors = NDArray[np.float64]
ELIMINATIONS = 11
"""Rounds of elimination of Hyperband with eta 3 and 81 units (T of the protocol)."""


def release_scale(releases: int, clients: int, epsilon: float) -> float:
    """Laplace scale of one of N ``releases`` of means over n ``clients``: N / (n epsilon).

    >>> release_scale(16, 100, 10.0)
    0.016
    """
    return 0.0 if math.isinf(epsilon) else releases / (clients * epsilon)


def elimination_scale(
    survivors: int, clients: int, epsilon: float, eliminations: int = ELIMINATIONS
) -> float:
    """Laplace scale of a one-shot choice of the best ``survivors``: 2 T k / (n epsilon).

    >>> elimination_scale(10, 100, 10.0)
    0.22
    """
    return 0.0 if math.isinf(epsilon) else 2 * eliminations * survivors / (clients * epsilon)


@dataclass(frozen=True, slots=True)
class TuningLog:
    """Configurations that were trained once, and the error of every client at every rung.

    Attributes:
        knobs: ``[configurations, knobs]``, each from 0 to 1.
        rounds: training rounds of every rung.
        errors: ``[configurations, rungs, clients]``.
        weights: samples of every client.
    """

    knobs: Errors
    rounds: tuple[int, ...]
    errors: Errors
    weights: Errors

    @property
    def truth(self) -> Errors:
        """Error over all samples, ``[configurations, rungs]``."""
        return np.asarray(self.errors @ (self.weights / self.weights.sum()))


@dataclass(slots=True)
class NoisyOracle:
    """Evaluates configurations of a log with noise.

    Attributes:
        log: what is known in truth.
        clients: how many are asked per evaluation.
        epsilon: privacy of the whole tuning; infinity = none.
        bias: clients with small errors answer more often: chance ``(1.0001 - error) ^ bias``.
        seed: of everything drawn.
    """

    log: TuningLog
    clients: int
    epsilon: float = math.inf
    bias: float = 0.0
    seed: int = 0
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.clients <= len(self.log.weights):
            raise TightropeError(f"clients={shown(self.clients)}: give 1 to {len(self.log.weights)}.")
        if not self.epsilon > 0 or self.bias < 0:
            raise TightropeError(
                f"epsilon={shown(self.epsilon)}, bias={shown(self.bias)}: above 0, and 0 or more."
            )
        self.random = np.random.default_rng(self.seed)

    def look(self, configuration: int, rung: int, scale: float = 0.0) -> float:
        """Mean error of some clients, with Laplace noise of a scale, within [0, 1]."""
        errors = self.log.errors[configuration, rung]
        chance = (1.0001 - errors) ** self.bias
        chosen = self.random.choice(len(errors), self.clients, replace=False, p=chance / chance.sum())
        weights = self.log.weights[chosen] if math.isinf(self.epsilon) else np.ones(len(chosen))
        value = float(errors[chosen] @ weights / weights.sum())
        return min(max(value + (self.random.laplace(0.0, scale) if scale else 0.0), 0.0), 1.0)

    def spread(self, scale: float) -> float:
        """Standard deviation to expect of a look: clients differ by about 0.25."""
        return math.hypot(
            0.25 / math.sqrt(self.clients) if self.clients < len(self.log.weights) else 0.0, 1.414 * scale
        )
