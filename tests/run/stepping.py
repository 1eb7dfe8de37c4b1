"""Training runs by hand and as planned steps, and what must be equal between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tightrope.core import InfeasibleError
from tightrope.lower import lowered
from tightrope.run.step import TrainingStep, step

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[Tensor, ...]
SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@dataclass
class Run:
    """A training run and what it left."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    losses: list[float]
    random_state: Tensor
    step: TrainingStep | None = None


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8),
    )  # fmt: skip


class Layouts(nn.Module):
    """Gradients that autograd would hand over as copies: expanded, shared, transposed, cut out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.wide = nn.Parameter(torch.randn(6, 4))
        self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.turned = nn.Parameter(torch.randn(4, 5).t())
        self.left, self.right = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x + (self.first + self.second))
        z = y @ self.turned.t() @ torch.cat([self.left, self.right]).t()
        return z.square().mean() + self.wide.sum()


def batches(num: int = 5, size: int = 128) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 16, generator=generator), torch.randint(8, (size,), generator=generator))
        for _ in range(num)
    ]


def loss_of(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: nn.functional.cross_entropy(model(x), y)


def eager(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    data: list[Batch],
    optimizer: torch.optim.Optimizer | None,
    after: Callable[[], Any] = lambda: None,
) -> Run:
    torch.manual_seed(7)
    losses = []
    for batch in data:
        loss = loss_fn(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        after()
        losses.append(loss.item())
    return Run(model, optimizer, losses, torch.get_rng_state())


def planned(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    data: list[Batch],
    optimizer: torch.optim.Optimizer | None,
    after: Callable[[], Any] = lambda: None,
    *,
    budget: str | int = "64MiB",
    **options: Any,
) -> Run:
    train = step(loss_fn, budget=budget, model=model, optimizer=optimizer, **options)
    torch.manual_seed(7)
    losses = []
    for batch in data:
        losses.append(train(*batch).item())
        after()
    return Run(model, optimizer, losses, torch.get_rng_state(), train)


def smallest_budget(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    batch: Batch,
    make: Make | None = None,
    **options: Any,
) -> int:
    """What the refusal of a tiny budget names."""
    optimizer = make(trainable(model)) if make is not None else None
    with pytest.raises(InfeasibleError) as refused:
        step(loss_fn, budget=64, model=model, optimizer=optimizer, **options)(*batch)
    assert refused.value.smallest_found is not None
    return refused.value.smallest_found


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def assert_same(one: Run, two: Run) -> None:
    assert one.losses == two.losses
    left, right = one.model.state_dict(), two.model.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    for (name, a), b in zip(one.model.named_parameters(), two.model.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or (b.grad is not None and torch.equal(a.grad, b.grad)), name
        assert a.grad is None or (b.grad is not None and a.grad.stride() == b.grad.stride()), name
    assert torch.equal(one.random_state, two.random_state)
    if one.optimizer is not None and two.optimizer is not None:
        assert_same_state(one.optimizer, two.optimizer)


def assert_same_state(one: torch.optim.Optimizer, two: torch.optim.Optimizer) -> None:
    left, right = one.state_dict(), two.state_dict()
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys()
    for key, state in left["state"].items():
        assert state.keys() == right["state"][key].keys()
        for name, value in state.items():
            assert torch.equal(value, right["state"][key][name]), name


def assert_kept(run: Run) -> None:
    """Every executable was judged as it runs and checked in its first run, ran as forecast, within budget."""
    assert run.step is not None
    report = run.step.report()
    assert report.divergences == 0
    assert report.observed_peak == report.forecast_peak
    assert report.observed_total <= report.budget
    for whole in run.step.wholes:
        calls = whole.calls
        assert calls.num_divergences == 0
        for unit in calls.units.values():
            assert unit.prepared is not None
            assert lowered(unit.graph, unit.prepared.plan).executable == unit.prepared.executable
            assert all(proof.judged for proof in unit.proofs)
            assert all(proof.checked for proof in unit.proofs) or calls.settings.verify is None


def two_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    half = len(parameters) // 2
    groups: list[dict[str, Any]] = [
        {"params": parameters[:half], "lr": 0.3, "weight_decay": 0.0},
        {"params": parameters[half:]},
    ]
    return SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.1, foreach=False)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: SGD(p, lr=0.1, foreach=False),
    "sgd_decay": lambda p: SGD(p, lr=0.1, weight_decay=0.01, maximize=True, foreach=False),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01, foreach=False),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
    "adam": lambda p: Adam(p, lr=0.01, foreach=False),
    "adam_l2": lambda p: Adam(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, maximize=True, foreach=False),
    "amsgrad": lambda p: Adam(p, lr=0.01, eps=1e-6, amsgrad=True, foreach=False),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, foreach=False),
    "two_groups": two_groups,
}
