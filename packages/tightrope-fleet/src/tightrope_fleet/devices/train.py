"""What rounds learn: real training of a small net on the data of the devices whose results came.

Staleness t weighs a result by 1 / sqrt(1 + t), as in FedBuff; with none that is the weighted mean of FedAvg.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tightrope.core.errors import TightropeError
from tightrope.core.units import Bytes
from tightrope_fleet.devices.learning import ClientPool, NetShape, gather, train_clients, wrong_answers
from tightrope_fleet.devices.rounds import DoneTask
from tightrope_fleet.secure import agree, from_words, to_words


@dataclass(slots=True)
class FederatedTraining:
    """A net, its versions, and what was spent on them; call it with the results of a step.

    Attributes:
        shape: of the net.
        pool: samples of the devices.
        test: inputs and labels to try it on.
        samples: of one task at most.
        rate: of the devices' SGD.
        decay: of that rate, per version.
        server_rate: of the server's step; 1 with ``momentum`` 0 is FedAvg's mean.
        momentum: of the server.
        secure: add results behind masks, and recover from parties that go.
        every: steps between trials.
        seed: of weights and draws.
        errors: share of wrong answers by version.
        trained: samples that devices were trained on.
        sent: bytes of the results that were added.
    """

    shape: NetShape
    pool: ClientPool
    test: tuple[torch.Tensor, torch.Tensor]
    samples: int
    rate: float = 0.05
    decay: float = 1.0
    server_rate: float = 1.0
    momentum: float = 0.0
    secure: bool = False
    every: int = 1
    seed: int = 0
    errors: dict[int, float] = field(default_factory=dict)
    trained: int = 0
    sent: Bytes = 0
    _versions: dict[int, torch.Tensor] = field(init=False)
    _speed: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._versions = {0: self.shape.begin(self.seed)}
        self._speed = torch.zeros(self.shape.size)

    @property
    def weights(self) -> torch.Tensor:
        """The latest version."""
        return self._versions[max(self._versions)]

    def __call__(self, results: Sequence[DoneTask], version: int) -> None:
        """Train the devices of a step from the versions that they began with, and make the next one."""
        base = torch.stack([self._versions[task.version] for task in results])
        data = gather(
            self.pool, [task.device for task in results], self.samples, self.seed * 100_003 + version
        )
        pace = self.rate * self.decay**version
        after = train_clients(self.shape, base, data, torch.full((len(results),), pace))
        counts = data[2].sum(1)
        self.trained += int(counts.sum())
        self.sent += after.element_size() * after.numel()
        stale = torch.tensor([version - 1 - task.version for task in results], dtype=torch.float32)
        weight = counts / counts.sum() / torch.sqrt(1 + stale)
        change = mean_of_updates(after - base, weight, secure=self.secure)
        self._speed = self.momentum * self._speed + change
        made = self.weights + self.server_rate * self._speed
        if not torch.isfinite(made).all():
            raise TightropeError(f"step {version}: weights are no longer finite; lower the rates.")
        self._versions[version] = made
        self._versions.pop(version - 64, None)
        if version % self.every == 0:
            self.errors[version] = self.error()

    def error(self) -> float:
        """Share of wrong answers now."""
        return float(wrong_answers(self.shape, self.weights.unsqueeze(0), *self.test).float().mean())

    def averaged_error(self, num: int = 20) -> float:
        """Share of wrong answers of the mean of the last versions, which is what one would ship."""
        last = torch.stack([self._versions[version] for version in sorted(self._versions)[-num:]])
        return float(wrong_answers(self.shape, last.mean(0, keepdim=True), *self.test).float().mean())


def mean_of_updates(updates: torch.Tensor, weight: torch.Tensor, *, secure: bool = False) -> torch.Tensor:
    """Add weighted updates, ``[devices, size]``; with ``secure`` in fixed point behind pairwise masks.

    >>> mean_of_updates(torch.tensor([[1.0], [3.0]]), torch.tensor([0.5, 0.5])).tolist()
    [2.0]
    """
    scaled = updates * weight.unsqueeze(1)
    if not secure or len(updates) < 2:
        return scaled.sum(0)
    group = agree([f"device{d}" for d in range(len(updates))], recover=True)
    sent = {
        m.name: m.mask(to_words(one.double().numpy())) for m, one in zip(group.members, scaled, strict=True)
    }
    return torch.from_numpy(from_words(group.total(sent))).float()


def train_central(
    shape: NetShape,
    pool: ClientPool,
    test: tuple[torch.Tensor, torch.Tensor],
    *,
    epochs: int,
    rate: float,
    seed: int = 0,
) -> float:
    """Train the same net in one place; return its share of wrong answers, the least over epochs."""
    whole = torch.cat([torch.from_numpy(part) for part in pool.parts]).numpy()
    one = ClientPool(pool.inputs, pool.labels, (whole,), pool.classes)
    weights, best = shape.begin(seed).unsqueeze(0), 1.0
    for epoch in range(epochs):
        data = gather(one, [0], len(whole), seed + epoch)
        pace = torch.tensor([rate * 0.9**epoch])
        weights = train_clients(shape, weights, data, pace, batch=64)
        best = min(best, float(wrong_answers(shape, weights, *test).float().mean()))
    return best
