"""Move and swap parts of tables while the cost falls.

Idea        Take a part off the device with the slowest lookups, or with the most columns; another device's
            part, or none, comes back for it. All such pairs are priced at once; the best one that lowers the
            cost is taken. Where none does, the parts of a few devices are placed anew, and the search goes on
            from there unless that is much worse.
Source      Iterated local search with pairwise interchange
Guarantee   Never more expensive than the start, and within the bytes. Equal inputs give equal plans where no
            clock ends it.
Complexity  A step prices (parts of a device) * (parts + devices) pairs, at most 100,000 drawn ones.
Gaps        Exchanges are estimated for all pairs and priced exactly for the eight best.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope_assign.tables.greedy import spread
from tightrope_assign.tables.problem import Floats, Ints, Part, TableProblem

_SHORTLIST: Final = 8
_MOST_PAIRS: Final = 100_000
_LEAST_GAIN: Final = 1e-7
_WORSE: Final = 1.03
"""Cost relative to the best, up to which a search goes on from a worse plan."""


class PartsOnDevices:
    """Parts on devices, with what each device adds up to; the last parts are empty, one per device."""

    def __init__(self, problem: TableProblem, parts: Sequence[Part], hosts: Sequence[int]) -> None:
        self.problem, self.num, self.chance = problem, len(parts), np.random.default_rng(0)
        empty = np.zeros(problem.num_devices, np.int64)
        wide = np.array([stop - start for _, start, stop in parts])
        names, width = np.unique(wide, return_inverse=True)
        kinds = [problem.kinds(at, stop - start) for at, start, stop in parts]
        self.kinds: Floats = np.vstack([*kinds, np.zeros((len(empty), len(kinds[0])))])
        self.size: Ints = np.concatenate([[problem.size(part) for part in parts], empty])
        self.columns, self.width = np.concatenate([wide, empty]), np.concatenate([width, empty + len(names)])
        self.slope = float(problem.ends.sum(-1).mean())
        self.load([*hosts, *range(len(empty))])

    def load(self, hosts: Sequence[int] | Ints) -> None:
        """Take other devices for all parts."""
        num, self.hosts = self.problem.num_devices, np.array(hosts, np.int64)
        self.z, self.counts = np.zeros((num, self.kinds.shape[1])), np.zeros((num, self.width[-1] + 1), int)
        np.add.at(self.z, self.hosts, self.kinds)
        np.add.at(self.counts, (self.hosts, self.width), 1)
        self.held, self.wide = (np.bincount(self.hosts, one, num) for one in (self.size, self.columns))
        self.widths = (self.counts[:, :-1] > 0).sum(1)
        self.counts[:, -1] = 2  # an empty part never makes or ends a width
        self.lookups: Floats = self.problem.lookups(self.z, self.widths) * self.problem.slow
        self.cost = float(self.lookups.max() + self.problem.exchanges(self.wide).sum())

    def better(self, device: int) -> tuple[float, int, int] | None:
        """Find the best part of a device and part that comes back; None where no pair lowers the cost."""
        mine, others = np.flatnonzero(self.hosts[: self.num] == device), np.flatnonzero(self.hosts != device)
        if len(mine) * len(others) > _MOST_PAIRS:
            mine = self.chance.permutation(mine)[:300]
            others = self.chance.permutation(others)[: _MOST_PAIRS // len(mine)]
        free = self.problem.room - self.held
        grows = self.size[mine][:, None] - self.size[others]
        out, back = np.nonzero((grows <= free[self.hosts[others]]) & (-grows <= free[device]))
        if not len(out):
            return None
        mine, others, price = mine[out], others[back], self.problem.lookups
        host, delta, wide = self.hosts[others], self.kinds[others] - self.kinds[mine], self.columns[others]
        gone, come, slow = self.width[mine], self.width[others], self.problem.slow
        here = (self.counts[device, come] == 0) * 1 - (self.counts[device, gone] == 1)
        there = (self.counts[host, gone] == 0) * 1 - (self.counts[host, come] == 1)
        here, there = (np.where(gone == come, 0, one) for one in (here, there))
        lookups = price(self.z[device] + delta, self.widths[device] + here) * slow[device]
        lookups = np.maximum(lookups, price(self.z[host] - delta, self.widths[host] + there) * slow[host])
        lookups = np.maximum(lookups, _rest(self.lookups, device, host))
        wide = wide - self.columns[mine]
        most = np.maximum(self.wide[device] + wide, self.wide[host] - wide)
        most = np.maximum(most, _rest(self.wide, device, host))
        short = np.argsort(lookups + 2 * self.slope * most, kind="stable")[:_SHORTLIST]
        columns = np.tile(self.wide, (len(short), 1))
        columns[:, device] += wide[short]
        columns[np.arange(len(short)), host[short]] -= wide[short]
        costs = lookups[short] + self.problem.exchanges(columns).sum(-1)
        best = int(costs.argmin())
        if costs[best] < self.cost * (1 - _LEAST_GAIN):
            return float(costs[best]), int(mine[short[best]]), int(others[short[best]])
        return None

    def descend(self, until: float) -> None:
        """Take the best pair while there is one; empty parts stay where they are."""
        while time.monotonic() < until:
            hot = dict.fromkeys((int(self.lookups.argmax()), int(self.wide.argmax())))
            found = [pair for pair in map(self.better, hot) if pair is not None]
            if not found:
                return
            _, one, other = min(found)
            hosts = self.hosts.copy()
            hosts[one] = self.hosts[other]
            if other < self.num:
                hosts[other] = self.hosts[one]
            self.load(hosts)

    def kick(self) -> None:
        """Take all parts off the slowest device and up to two others; place them anew in a random order."""
        hot, problem = int(self.lookups.argmax()), self.problem
        others = np.delete(np.arange(problem.num_devices), hot)
        devices = np.array([hot, *self.chance.permutation(others)[: self.chance.integers(1, 3)]])
        mine, hosts = np.flatnonzero(np.isin(self.hosts[: self.num], devices)), self.hosts.copy()
        weight = problem.lookups(self.kinds[mine], np.ones(len(mine), np.int64))
        weight *= self.chance.uniform(0.6, 1.4, len(mine))
        order, none = np.argsort(-weight), np.zeros(len(devices))
        mine, room, slow = mine[order], problem.room[devices], problem.slow[devices]
        if (new := spread(weight[order], self.size[mine], slow, room, none)) is not None:
            hosts[mine] = devices[new]
            self.load(hosts)


def _rest(values: NDArray[np.number], device: int, host: Ints) -> NDArray[np.number]:
    """Take the largest value of devices other than two; 0 where there is none."""
    order = [at for at in np.argsort(-values, kind="stable")[:3].tolist() if at != device]
    return np.where(host == order[0], values[order[1]] if len(order) > 1 else 0, values[order[0]])


def refine(
    problem: TableProblem, parts: Sequence[Part], hosts: Sequence[int], *, until: float, kicks: int = 0
) -> list[int]:
    """Improve a plan until the monotonic clock says so, and return the device of every part.

    Once no pair helps, parts of a few devices are placed anew, ``kicks`` times.
    """
    now = PartsOnDevices(problem, parts, hosts)
    now.descend(until)
    best, known = now.hosts.copy(), now.cost
    for _ in range(kicks if problem.num_devices > 1 else 0):
        if time.monotonic() >= until:
            break
        now.kick()
        now.descend(until)
        if now.cost < known:
            best, known = now.hosts.copy(), now.cost
        elif now.cost > known * _WORSE:
            now.load(best)
    return [int(host) for host in best[: now.num]]
