"""Oracles for tables that share nothing with the planners: prices in plain Python, and exhaustive search."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import msgspec

from tightrope_assign.tables import CONSTANTS, Cluster, EmbeddingTable, PlaceDevice, TableCosts, TableSet
from tightrope_assign.values.costs import link_prices
from tightrope_assign.values.tables import shard_features, touched_rows

Piece = tuple[int, int, int]


def small_tables(seed: int, *, bytes: bool = False, most: int = 5) -> tuple[TableSet, Cluster]:
    """Draw a few narrow tables on two or three devices, some of them slower."""
    chance = random.Random(seed)
    tables = tuple(
        EmbeddingTable(
            f"t{at}", chance.randint(1, 5000), chance.choice((4, 8, 16)), chance.choice((0.5, 1.0, 7.0)),
            chance.choice((0.0, 1.0, 1.3)),
        )
        for at in range(chance.randint(1, most))
    )  # fmt: skip
    whole = sum(4 * table.rows * table.dim for table in tables)
    num = chance.randint(1, 3)
    room = round(whole / num * chance.uniform(1.0, 1.8)) if bytes else 0
    devices = (PlaceDevice(f"d{at}", room, chance.choice((1e9, 1e9, 4e8))) for at in range(num))
    return TableSet(tables, chance.choice((64, 100, 512))), Cluster(tuple(devices))


def curved_costs(seed: int = 0) -> TableCosts:
    """Draw prices that are no sums: two kinds and three bends."""
    chance = random.Random(seed)

    def row(num: int, low: float = 0.0) -> tuple[float, ...]:
        return tuple(chance.uniform(low, 1) for _ in range(num))

    return msgspec.structs.replace(
        CONSTANTS, first=(row(8, -1), row(8, -1), row(8)), first_bias=row(3), second=(row(3, -0.3), row(3)),
        second_bias=row(2), slope=(1e6, 5e5), into=tuple(row(2) for _ in range(3)), bend=row(3, -1),
        out=(1e6, 2e5, 3e5), level=3e4,
    )  # fmt: skip


def price(
    tables: TableSet, cluster: Cluster, costs: TableCosts, pieces: Sequence[Piece], hosts: Sequence[int]
) -> int:
    """Price a plan by the formula of `tightrope_assign.values.costs`, number by number."""
    slowest, num = 0.0, len(cluster.devices)
    columns = [0] * num
    for device in range(num):
        mine = [piece for piece, host in zip(pieces, hosts, strict=True) if host == device]
        columns[device] = sum(stop - start for _, start, stop in mine)
        if not mine:
            continue
        z = [0.0] * len(costs.slope)
        for at, start, stop in mine:
            one, wide = tables.tables[at], stop - start
            lookups = tables.batch * one.pooling
            features = shard_features(one, wide, tables.batch, touched_rows(one.rows, one.skew, lookups))
            inner = [
                max(0.0, dot(w, features) + b) for w, b in zip(costs.first, costs.first_bias, strict=True)
            ]
            base = dot(costs.base, (1, tables.batch, lookups, lookups * wide))
            for kind, (w, b) in enumerate(zip(costs.second, costs.second_bias, strict=True)):
                z[kind] += max(0.0, dot(w, inner) + b) * base / 1e6
        found = (
            costs.level
            + costs.per_width * len({stop - start for _, start, stop in mine})
            + dot(costs.slope, z)
        )
        for w, b, out in zip(costs.into, costs.bend, costs.out, strict=True):
            found += out * max(0.0, dot(w, z) + b)
        slowest = max(slowest, found * 1e9 / cluster.devices[device].rate)
    total = math.ceil(slowest)
    for way in (costs.forward, costs.backward):
        latency, per_byte = link_prices(cluster, way)
        share = 4 * tables.batch / num
        total += math.ceil(
            max(
                sum(latency[d][o] + per_byte[d][o] * share * (columns[d] + columns[o]) for o in range(num))
                for d in range(num)
            )
        )
    return total


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def splits(start: int, stop: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """List all ways to halve columns, halves of halves included, down to 4."""
    yield ((start, stop),)
    if (stop - start) % 8 == 0:
        middle = (start + stop) // 2
        for left, right in itertools.product(splits(start, middle), splits(middle, stop)):
            yield (*left, *right)


def brute_force(tables: TableSet, cluster: Cluster, costs: TableCosts, *, columns: bool) -> int | None:
    """Find the smallest price over all assignments, and all splits; None where none fits."""
    best: int | None = None
    ways = [list(splits(0, one.dim)) if columns else [((0, one.dim),)] for one in tables.tables]
    for way in itertools.product(*ways):
        pieces = [(at, *part) for at, parts in enumerate(way) for part in parts]
        if len(cluster.devices) ** len(pieces) > 300:
            continue  # the bound holds for any of the others, too
        for hosts in itertools.product(range(len(cluster.devices)), repeat=len(pieces)):
            held = [0] * len(cluster.devices)
            for (at, start, stop), host in zip(pieces, hosts, strict=True):
                held[host] += 4 * tables.tables[at].rows * (stop - start)
            if all(not d.bytes or h <= d.bytes for d, h in zip(cluster.devices, held, strict=True)):
                found = price(tables, cluster, costs, pieces, hosts)
                best = found if best is None else min(best, found)
    return best
