"""Place parts of tables one by one, the most expensive first, where each costs least.

Idea        A device's price is that of its set, not a sum. A grid of limits on columns per device, relative
            to the mean, trades lookups against exchanges; all limits are tried side by side.
Source      NeuroShard, MLSys 2023: its inner, table-wise search
Guarantee   What is returned fits the bytes of every device. Equal inputs give equal plans.
Complexity  O(limits * parts * devices * kinds * bends) in numpy.
Gaps        Greedy; `refine` mends most of what it leaves. Where no part fits any more, bytes alone decide.
"""

import math
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import InfeasibleError
from tightrope_assign.fit import FittingItems, fitting, packed
from tightrope_assign.tables.problem import Floats, Ints, Part, TableProblem
from tightrope_assign.values.tables import halves

SCALES: Final = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.5, 1e9)
"""Most columns of a device, relative to the mean."""
_MOST_PARTS: Final = 100_000


def greedy(
    problem: TableProblem, parts: Sequence[Part], scales: Sequence[float] = SCALES, until: float = math.inf
) -> list[int] | None:
    """Place all parts by the best limit; None where none fits, or at ``until`` of the monotonic clock."""
    num, devices, rows = len(scales), problem.num_devices, np.arange(len(scales))
    widths = np.array([stop - start for _, start, stop in parts])
    names = np.unique(widths, return_inverse=True)[1]
    z, columns = np.zeros((num, devices, len(problem.costs.slope))), np.zeros((num, devices))
    free, different = np.tile(problem.room, (num, 1)), np.zeros((num, devices), np.int64)
    has = np.zeros((num, devices, max(names) + 1), bool)
    limit = np.array(scales)[:, None] * widths.sum() / devices
    hosts, broken = np.zeros((num, len(parts)), np.int64), np.zeros(num, bool)
    for at in np.argsort(-problem.alone(parts), kind="stable"):
        if time.monotonic() > until:
            return None
        width, size, kinds = widths[at], problem.size(parts[at]), problem.kinds(parts[at][0], widths[at])
        price = problem.lookups(z + kinds, different + ~has[:, :, names[at]]) * problem.slow
        price = np.where(columns + width > limit, 1e30 + columns, price)  # as few columns as can be
        price[free < size] = np.inf
        hosts[:, at] = price.argmin(1)
        chosen = rows, hosts[:, at]
        broken |= ~np.isfinite(price[chosen])
        z[chosen] += kinds
        columns[chosen] += width
        free[chosen] -= size
        different[chosen] += ~has[(*chosen, names[at])]
        has[(*chosen, names[at])] = True
    slowest = (problem.lookups(z, different) * problem.slow).max(1)
    best = np.where(broken, np.inf, slowest + problem.exchanges(columns).sum(-1)).argmin()
    return None if broken[best] else hosts[best].tolist()


def by_key(
    problem: TableProblem, parts: Sequence[Part], key: str, order: str = "", known: Sequence[int] = ()
) -> list[int] | None:
    """Place parts by one figure alone, the largest first, where its sum is smallest; None where none fits.

    Figures are ``dim``, ``size``, ``lookups`` (rows that are read, times columns) and ``cost`` (alone).
    ``order`` is another one to sort by, and ``known`` has the devices of parts, -1 = none yet.
    """
    wide = np.array([stop - start for _, start, stop in parts])
    lookups = wide * [problem.tables.tables[part[0]].pooling for part in parts]
    size = np.array([*map(problem.size, parts)])
    values = {"dim": wide, "size": size, "lookups": lookups, "cost": problem.alone(parts)}
    hosts, free = np.array(known or [-1] * len(parts)), problem.room.copy()
    kept = [(parts[at], host) for at, host in enumerate(known) if host >= 0]
    loads, _ = problem.loads([part for part, _ in kept], [host for _, host in kept])
    np.subtract.at(free, hosts[hosts >= 0], size[hosts >= 0])
    place = np.argsort(-values[order or key], kind="stable")
    new = place[hosts[place] < 0]
    chosen = spread(values[key][new], size[new], problem.slow, free, loads)
    hosts[new] = -1 if chosen is None else chosen
    return None if chosen is None else [int(host) for host in hosts]


def spread(
    weight: NDArray[np.number], size: Ints, slow: Floats, free: Ints, loads: Floats
) -> list[int] | None:
    """Place items in order, where sums of weights are smallest; None where bytes do not fit."""
    hosts = []
    for one, held in zip(weight, size, strict=True):
        after = loads + one * slow
        hosts.append(int(np.where(held <= free, after, np.inf).argmin()))
        free[hosts[-1]] -= held
        loads[hosts[-1]] = after[hosts[-1]]
    return hosts if free.min() >= 0 else None


def fitting_parts(problem: TableProblem, until: float) -> tuple[list[Part], list[int]]:
    """Split tables as far as bytes demand, and find devices that have room; refuse where none have."""
    largest, devices = problem.room.max(), range(problem.num_devices)
    parts = [(at, 0, table.dim) for at, table in enumerate(problem.tables.tables)]
    while True:
        wide = {part for part in parts if problem.size(part) > largest}
        if not wide:
            items = FittingItems([devices] * len(parts), [*map(problem.size, parts)], problem.room.tolist())
            if (hosts := packed(items)) is not None:
                return parts, hosts
            able = sorted(filter(split, parts), key=problem.size, reverse=True)
            if not able:
                return parts, fitting(items, "parts of tables", until - time.monotonic())
            wide = set(able[: max(1, len(parts) // 50)])
        if len(parts) > _MOST_PARTS or time.monotonic() > until:
            raise InfeasibleError(
                f"No assignment of {len(parts)} parts was found in time. Give devices more bytes.",
                asked=int(problem.room.sum()),
            )
        parts = divided(parts, wide)


def divided(parts: Sequence[Part], wide: set[Part]) -> list[Part]:
    """Halve some parts."""
    return [one for part in parts for one in (split(part) if part in wide else (part,))]


def split(part: Part) -> tuple[Part, ...]:
    """Halve a part by columns; empty where that cannot be."""
    return tuple((part[0], start, stop) for start, stop in halves(part[1], part[2]))
