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
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tightrope.core import TightropeError
from tightrope.core.jobs import JobPlan, check_items
from tightrope.core.work import WorkItem
from tightrope.fleet.jobs.bound import machine_time_bound
from tightrope.fleet.jobs.policies import PREDICTING, RULES, Floats
from tightrope.fleet.jobs.predict import LifePredictor

_BLOCK = 64
_REVIEW = 32
_FIRST = 1000
"""Jobs before the first review: a percent is noise before that."""
LEAD = 0.01
"""Share of machine time by which a rule has to be ahead."""
HEDGED = "hedged"
_NEVER: Floats = np.zeros(1)


class _Placer(Protocol):
    @property
    def num_used(self) -> int: ...

    def place(self, position: int, item: WorkItem) -> int: ...


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
            raise TightropeError(f"rule={rule!r:.40}: there are: {', '.join((*RULES, HEDGED))}.")
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


class HedgedPlacer:
    """Follow the rule that would have taken the least machine time so far.

    Every rule places all jobs on shadow machines of its own. The real placement follows best-fit until
    another rule is ahead by more than `LEAD` on these, and then that one: a predictor that does not help
    costs little.

    Args:
        capacity: of every machine, per resource.
        predictor: of ends.
        again: predict machines that have outlived their end once more.
        most_hosts: machines that there are; 0 = as many as it takes.
        rules: that are tried, the first one to begin with.
    """

    def __init__(
        self,
        capacity: Sequence[int],
        *,
        predictor: LifePredictor,
        again: bool = True,
        most_hosts: int = 0,
        rules: Sequence[str] = ("best-fit", "expected"),
    ) -> None:
        def placer(rule: str) -> JobPlacer:
            return JobPlacer(capacity, rule=rule, predictor=predictor, again=again, most_hosts=most_hosts)

        self._shadows = {rule: placer(rule) for rule in rules}
        self._real = placer(next((rule for rule in rules if rule in PREDICTING), rules[0]))
        self._taken = dict.fromkeys(rules, 0)
        self._leader, self._last, self._count = rules[0], 0, 0

    @property
    def num_used(self) -> int:
        """Machines that hold a job."""
        return self._real.num_used

    def place(self, position: int, item: WorkItem) -> int:
        """Choose a machine for a job that starts now; -1 where there is none."""
        for rule, shadow in self._shadows.items():
            if self._count:
                self._taken[rule] += shadow.num_used * (item.start - self._last)
            shadow.place(position, item)
        self._last = item.start
        self._count += 1
        if self._count >= _FIRST and self._count % _REVIEW == 0:
            best = min(self._taken, key=lambda rule: self._taken[rule])
            if self._taken[best] < (1 - LEAD) * self._taken[self._leader]:
                self._leader = best
        self._real.follow(self._leader)
        return self._real.place(position, item)


def place_jobs(
    items: Sequence[WorkItem],
    capacity: Sequence[int],
    *,
    rule: str = "aligned",
    predictor: LifePredictor | None = None,
    again: bool = True,
    most_hosts: int = 0,
    until: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> JobPlan:
    """Place jobs one after the other, as they come.

    Args:
        items: by start.
        capacity: of every machine, per resource.
        rule: a name in `RULES`, or ``hedged`` (see `HedgedPlacer`).
        predictor: of ends; the true ends are used for leaving alone.
        again: predict once more where a machine has outlived its end.
        most_hosts: machines that there are; 0 = as many as it takes.
        until: count machine time before this only.
        seed: of the predictor's errors, written into the plan.
        progress: told the share of jobs placed now and then.

    Returns:
        The machine of every job, machine time, and what no placement undercuts.

    Raises:
        TightropeError: a job is malformed or larger than a machine, or the rule needs a predictor.

    Example:
        >>> jobs = [WorkItem("a", (3,), 0, 10), WorkItem("b", (3,), 5, 10), WorkItem("c", (1,), 6, 8)]
        >>> place_jobs(jobs, (4,), rule="best-fit").hosts
        (0, 1, 0)
    """
    jobs, size = tuple(items), tuple(capacity)
    check_items(jobs, size)
    placer: _Placer
    if rule == HEDGED:
        if predictor is None:
            raise TightropeError("rule 'hedged' looks at predicted ends: give a predictor, or take best-fit.")
        placer = HedgedPlacer(size, predictor=predictor, again=again, most_hosts=most_hosts)
    else:
        placer = JobPlacer(size, rule=rule, predictor=predictor, again=again, most_hosts=most_hosts)
    hosts: list[int] = []
    peak = 0
    for position, item in enumerate(jobs):
        hosts.append(placer.place(position, item))
        peak = max(peak, placer.num_used)
        if progress is not None and position % 4096 == 0:
            progress(position / len(jobs))
    placed = [item for item, host in zip(jobs, hosts, strict=True) if host >= 0]
    return JobPlan(
        capacity=size,
        hosts=tuple(hosts),
        until=until,
        machine_time=machine_time(jobs, hosts, until),
        lower_bound=machine_time_bound(placed, size, until),
        peak=peak,
        most_hosts=most_hosts,
        policy=rule,
        seed=seed,
    )


def machine_time(items: Sequence[WorkItem], hosts: Sequence[int], until: int | None = None) -> int:
    """Add up the time in which machines hold at least one job; items by start."""
    total = 0
    busy: dict[int, tuple[int, int]] = {}
    for item, host in zip(items, hosts, strict=True):
        end = item.end if until is None else min(item.end, until)
        if host < 0 or item.start >= end:
            continue
        start, last = busy.get(host, (item.start, item.start))
        if item.start > last:
            total += last - start
            start, last = item.start, item.start
        busy[host] = (start, max(last, end))
    return total + sum(last - start for start, last in busy.values())
