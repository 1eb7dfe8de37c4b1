"""Place parts of tables one by one, the most expensive first, where each costs least.

Idea        A device's price is that of its set, not a sum. A grid of limits on columns per device, relative
            to the mean, trades lookups against exchanges; all limits are tried side by side.
Source      NeuroShard, MLSys 2023: its inner, table-wise search
Guarantee   What is returned fits the bytes of every device. Equal inputs give equal plans.
Complexity  O(limits * parts * devices * kinds * bends) in numpy.
Gaps        Greedy; `refine` mends most of what it leaves. Where no part fits any more, bytes alone decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tightrope.core import Bytes, Nanoseconds
from tightrope_assign.fit import fitting, packed
from tightrope_assign.tables.problem import Part, TableProblem
from tightrope_assign.values.tables import halves

SCALES: Final = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.5, 1e9)
"""Most columns of a device, relative to the mean."""
FEW_SCALES: Final = (1.05, 1.2, 1e9)


@dataclass(frozen=True, slots=True)
class FittingParts:
    """Parts as items that take bytes; see `tightrope_assign.fit`."""

    options: Sequence[Sequence[int]]
    size: Sequence[Bytes]
    room: Sequence[Bytes]


def greedy(
    problem: TableProblem, parts: Sequence[Part], scales: Sequence[float] = SCALES
) -> tuple[Nanoseconds, list[int]] | None:
    """Place all parts, and return the cost and the devices of the best limit; None where none fits."""
    order = sorted(range(len(parts)), key=lambda at: -problem.single(parts[at]))
    num, devices = len(scales), problem.num_devices
    names = {width: at for at, width in enumerate(sorted({b - a for _, a, b in parts}))}
    z = np.zeros((num, devices, len(problem.pricer.costs.slope)))
    columns, free = np.zeros((num, devices)), np.tile(problem.room, (num, 1))
    counts = np.zeros((num, devices, len(names)), bool)
    limit = np.array(scales)[:, None] * sum(b - a for _, a, b in parts) / devices
    hosts, rows, broken = np.zeros((num, len(parts)), int), np.arange(num), np.zeros(num, bool)
    for at in order:
        table, start, stop = parts[at]
        width, size, kinds = stop - start, problem.size(parts[at]), problem.pricer.kinds(table, stop - start)
        widths = counts.sum(-1) + ~counts[:, :, names[width]]
        price = problem.pricer.lookups(z + kinds, widths) * problem.slow
        price = np.where(columns + width > limit, 1e30 + columns, price)  # as few columns as can be
        price[free < size] = np.inf
        chosen = price.argmin(1)
        broken |= ~np.isfinite(price[rows, chosen])
        z[rows, chosen] += kinds
        columns[rows, chosen] += width
        free[rows, chosen] -= size
        counts[rows, chosen, names[width]] = True
        hosts[:, at] = chosen
    lookups = problem.pricer.lookups(z, counts.sum(-1)) * problem.slow
    cost = np.where(broken, np.inf, lookups.max(1) + problem.exchanges(columns).sum(-1))
    best = int(cost.argmin())
    return None if broken[best] else (problem.cost(parts, hosts[best]), hosts[best].tolist())


def by_key(problem: TableProblem, parts: Sequence[Part], key: str, order: str = "") -> list[int] | None:
    """Place parts by one figure alone, the largest first, where its sum is smallest; None where none fits.

    Args:
        problem: tables and devices.
        parts: what is placed.
        key: ``dim``, ``size``, ``lookups`` (rows that are read, times columns) or ``cost`` (alone).
        order: the figure by which parts are sorted; empty = the same.
    """
    tables, batch = problem.tables.tables, problem.tables.batch
    values = {
        "dim": lambda part: part[2] - part[1],
        "size": problem.size,
        "lookups": lambda part: batch * tables[part[0]].pooling * (part[2] - part[1]),
        "cost": problem.single,
    }
    weight, first = ([values[one](part) for part in parts] for one in (key, order or key))
    loads, free = [0.0] * problem.num_devices, problem.room.tolist()
    hosts = [-1] * len(parts)
    for at in sorted(range(len(parts)), key=lambda one: -first[one]):
        able = [d for d, room in enumerate(free) if problem.size(parts[at]) <= room]
        if not able:
            return None
        hosts[at] = min(able, key=lambda d: (loads[d] + weight[at] * problem.slow[d], d))
        loads[hosts[at]] += weight[at] * problem.slow[hosts[at]]
        free[hosts[at]] -= problem.size(parts[at])
    return hosts


def fitting_parts(problem: TableProblem) -> tuple[list[Part], list[int]]:
    """Split tables as far as bytes demand, and find devices that have room.

    Raises:
        InfeasibleError: no assignment was found, however tables are split.
    """
    largest = problem.room.max()
    parts = [(at, 0, table.dim) for at, table in enumerate(problem.tables.tables)]
    while wide := [part for part in parts if problem.size(part) > largest]:
        parts = [one for part in parts for one in (split(part) if part in wide else (part,))]
    while True:
        size = [problem.size(part) for part in parts]
        options = [[d for d, room in enumerate(problem.room) if one <= room] for one in size]
        items = FittingParts(options, size, problem.room.tolist())
        able = [part for part in parts if split(part)]
        if (hosts := packed(items)) is not None or not able:
            return parts, hosts or fitting(items, "parts of tables")
        most = max(able, key=problem.size)
        parts = [one for part in parts for one in (split(part) if part == most else (part,))]


def split(part: Part) -> tuple[Part, ...]:
    """Halve a part by columns; empty where that cannot be."""
    return tuple((part[0], start, stop) for start, stop in halves(part[1], part[2]))
