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
from typing import Final

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from tightrope.core import Nanoseconds, TightropeError
from tightrope.native.processor import described
from tightrope_assign.tables.problem import TablePricer, shard_base
from tightrope_assign.values.costs import CONSTANTS, ExchangeCost, TableCosts
from tightrope_assign.values.tables import NUM_FEATURES, TableSet, shard_features, touched_rows

_UNITS, _KINDS, _BENDS = 64, 16, 16
_EPOCHS: Final = 250
_BATCH: Final = 128
_HELD_OUT: Final = 6
"""Every sixth set is left out of the fit."""
FEWEST: Final = 60

Measured = Sequence[tuple[TableSet, Nanoseconds]]


class SetPrice(nn.Module):
    """The formula of `tightrope_assign.values.costs`, in ms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(NUM_FEATURES, _UNITS), nn.Linear(_UNITS, _KINDS)
        nn.init.constant_(self.second.bias, 1.0)
        self.slope = nn.Parameter(torch.full((_KINDS,), -2.0))
        self.into, self.out = (
            nn.Parameter(torch.randn(_BENDS, _KINDS) - 3),
            nn.Parameter(torch.full((_BENDS,), -3.0)),
        )
        self.bend = nn.Parameter(-torch.rand(_BENDS) * 5)
        self.fixed = nn.Parameter(torch.full((2,), -4.0))

    def forward(self, features: Tensor, base: Tensor, widths: Tensor) -> Tensor:
        """Price sets: (sets, shards, features), (sets, shards) ms, (sets,) to (sets,) ms."""
        positive = nn.functional.softplus
        kinds = torch.relu(self.second(torch.relu(self.first(features)))) * base[..., None]
        z = kinds.sum(1)
        bends = torch.relu(z @ positive(self.into).T + self.bend)
        level, per_width = positive(self.fixed)
        found: Tensor = level + per_width * widths + z @ positive(self.slope) + bends @ positive(self.out)
        return found


def fit_costs(
    measured: Measured, *, forward: ExchangeCost = CONSTANTS.forward,
    backward: ExchangeCost = CONSTANTS.backward,
    waits: float = 1.0, exchange_error: float = 0.0, seed: int = 0, epochs: int = _EPOCHS,
) -> TableCosts:  # fmt: skip
    """Fit prices to measured sets; every sixth is left out, and says how good they are.

    Raises:
        TightropeError: there are too few sets.
    """
    if len(measured) < FEWEST:
        raise TightropeError(f"{len(measured)} sets are too few to fit prices: measure {FEWEST} or more.")
    torch.manual_seed(seed)
    known = [one for at, one in enumerate(measured) if at % _HELD_OUT]
    base, linear = _rough(known)
    features, prices, widths = _arrays(known, base)
    truth = torch.tensor([taken / 1e6 for _, taken in known]).log()
    net = SetPrice()
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    steps = epochs * -(-len(known) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, total_steps=steps)
    for step in range(steps):
        if step % -(-len(known) // _BATCH) == 0:
            order = torch.randperm(len(known))
        at = order[_BATCH * (step % -(-len(known) // _BATCH)) :][:_BATCH]
        said = net(features[at], prices[at], widths[at]).log()
        loss = nn.functional.smooth_l1_loss(said, truth[at], beta=0.05)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        schedule.step()
    costs = _written(net, base, forward, backward, waits)
    new = [one for at, one in enumerate(measured) if not at % _HELD_OUT]
    error, tau = accuracy(costs, new)
    figures = {"sets": len(measured), "median_error": error, "kendall": tau}
    figures |= {"median_error_linear": accuracy(linear, new)[0], "median_error_exchange": exchange_error}
    return replace(costs, figures={name: round(value, 5) for name, value in figures.items()})


def predict(costs: TableCosts, sets: Sequence[TableSet]) -> NDArray[np.float64]:
    """Price sets of whole tables on one device, in ns."""
    found = []
    for tables in sets:
        pricer = TablePricer(tables, costs)
        z = np.sum([pricer.kinds(at, one.dim) for at, one in enumerate(tables.tables)], axis=0)
        found.append(float(pricer.lookups(z, np.array(len({one.dim for one in tables.tables})))))
    return np.array(found)


def accuracy(costs: TableCosts, measured: Measured) -> tuple[float, float]:
    """Return the median relative error, and Kendall's rank correlation."""
    said, true = (
        predict(costs, [one for one, _ in measured]),
        np.array([taken for _, taken in measured], float),
    )
    pairs = np.triu_indices(len(true), 1)
    sign = np.sign(said[pairs[0]] - said[pairs[1]]) * np.sign(true[pairs[0]] - true[pairs[1]])
    return float(np.median(abs(said / true - 1))), float(sign.mean())


def _rough(measured: Measured) -> tuple[tuple[float, float, float, float], TableCosts]:
    """Fit the linear price, by relative least squares with prices of at least 0."""
    rows = []
    for tables, _ in measured:
        units = np.eye(4)
        parts = [
            sum(shard_base(unit, t, t.dim, tables.batch) for t in tables.tables) for unit in units.tolist()
        ]
        rows.append([*parts, 1.0, float(len({t.dim for t in tables.tables}))])
    true = np.array([taken for _, taken in measured], float)
    x = nonnegative(np.array(rows) / true[:, None], np.ones(len(true)))
    base = (float(x[0]), float(x[1]), float(x[2]), float(x[3]))
    return base, replace(CONSTANTS, base=base, level=float(x[4]), per_width=float(x[5]))


def nonnegative(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares with an answer of at least 0, where ``a`` and ``b`` have no negative numbers."""
    scale = np.maximum(np.linalg.norm(a, axis=0), 1e-300)
    a = a / scale
    x, up, gram = np.ones(a.shape[1]), a.T @ b, a.T @ a
    for _ in range(20_000):  # multiplicative updates: they keep the sign
        x *= up / np.maximum(gram @ x, 1e-300)
    return np.asarray(np.where(x < 1e-9 * x.max(), 0.0, x) / scale)


def _arrays(measured: Measured, base: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    most = max(len(tables.tables) for tables, _ in measured)
    features = torch.zeros(len(measured), most, NUM_FEATURES)
    prices, widths = torch.zeros(len(measured), most), torch.zeros(len(measured))
    for at, (tables, _) in enumerate(measured):
        for number, one in enumerate(tables.tables):
            touched = touched_rows(one.rows, one.skew, tables.batch * one.pooling)
            features[at, number] = torch.tensor(shard_features(one, one.dim, tables.batch, touched))
            prices[at, number] = shard_base(base, one, one.dim, tables.batch) / 1e6
        widths[at] = len({one.dim for one in tables.tables})
    return features, prices, widths


def _written(
    net: SetPrice,
    base: tuple[float, float, float, float],
    forward: ExchangeCost,
    backward: ExchangeCost,
    waits: float,
) -> TableCosts:
    def rows(one: Tensor) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(row) for row in one.detach().double().tolist())

    def row(one: Tensor) -> tuple[float, ...]:
        return tuple(one.detach().double().tolist())

    positive = nn.functional.softplus
    level, per_width = row(1e6 * positive(net.fixed))
    return TableCosts(
        *described(), base, rows(net.first.weight), row(net.first.bias), rows(net.second.weight),
        row(net.second.bias), row(1e6 * positive(net.slope)), rows(positive(net.into)), row(net.bend),
        row(1e6 * positive(net.out)), level, per_width, forward, backward, waits,
    )  # fmt: skip
