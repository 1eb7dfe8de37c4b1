"""Check which columns of which table are where.

Idea        Every column of every table once, in parts that halving gives, on devices with room. Then bytes,
            the price of each device's lookups, both exchanges and the bound are added up anew.
Guarantee   Passes exactly when every table is whole and the plan's figures follow from it. The bound holds
            for all plans whose tables are split by halves: the price is convex, so the slowest of k devices
            costs at least what one k-th of everything costs.
Complexity  O(shards * units * kinds + devices^2).
Gaps        What the planner measured is not measured again. Prices are as good as their file.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightrope.core import JudgeError
from tightrope_assign.judge.items import check_bytes, check_devices, check_figure, check_names
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.costs import TableCosts, link_prices
from tightrope_assign.values.tables import (
    EmbeddingTable,
    TablePlan,
    TableSet,
    by_device,
    halves,
    shard_bytes,
    shard_features,
    touched_rows,
)


def check_table_plan(
    tables: TableSet,
    cluster: Cluster,
    costs: TableCosts,
    plan: TablePlan,
    *,
    replaces: TablePlan | None = None,
) -> None:
    """Refuse a plan that is wrong.

    Args:
        tables: what is placed.
        cluster: the devices.
        costs: the prices.
        plan: where every column is.
        replaces: the plan before, where bytes that move are counted.

    Raises:
        JudgeError: names the shard, the device or the figure.
    """
    named = {table.name: table for table in tables.tables}
    parts: dict[str, list[tuple[int, int]]] = {}
    for shard in plan.placed:
        parts.setdefault(shard.table, []).append((shard.start, shard.stop))
    check_names(named, parts, "table")
    check_devices(cluster, ((shard.label, shard.device) for shard in plan.placed), "shard")
    for table in tables.tables:
        _check_columns(table, sorted(parts[table.name]))
    held = {
        name: sum(shard_bytes(tables, named[s.table], s.stop - s.start) for s in mine)
        for name, mine in by_device(cluster, plan.placed).items()
    }
    check_bytes(cluster, held)
    check_figure("costs", plan.costs, costs.label)
    prices = _Repriced(tables, costs)
    _check_near("cost", plan.cost, _cost(cluster, prices, plan))
    _check_near("lower_bound", plan.lower_bound, _bound(cluster, prices))
    if plan.cost + _slack(plan.cost) < plan.lower_bound:
        raise JudgeError(f"cost {plan.cost} is below the bound {plan.lower_bound}.")
    if any(value < 1 for value in plan.measured) or len(plan.measured) not in (0, 2):
        raise JudgeError(f"the plan has measured {list(plan.measured)}: two times above 0 ns, or none.")
    if replaces is not None:
        before = {(s.table, s.start, s.stop, s.device) for s in replaces.placed}
        moved = sum(
            shard_bytes(tables, named[s.table], s.stop - s.start)
            for s in plan.placed
            if (s.table, s.start, s.stop, s.device) not in before
        )
        check_figure("moved_bytes", plan.moved_bytes, moved)


def _slack(value: float) -> float:
    return 2 + 1e-9 * value


def _check_near(name: str, said: int, found: float) -> None:
    """Refuse a figure that is off by more than rounding."""
    if not abs(said - found) <= _slack(found):
        raise JudgeError(f"the plan says {name} {said}; what follows from it is {found:.0f}.")


def _check_columns(table: EmbeddingTable, parts: Sequence[tuple[int, int]]) -> None:
    at = 0
    for start, stop in parts:
        if start != at or stop <= start:
            raise JudgeError(
                f"table {table.name!r:.60}: columns [{start}:{stop}] follow [..:{at}]: each column once."
            )
        at = stop
    if at != table.dim:
        raise JudgeError(f"table {table.name!r:.60} has {table.dim} columns; {at} are placed.")
    widths = [table.dim]
    while halves(0, widths[-1]):
        widths.append(widths[-1] // 2)
    for start, stop in parts:
        if stop - start not in widths or start % (stop - start):
            raise JudgeError(f"table {table.name!r:.60}: columns [{start}:{stop}] are no result of halving.")


class _Repriced:
    """What the judge derives from tables and prices."""

    def __init__(self, tables: TableSet, costs: TableCosts) -> None:
        self.tables, self.costs = tables, costs
        self.named = {table.name: table for table in tables.tables}
        self.known: dict[tuple[str, int], NDArray[np.float64]] = {}
        self.touched = {
            table.name: touched_rows(table.rows, table.skew, tables.batch * table.pooling)
            for table in tables.tables
        }
        self.layers = [np.array(one, np.float64) for one in (costs.first, costs.second, costs.into)]

    def kinds(self, name: str, columns: int) -> NDArray[np.float64]:
        """Price one shard in kinds, (kinds,)."""
        if (name, columns) not in self.known:
            table, batch, costs = self.named[name], self.tables.batch, self.costs
            lookups = batch * table.pooling
            features = shard_features(table, columns, batch, self.touched[name])
            inner = np.maximum(self.layers[0] @ np.array(features) + costs.first_bias, 0)
            outer = np.maximum(self.layers[1] @ inner + costs.second_bias, 0)
            parts = (1, batch, lookups, lookups * columns)
            base = sum(price * part for price, part in zip(costs.base, parts, strict=True))
            self.known[name, columns] = outer * base / 1e6
        return self.known[name, columns]

    def device(self, z: NDArray[np.float64], widths: int) -> float:
        """Price a device with any shard, in ns at the usual rate."""
        costs = self.costs
        bends = np.maximum(self.layers[2] @ z + costs.bend, 0)
        return float(costs.per_width * widths + costs.level + z @ costs.slope + bends @ costs.out)

    def cheapest(self, name: str, columns: int) -> NDArray[np.float64]:
        """Take, kind by kind, the smallest price that columns cost in any parts: halves cost alike."""
        whole = self.kinds(name, columns)
        return np.minimum(whole, 2 * self.cheapest(name, columns // 2)) if halves(0, columns) else whole


def _exchanges(cluster: Cluster, prices: _Repriced) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    ways = (prices.costs.forward, prices.costs.backward)
    return [
        (np.array(latency), 4 * prices.tables.batch / len(latency) * np.array(per_byte))
        for latency, per_byte in (link_prices(cluster, way) for way in ways)
    ]


def _cost(cluster: Cluster, prices: _Repriced, plan: TablePlan) -> float:
    shards = by_device(cluster, plan.placed)
    slowest = 0.0
    for device in cluster.devices:
        if mine := shards[device.name]:
            z = np.sum([prices.kinds(s.table, s.stop - s.start) for s in mine], axis=0)
            widths = len({s.stop - s.start for s in mine})
            slowest = max(slowest, prices.device(z, widths) * 1e9 / device.rate)
    columns = [sum(s.stop - s.start for s in shards[name]) for name in cluster.names]
    total = math.ceil(slowest)
    for latency, per_column in _exchanges(cluster, prices):
        total += math.ceil(
            max(
                float(latency[d].sum() + per_column[d].sum() * columns[d] + per_column[d] @ np.array(columns))
                for d in range(len(columns))
            )
        )
    return total


def _bound(cluster: Cluster, prices: _Repriced) -> float:
    tables = prices.tables.tables
    least = np.sum([prices.cheapest(table.name, table.dim) for table in tables], axis=0)
    rates = sorted((device.rate / 1e9 for device in cluster.devices), reverse=True)
    lookup = min(
        count * prices.device(least / count, 1) / sum(rates[:count]) for count in range(1, len(rates) + 1)
    )
    columns, num, total = sum(table.dim for table in tables), len(rates), math.floor(lookup)
    for latency, per_column in _exchanges(cluster, prices):
        ends = per_column.sum(0) + per_column.sum(1)
        total += math.floor((latency.sum() + float(ends.min()) * columns) / num)
    return total
