"""Place jobs on machines as they come, with ends that are only predicted.

Idea        A machine's end is the latest predicted end of the jobs on it. A job goes to a machine that has
            room, by a rule; to an empty one only where none has. With `aligned`, that is the machine whose
            life the job lengthens least, counted in coarse steps, and among equals the fullest: jobs that end
            together lie together, and machines become empty. A machine that has outlived its end is predicted
            again from the ages of its jobs.
Source      Barbalho et al., MLSys 2023 (lifetime alignment); Ling et al., "LAVA", MLSys 2025 (steps before
            packing, re-prediction). The rules' details are our own: neither has public code.
Guarantee   No machine ever holds more than it has. A decision depends on what came before it alone. The same
            input and seed give the same placement.
Complexity  O(machines) per job, vectorized, and O(log n) per end.
Gaps        Jobs are never moved once they run. Refused jobs are not tried again.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from tightrope.core import TightropeError
from tightrope_fleet.jobs.policies import PREDICTING, RULES, WATCHING, Floats
from tightrope_fleet.jobs.predict import LifePredictor
from tightrope_fleet.values.work import WorkItem

_BLOCK = 64
_NEVER: Floats = np.zeros(1)


class JobPlacer:
    """Machines and the jobs on them, one decision at a time.

    Args:
        capacity: of every machine, per resource.
        rule: a name in `RULES`.
        predictor: of ends; needed by rules that look at them.
        again: predict machines that have outlived their end once more.
        most_hosts: machines that there are; 0 = as many as it takes.
    """

    def __init__(
        self,
        capacity: Sequence[int],
        *,
        rule: str = "aligned",
        predictor: LifePredictor | None = None,
        again: bool = True,
        most_hosts: int = 0,
    ) -> None:
        if rule not in RULES:
            raise TightropeError(f"rule={rule!r:.40}: there are: {', '.join((*RULES, *WATCHING))}.")
        if rule in PREDICTING and predictor is None:
            raise TightropeError(
                f"rule {rule!r} looks at predicted ends: give a predictor, or take best-fit."
            )
        self._rule, self._predictor, self._again, self._most = RULES[rule], predictor, again, most_hosts
        self._predicts = rule in PREDICTING
        self._capacity = np.asarray(capacity, dtype=np.int64)
        self._free = np.zeros((0, len(capacity)), dtype=np.int64)
        self._ends: Floats = np.zeros(0)
        self._opened: Floats = np.zeros(0)
        self._jobs: list[dict[int, WorkItem]] = []
        self._predicted: dict[int, float] = {}
        self._empty: list[int] = []
        self._leaving: list[tuple[int, int, int]] = []
        self._num = 0

    @property
    def num_used(self) -> int:
        """Machines that hold a job."""
        return self._num - len(self._empty)

    def follow(self, rule: str) -> None:
        """Choose by another rule from now on; predictions go on."""
        self._rule = RULES[rule]

    def place(self, position: int, item: WorkItem) -> int:
        """Choose a machine for a job that starts now; -1 where there is none."""
        self._leave(item.start)
        size = np.asarray(item.size, dtype=np.int64)
        room = np.flatnonzero(
            (self._free[: self._num] >= size).all(axis=1) & (self._ends[: self._num] > -np.inf)
        )
        job = self._predictor.ends(position, item) if self._predicts and self._predictor else _NEVER
        end = float(job[len(job) // 2])
        if len(room):
            left: Floats = ((self._free[room] - size) / self._capacity).sum(axis=1)
            host = int(room[self._rule(self._opened[room], left, self._ends_of(room, item.start), job)])
        elif self._empty:
            host = heapq.heappop(self._empty)
            self._open(host, item.start)
        elif not self._most or self._num < self._most:
            host = self._grow()
            self._open(host, item.start)
        else:
            return -1
        self._free[host] -= size
        self._jobs[host][position] = item
        self._predicted[position] = end
        self._ends[host] = max(self._ends[host], end)
        heapq.heappush(self._leaving, (item.end, position, host))
        return host

    def _leave(self, now: int) -> None:
        """Take away jobs that have ended."""
        while self._leaving and self._leaving[0][0] <= now:
            _, position, host = heapq.heappop(self._leaving)
            item = self._jobs[host].pop(position)
            self._free[host] += np.asarray(item.size, dtype=np.int64)
            del self._predicted[position]
            if self._jobs[host]:
                if self._predicts:
                    self._ends[host] = max(self._predicted[one] for one in self._jobs[host])
            else:
                self._ends[host] = -np.inf
                heapq.heappush(self._empty, host)

    def _ends_of(self, room: np.ndarray[tuple[int], np.dtype[np.int64]], now: int) -> Floats:
        """Predicted ends of machines, at least now; those in the past are predicted again."""
        if self._predicts and self._again and self._predictor is not None:
            for host in room[self._ends[room] <= now]:
                jobs = self._jobs[int(host)]
                for position, item in jobs.items():
                    if self._predicted[position] <= now:
                        self._predicted[position] = self._predictor.again(position, item, now)
                self._ends[host] = max(self._predicted[one] for one in jobs)
        found: Floats = np.maximum(self._ends[room], now)
        return found

    def _open(self, host: int, now: int) -> None:
        self._opened[host] = now
        self._ends[host] = np.finfo(np.float64).min

    def _grow(self) -> int:
        if self._num == len(self._ends):
            more = max(_BLOCK, self._num)
            self._free = np.vstack([self._free, np.tile(self._capacity, (more, 1))])
            self._ends = np.append(self._ends, np.full(more, -np.inf))
            self._opened = np.append(self._opened, np.zeros(more))
        self._num += 1
        self._jobs.append({})
        return self._num - 1
