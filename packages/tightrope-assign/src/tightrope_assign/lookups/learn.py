"""Fit the price of a set of shards to measurements.

Idea        A rough price per shard, linear in what it looks up, is corrected by a small network of the
            shard's features, in several kinds; kinds are summed over the set; a convex, growing function of
            the sums and of the number of widths is the price.
Source      NeuroShard, MLSys 2023: sums of embedded tables, then a head. Convexity is ours: it gives a bound.
Guarantee   Equal seeds give equal prices on one machine.
Complexity  About 25 s of one core for 3,000 sets.
Gaps        Sets far from those measured, such as larger batches, are priced by the rough price's growth.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from tightrope.core import TightropeError
from tightrope.native.processor import described
from tightrope_assign.lookups.bench import MeasuredSet
from tightrope_assign.tables.problem import TableProblem
from tightrope_assign.values.cluster import Cluster, PlaceDevice
from tightrope_assign.values.costs import CONSTANTS, ExchangeCost, TableCosts
from tightrope_assign.values.tables import NUM_FEATURES, TableSet, shard_features, touched_rows

_UNITS, _KINDS, _BENDS = 64, 16, 16
_EPOCHS: Final = 250
_BATCH: Final = 128
_HELD_OUT: Final = 6
"""Every sixth set is left out of the fit."""
FEWEST: Final = 60
Base = tuple[float, float, float, float]


class SetPrice(nn.Module):
    """The formula of `tightrope_assign.values.costs`, in ms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(NUM_FEATURES, _UNITS), nn.Linear(_UNITS, _KINDS)
        nn.init.constant_(self.second.bias, 1.0)
        self.into, self.bend = (
            nn.Parameter(torch.randn(_BENDS, _KINDS) - 3),
            nn.Parameter(-5 * torch.rand(_BENDS)),
        )
        self.slope, self.out, self.fixed = (
            nn.Parameter(torch.full((num,), low)) for num, low in ((_KINDS, -2.0), (_BENDS, -3.0), (2, -4.0))
        )

    def forward(self, features: Tensor, base: Tensor, widths: Tensor) -> Tensor:
        """Price sets: (sets, shards, features), (sets, shards) ms, (sets,) to (sets,) ms."""
        z = (torch.relu(self.second(torch.relu(self.first(features)))) * base[..., None]).sum(1)
        level, per_width = softplus(self.fixed)
        bends = torch.relu(z @ softplus(self.into).T + self.bend) @ softplus(self.out)
        found: Tensor = level + per_width * widths + z @ softplus(self.slope) + bends
        return found

    def costs(self, base: Base) -> TableCosts:
        """Write the prices in ns."""
        slope, out, fixed = (1e6 * softplus(one) for one in (self.slope, self.out, self.fixed))
        layers = (self.first.weight, self.first.bias, self.second.weight, self.second.bias, slope)
        parts: Any = [one.double().tolist() for one in (*layers, softplus(self.into), self.bend, out, *fixed)]
        values = (*described(), base, *parts)
        return msgspec.convert(dict(zip(TableCosts.__struct_fields__, values, strict=False)), TableCosts)


def fit_costs(
    measured: Sequence[MeasuredSet],
    *,
    forward: ExchangeCost = CONSTANTS.forward,
    backward: ExchangeCost = CONSTANTS.backward,
    exchange_error: float = 0.0,
    seed: int = 0,
    epochs: int = _EPOCHS,
) -> TableCosts:
    """Fit prices to measured sets; every sixth is left out, and says how good they are.

    Raises:
        TightropeError: there are too few sets.
    """
    if len(measured) < FEWEST:
        raise TightropeError(f"{len(measured)} sets are too few to fit prices: measure {FEWEST} or more.")
    torch.manual_seed(seed)
    known, new = [one for at, one in enumerate(measured) if at % _HELD_OUT], measured[::_HELD_OUT]
    true, (features, units, widths) = np.array([one.ns for one in known], float), _arrays(known)
    rows = np.column_stack([units.double().sum(1), np.ones(len(known)), widths]) / true[:, None]
    *base, level, per_width = nonnegative(rows, np.ones(len(known))).tolist()
    linear = replace(CONSTANTS, base=tuple(base), level=level, per_width=per_width)
    given, truth = (
        (features, units @ torch.tensor(base) / 1e6, widths),
        torch.tensor(true / 1e6).log().float(),
    )
    net, steps = SetPrice(), -(-len(known) // _BATCH)
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, total_steps=epochs * steps)
    for _ in range(epochs):
        for at in torch.split(torch.randperm(len(known)), _BATCH):
            said = net(*(one[at] for one in given)).log()
            adam.zero_grad()
            nn.functional.smooth_l1_loss(said, truth[at], beta=0.05).backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
    costs = replace(net.costs(linear.base), forward=forward, backward=backward)
    error, tau = accuracy(costs, new)
    figures = {"sets": len(measured), "median_error": error, "kendall": tau}
    figures |= {"median_error_linear": accuracy(linear, new)[0], "median_error_exchange": exchange_error}
    return replace(costs, figures={name: round(value, 5) for name, value in figures.items()})


def predict(costs: TableCosts, sets: Sequence[TableSet]) -> NDArray[np.float64]:
    """Price sets of whole tables on one device, in ns."""
    one, found = Cluster((PlaceDevice("one"),)), []
    for tables in sets:
        parts = [(at, 0, table.dim) for at, table in enumerate(tables.tables)]
        found.append(TableProblem(tables, one, costs).loads(parts, [0] * len(parts))[0][0])
    return np.array(found)


def accuracy(costs: TableCosts, measured: Sequence[MeasuredSet]) -> tuple[float, float]:
    """Return the median relative error, and Kendall's rank correlation."""
    said, true = (
        predict(costs, [one.tables for one in measured]),
        np.array([one.ns for one in measured], float),
    )
    a, b = np.triu_indices(len(true), 1)
    concord = np.sign(said[a] - said[b]) * np.sign(true[a] - true[b])
    return float(np.median(abs(said / true - 1))), float(concord.mean())


def nonnegative(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares with an answer of at least 0, where ``a`` and ``b`` have no negative numbers."""
    scale = np.maximum(np.linalg.norm(a, axis=0), 1e-300)
    a = a / scale
    x, up, gram = np.ones(a.shape[1]), a.T @ b, a.T @ a
    for _ in range(20_000):  # multiplicative updates: they keep the sign
        x *= up / np.maximum(gram @ x, 1e-300)
    return np.asarray(np.where(x < 1e-9 * x.max(), 0.0, x) / scale)


def _arrays(measured: Sequence[MeasuredSet]) -> tuple[Tensor, Tensor, Tensor]:
    """List features of shards, what the linear price of each multiplies, and numbers of widths, by set."""
    most = max(len(one.tables.tables) for one in measured)
    features, units = torch.zeros(len(measured), most, NUM_FEATURES), torch.zeros(len(measured), most, 4)
    for at, one in enumerate(measured):
        for number, table in enumerate(one.tables.tables):
            batch, lookups = one.tables.batch, one.tables.batch * table.pooling
            touched = touched_rows(table.rows, table.skew, lookups)
            features[at, number] = torch.tensor(shard_features(table, table.dim, batch, touched))
            units[at, number] = torch.tensor((1, batch, lookups, lookups * table.dim))
    widths = [float(len({table.dim for table in one.tables.tables})) for one in measured]
    return features, units, torch.tensor(widths)
