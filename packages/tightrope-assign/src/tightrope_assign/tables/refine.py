"""Move and swap parts of tables while the cost falls.

Idea        Take a part off the device with the slowest lookups, or with the most columns; another device's
            part, or none, comes back for it. All such pairs are priced at once; the best one that lowers the
            cost is taken. Where none does, the parts of a few devices are placed anew, and the search goes on
            from there unless that is much worse.
Source      Iterated local search with pairwise interchange
Guarantee   Never more expensive than the start, and within the bytes. Equal inputs give equal plans where no
            clock ends it.
Complexity  A step prices (parts of a device) * (parts + devices) pairs.
Gaps        Exchanges are estimated for all pairs and priced exactly for the eight best.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope_assign.tables.problem import Floats, Ints, Part, TableProblem

_SHORTLIST: Final = 8
_LEAST_GAIN: Final = 1e-7
_WORSE: Final = 1.03
"""Cost relative to the best, up to which a search goes on from a worse plan."""


class PartsOnDevices:
    """Parts on devices, with what each device adds up to; the last parts are empty, one per device."""

    def __init__(self, problem: TableProblem, parts: Sequence[Part], hosts: Sequence[int]) -> None:
        num, self.problem, self.num = problem.num_devices, problem, len(parts)
        names = sorted({b - a for _, a, b in parts})
        self.kinds = np.zeros((len(parts) + num, len(problem.pricer.costs.slope)))
        self.size, self.columns = (np.zeros(len(parts) + num, np.int64) for _ in range(2))
        self.width = np.zeros((len(parts) + num, len(names)), np.int64)
        for at, part in enumerate(parts):
            wide = part[2] - part[1]
            self.kinds[at] = problem.pricer.kinds(part[0], wide)
            self.size[at], self.columns[at] = problem.size(part), wide
            self.width[at, names.index(wide)] = 1
        self.slope = float(problem.ends.sum(-1).mean())
        self.load([*hosts, *range(num)])

    def load(self, hosts: Sequence[int] | Ints) -> None:
        """Take other devices for all parts."""
        num = self.problem.num_devices
        self.hosts = np.array(hosts, np.int64)
        member = np.zeros((num, len(self.hosts)))
        member[self.hosts, np.arange(len(self.hosts))] = 1
        self.z, self.counts = member @ self.kinds, np.rint(member @ self.width).astype(np.int64)
        self.held = np.zeros(num, np.int64)
        np.add.at(self.held, self.hosts, self.size)
        self.wide = np.zeros(num, np.int64)
        np.add.at(self.wide, self.hosts, self.columns)
        price = self.problem.pricer.lookups(self.z, (self.counts > 0).sum(-1))
        self.lookups: Floats = price * self.problem.slow
        self.cost = float(self.lookups.max() + self.problem.exchanges(self.wide).sum())

    def better(self, device: int) -> tuple[float, int, int] | None:
        """Find the best part of a device and part that comes back; None where no pair lowers the cost."""
        mine = np.flatnonzero(self.hosts[: self.num] == device)
        others = np.flatnonzero(self.hosts != device)
        if not len(mine) or not len(others):
            return None
        host, room = self.hosts[others], self.problem.room
        grows = self.size[mine][:, None] - self.size[others]
        able = (grows <= (room - self.held)[host]) & (-grows <= room[device] - self.held[device])
        out, back = np.nonzero(able)
        if not len(out):
            return None
        mine, others, host = mine[out], others[back], host[back]
        delta, width = self.kinds[others] - self.kinds[mine], self.width[others] - self.width[mine]
        price, slow = self.problem.pricer.lookups, self.problem.slow
        here = price(self.z[device] + delta, ((self.counts[device] + width) > 0).sum(-1)) * slow[device]
        there = price(self.z[host] - delta, ((self.counts[host] - width) > 0).sum(-1)) * slow[host]
        lookups = np.maximum(np.maximum(here, there), _rest(self.lookups, device, host))
        wide = self.columns[others] - self.columns[mine]
        most = np.maximum(np.maximum(self.wide[device] + wide, self.wide[host] - wide), 0)
        most = np.maximum(most, _rest(self.wide, device, host))
        short = np.argsort(lookups + 2 * self.slope * most, kind="stable")[:_SHORTLIST].tolist()
        costs = [float(lookups[at]) + self._exchanges(device, int(host[at]), int(wide[at])) for at in short]
        cost, best = min(zip(costs, short, strict=True))
        if cost < self.cost * (1 - _LEAST_GAIN):
            return cost, int(mine[best]), int(others[best])
        return None

    def _exchanges(self, device: int, host: int, wide: int) -> float:
        columns = self.wide.copy()
        columns[device] += wide
        columns[host] -= wide
        return float(self.problem.exchanges(columns).sum())

    def swap(self, one: int, other: int) -> None:
        """Exchange the devices of two parts; an empty part stays where it is."""
        hosts = self.hosts.copy()
        hosts[one] = self.hosts[other]
        if other < self.num:
            hosts[other] = self.hosts[one]
        self.load(hosts)

    def descend(self, until: float) -> None:
        """Take the best pair while there is one."""
        while time.monotonic() < until:
            hot = dict.fromkeys((int(self.lookups.argmax()), int(self.wide.argmax())))
            found = [pair for pair in map(self.better, hot) if pair is not None]
            if not found:
                return
            self.swap(*min(found)[1:])


def _rest(values: NDArray[np.number], device: int, host: Ints) -> NDArray[np.number]:
    """Take the largest value of devices other than two; lowest where there is none."""
    order = [at for at in np.argsort(-values, kind="stable")[:3].tolist() if at != device]
    first = values[order[0]] if order else 0
    second = values[order[1]] if len(order) > 1 else 0
    found: NDArray[np.number] = np.where(host == (order[0] if order else -1), second, first)
    return found


def refine(
    problem: TableProblem,
    parts: Sequence[Part],
    hosts: Sequence[int],
    *,
    until: float,
    kicks: int = 0,
    seed: int = 0,
) -> list[int]:
    """Improve a plan.

    Args:
        problem: tables and devices.
        parts: what is placed.
        hosts: where, within the bytes.
        until: reading of the monotonic clock at which it ends.
        kicks: times that parts of a few devices are placed anew once no pair helps.
        seed: of these.

    Returns:
        The device of every part.
    """
    chance = random.Random(seed)
    now = PartsOnDevices(problem, parts, hosts)
    now.descend(until)
    best, known = now.hosts.copy(), now.cost
    for _ in range(kicks):
        if time.monotonic() >= until or problem.num_devices == 1:
            break
        _kick(now, chance)
        now.descend(until)
        if now.cost < known:
            best, known = now.hosts.copy(), now.cost
        elif now.cost > known * _WORSE:
            now.load(best)
    return [int(host) for host in best[: now.num]]


def _kick(now: PartsOnDevices, chance: random.Random) -> None:
    """Take all parts off the slowest device and up to two others, and place them anew in a random order."""
    hot, problem = int(now.lookups.argmax()), now.problem
    others = [at for at in range(problem.num_devices) if at != hot]
    devices = [hot, *chance.sample(others, min(len(others), chance.randint(1, 2)))]
    loads, free = dict.fromkeys(devices, 0.0), {at: int(problem.room[at]) for at in devices}
    hosts = now.hosts.copy()
    mine = np.flatnonzero(np.isin(now.hosts[: now.num], devices))
    alone = problem.pricer.lookups(now.kinds[mine], np.ones(len(mine), np.int64))
    weight = {int(at): float(price) * chance.uniform(0.6, 1.4) for at, price in zip(mine, alone, strict=True)}
    for at in sorted(weight, key=lambda one: -weight[one]):
        able = [device for device in devices if now.size[at] <= free[device]]
        if not able:
            return
        device = min(able, key=lambda one: loads[one] + weight[at] * problem.slow[one])
        loads[device] += weight[at] * problem.slow[device]
        free[device] -= int(now.size[at])
        hosts[at] = device
    now.load(hosts)
