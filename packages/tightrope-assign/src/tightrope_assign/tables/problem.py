"""Tables on devices by position, which every planner reads; and the price of plans, many at once."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Bytes, Nanoseconds
from tightrope_assign.values import tables as shape
from tightrope_assign.values.cluster import LARGEST, Cluster
from tightrope_assign.values.costs import TableCosts, check_costs, link_prices
from tightrope_assign.values.tables import TablePlan, TableSet, TableShard

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Part: TypeAlias = tuple[int, int, int]
"""Position of a table, and its columns ``[start, stop)``."""


class TableProblem:
    """Tables, devices and prices by position; what cannot be, or takes more bytes than there are, is refused.

    Attributes:
        room: bytes per device; 2^53 where there is no limit.
        slow: ns of a device per ns at the usual rate.
        fixed: ns of both exchanges that messages take, (2, devices).
        ends: ns per column of a device and per column of another, (2, devices, devices).
    """

    def __init__(self, tables: TableSet, cluster: Cluster, costs: TableCosts) -> None:
        check_costs(costs)
        shape.check_tables(tables, cluster)
        self.tables, self.cluster, self.costs, self.num_devices = tables, cluster, costs, len(cluster.devices)
        links = [link_prices(cluster, way) for way in (costs.forward, costs.backward)]
        self.room: Ints = np.array([device.bytes or LARGEST for device in cluster.devices], np.int64)
        self.slow: Floats = np.array([1e9 / device.rate for device in cluster.devices])
        self.fixed: Floats = np.array([latency for latency, _ in links]).sum(-1)
        self.ends: Floats = np.array([each for _, each in links]) * 4 * tables.batch / self.num_devices
        self._layers = [np.array(one) for one in (costs.first, costs.second, costs.into)]
        self._known: dict[tuple[int, int], Floats] = {}

    def kinds(self, table: int, columns: int) -> Floats:
        """Embed a shard, (kinds,); halves of it, and of those, are embedded with it."""
        if (table, columns) not in self._known:
            one, batch, costs, wide = self.tables.tables[table], self.tables.batch, self.costs, [columns]
            while shape.halves(0, wide[-1]):
                wide.append(wide[-1] // 2)
            lookups = batch * one.pooling
            touched = shape.touched_rows(one.rows, one.skew, lookups)
            features = np.array([shape.shard_features(one, each, batch, touched) for each in wide])
            inner = np.maximum(features @ self._layers[0].T + costs.first_bias, 0)
            outer = np.maximum(inner @ self._layers[1].T + costs.second_bias, 0)
            units = np.array([(1, batch, lookups, lookups * each) for each in wide])
            found = outer * (units @ costs.base)[:, None] / 1e6
            self._known |= {(table, each): row for each, row in zip(wide, found, strict=True)}
        return self._known[table, columns]

    def cheapest(self, table: int, columns: int) -> Floats:
        """Take, kind by kind, the smallest price that columns cost in any parts."""
        whole = self.kinds(table, columns)
        return (
            np.minimum(whole, 2 * self.cheapest(table, columns // 2)) if shape.halves(0, columns) else whole
        )

    def lookups(self, z: Floats, widths: Ints) -> Floats:
        """Price sets of shards: z is (..., kinds), widths (...,); ns at the usual rate, 0 without shards."""
        bends = np.maximum(z @ self._layers[2].T + self.costs.bend, 0)
        found = z @ np.array(self.costs.slope) + bends @ np.array(self.costs.out)
        priced: Floats = np.where(widths > 0, found + self.costs.level + self.costs.per_width * widths, 0.0)
        return priced

    def alone(self, parts: Sequence[Part]) -> Floats:
        """Price each part alone, ns."""
        z = np.array([self.kinds(table, stop - start) for table, start, stop in parts])
        return self.lookups(z, np.ones(len(parts), np.int64))

    def exchanges(self, columns: NDArray[np.number]) -> Floats:
        """Time both exchanges, (..., devices) columns to (..., 2) ns of the slowest device."""
        own = np.einsum("wd,...d->...wd", self.ends.sum(-1), columns)
        slowest: Floats = (self.fixed + own + np.einsum("wde,...e->...wd", self.ends, columns)).max(-1)
        return slowest

    def size(self, part: Part) -> Bytes:
        """Bytes of a part."""
        return shape.shard_bytes(self.tables, self.tables.tables[part[0]], part[2] - part[1])

    def loads(self, parts: Sequence[Part], hosts: Sequence[int]) -> tuple[Floats, Ints]:
        """Price the lookups of every device, and count its columns."""
        z, columns = np.zeros((self.num_devices, len(self.costs.slope))), np.zeros(self.num_devices, np.int64)
        widths: list[set[int]] = [set() for _ in range(self.num_devices)]
        for (table, start, stop), host in zip(parts, hosts, strict=True):
            z[host] += self.kinds(table, stop - start)
            columns[host] += stop - start
            widths[host].add(stop - start)
        return self.lookups(z, np.array([len(one) for one in widths])) * self.slow, columns

    def cost(self, parts: Sequence[Part], hosts: Sequence[int]) -> Nanoseconds:
        """Price a plan from nothing, rounded up."""
        lookups, columns = self.loads(parts, hosts)
        return int(np.ceil(lookups.max()) + np.ceil(self.exchanges(columns)).sum())

    def shards(self, parts: Sequence[Part], hosts: Sequence[int]) -> tuple[TableShard, ...]:
        """Write parts with the names of tables and devices."""
        tables, names = self.tables.tables, self.cluster.names
        rows = sorted(zip(parts, hosts, strict=True))
        return tuple(
            TableShard(tables[at].name, start, stop, names[host]) for (at, start, stop), host in rows
        )

    def homes(self, plan: TablePlan) -> dict[Part, int]:
        """Map the parts of a plan to the positions of their devices; -1 where a device is lost."""
        position = {name: at for at, name in enumerate(self.cluster.names)}
        number = {table.name: at for at, table in enumerate(self.tables.tables)}
        return {(number[s.table], s.start, s.stop): position.get(s.device, -1) for s in plan.placed}

    def lower_bound(self) -> Nanoseconds:
        """Bound the cost of every plan whose tables are split by halves.

        The price is convex and grows with every shard, so the slowest of k devices costs at least what each
        would with one k-th of everything. Of exchanges, the slowest takes at least the mean.
        """
        tables, count = self.tables.tables, np.arange(1, self.num_devices + 1)
        least = np.sum([self.cheapest(at, table.dim) for at, table in enumerate(tables)], axis=0)
        speed = np.cumsum(np.sort(1 / self.slow)[::-1])
        lookup = (count * self.lookups(least / count[:, None], np.ones_like(count)) / speed).min()
        ends = (self.ends.sum(1) + self.ends.sum(2)).min(-1)
        means = (self.fixed.sum(-1) + ends * sum(table.dim for table in tables)) / self.num_devices
        return int(np.floor(lookup) + np.floor(means).sum())
