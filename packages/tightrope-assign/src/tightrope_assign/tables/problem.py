"""Tables on devices as arrays, which every planner reads; and the price of plans, many at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Bytes, Nanoseconds
from tightrope_assign.values.cluster import LARGEST, Cluster
from tightrope_assign.values.costs import TableCosts, check_costs, link_prices
from tightrope_assign.values.tables import (
    EmbeddingTable,
    TableSet,
    TableShard,
    check_tables,
    halves,
    shard_bytes,
    shard_features,
    touched_rows,
)

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Part: TypeAlias = tuple[int, int, int]
"""Position of a table, and its columns ``[start, stop)``."""


class TablePricer:
    """Prices shards and sets of shards by a cost model; shards of one table and width are priced once."""

    def __init__(self, tables: TableSet, costs: TableCosts) -> None:
        self.tables, self.costs = tables, costs
        self._first, self._second, self._into = (
            np.array(one) for one in (costs.first, costs.second, costs.into)
        )
        self._slope, self._bend, self._out = (np.array(one) for one in (costs.slope, costs.bend, costs.out))
        self._touched = [
            touched_rows(one.rows, one.skew, tables.batch * one.pooling) for one in tables.tables
        ]
        self._known: dict[tuple[int, int], Floats] = {}

    def kinds(self, table: int, columns: int) -> Floats:
        """Embed a shard, (kinds,)."""
        found = self._known.get((table, columns))
        if found is None:
            one, batch, costs = self.tables.tables[table], self.tables.batch, self.costs
            features = shard_features(one, columns, batch, self._touched[table])
            inner = np.maximum(self._first @ np.array(features) + costs.first_bias, 0)
            base = shard_base(costs.base, one, columns, batch)
            found = np.maximum(self._second @ inner + costs.second_bias, 0) * base / 1e6
            self._known[table, columns] = found
        return found

    def lookups(self, z: Floats, widths: Ints) -> Floats:
        """Price sets of shards: z is (..., kinds), widths (...,); ns at the usual rate, 0 without shards."""
        found = z @ self._slope + np.maximum(z @ self._into.T + self._bend, 0) @ self._out
        priced: Floats = np.where(widths > 0, found + self.costs.level + self.costs.per_width * widths, 0.0)
        return priced

    def cheapest(self, table: int, start: int, stop: int) -> Floats:
        """Take, kind by kind, the smallest price that columns cost in any parts."""
        whole = self.kinds(table, stop - start)
        if parts := halves(start, stop):
            return np.minimum(whole, self.cheapest(table, *parts[0]) + self.cheapest(table, *parts[1]))
        return whole


def shard_base(base: Sequence[float], table: EmbeddingTable, columns: int, batch: int) -> float:
    """Price a shard roughly, by what it looks up, in ns."""
    lookups = batch * table.pooling
    return base[0] + base[1] * batch + base[2] * lookups + base[3] * lookups * columns


@dataclass(frozen=True, slots=True)
class TableProblem:
    """Tables, devices and prices by position.

    Attributes:
        tables: where it comes from.
        cluster: likewise.
        pricer: of sets of shards.
        room: bytes per device; 2^53 where there is no limit.
        slow: ns of a device per ns at the usual rate.
        fixed: ns of both exchanges that messages take, (2, devices).
        ends: ns per column of a device and per column of another, (2, devices, devices).
    """

    tables: TableSet
    cluster: Cluster
    pricer: TablePricer
    room: Ints
    slow: Floats
    fixed: Floats
    ends: Floats

    @property
    def num_devices(self) -> int:
        """Devices."""
        return len(self.room)

    def size(self, part: Part) -> Bytes:
        """Bytes of a part."""
        return shard_bytes(self.tables, self.tables.tables[part[0]], part[2] - part[1])

    def single(self, part: Part) -> float:
        """Price a part alone, ns."""
        return float(self.pricer.lookups(self.pricer.kinds(part[0], part[2] - part[1]), np.array(1)))

    def exchanges(self, columns: NDArray[np.number]) -> Floats:
        """Time both exchanges, (..., devices) columns to (..., 2) ns of the slowest device."""
        own = np.einsum("wd,...d->...wd", self.ends.sum(-1), columns)
        other = np.einsum("wde,...e->...wd", self.ends, columns)
        slowest: Floats = (self.fixed + own + other).max(-1)
        return slowest

    def cost(self, parts: Sequence[Part], hosts: Sequence[int]) -> Nanoseconds:
        """Price a plan from nothing, rounded up."""
        lookups, columns = self.loads(parts, hosts)
        return int(np.ceil(lookups.max()) + np.ceil(self.exchanges(columns)).sum())

    def loads(self, parts: Sequence[Part], hosts: Sequence[int]) -> tuple[Floats, Ints]:
        """Price the lookups of every device, and count its columns."""
        lookups, columns = np.zeros(self.num_devices), np.zeros(self.num_devices, np.int64)
        for device in set(hosts):
            mine = [part for part, host in zip(parts, hosts, strict=True) if host == device]
            z = np.sum([self.pricer.kinds(table, b - a) for table, a, b in mine], axis=0)
            widths = np.array(len({b - a for _, a, b in mine}))
            lookups[device] = self.pricer.lookups(z, widths) * self.slow[device]
            columns[device] = sum(b - a for _, a, b in mine)
        return lookups, columns

    def shards(self, parts: Sequence[Part], hosts: Sequence[int]) -> tuple[TableShard, ...]:
        """Write parts with the names of tables and devices."""
        names = self.cluster.names
        return tuple(
            TableShard(self.tables.tables[table].name, a, b, names[host])
            for (table, a, b), host in sorted(zip(parts, hosts, strict=True))
        )


def table_problem(tables: TableSet, cluster: Cluster, costs: TableCosts) -> TableProblem:
    """Check tables, devices and prices, and compile them.

    Raises:
        TightropeError: they cannot be: says which and where.
        InfeasibleError: tables take more bytes than there are.
    """
    check_costs(costs)
    check_tables(tables, cluster)
    links = [link_prices(cluster, way) for way in (costs.forward, costs.backward)]
    return TableProblem(
        tables,
        cluster,
        TablePricer(tables, costs),
        np.array([device.bytes or LARGEST for device in cluster.devices], np.int64),
        np.array([1e9 / device.rate for device in cluster.devices]),
        np.array([latency for latency, _ in links]).sum(-1),
        np.array([per_byte for _, per_byte in links]) * 4 * tables.batch / len(cluster.devices),
    )


def lower_bound(problem: TableProblem) -> Nanoseconds:
    """Bound the cost of every plan whose tables are split by halves.

    The price is convex and grows with every shard, so the slowest of k devices costs at least what each would
    with one k-th of everything. Of exchanges, the slowest takes at least the mean.
    """
    tables, pricer = problem.tables.tables, problem.pricer
    least = np.sum([pricer.cheapest(at, 0, table.dim) for at, table in enumerate(tables)], axis=0)
    count = np.arange(1, problem.num_devices + 1)
    speed = np.cumsum(np.sort(1 / problem.slow)[::-1])
    lookup = (count * pricer.lookups(least / count[:, None], np.ones_like(count)) / speed).min()
    columns = sum(table.dim for table in tables)
    ends = (problem.ends.sum(1) + problem.ends.sum(2)).min(-1)
    means = (problem.fixed.sum(-1) + ends * columns) / problem.num_devices
    return int(np.floor(lookup) + np.floor(means).sum())
