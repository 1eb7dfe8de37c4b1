"""Place tasks one by one where each ends earliest, into gaps too.

Idea        Tasks by rank, the longest way to the end first; each goes to the device where it ends earliest,
            into the first gap that is long enough, among devices that have bytes left. Where a task finds
            no bytes, an assignment that fits is sought first, and times follow from it.
Source      HEFT, Topcuoglu et al. 2002; the inner gaps that GiPH's copy of it leaves out are used here
Guarantee   Within the bytes of every device, or `InfeasibleError`.
Complexity  O((tasks + edges) * devices * gaps).
Gaps        Greedy. The assignment that fits comes from CP-SAT where packing by size finds none.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence

from tightrope.core import Nanoseconds
from tightrope_assign.fit import fitting
from tightrope_assign.tasks.problem import TaskProblem
from tightrope_assign.values.cluster import LARGEST


def ranks(problem: TaskProblem) -> list[float]:
    """Return the longest way from each task's start to the end, in mean times."""
    mean = [sum(problem.cost[t][d] for d in able) / len(able) for t, able in enumerate(problem.options)]
    num = problem.num_devices
    counts: dict[int, int] = {}
    for row in problem.link:
        for kind in row:
            counts[kind] = counts.get(kind, 0) + 1
    sent = [sum(row[kind] * count for kind, count in counts.items()) / num**2 for row in problem.travel]
    found = [0.0] * problem.num_tasks
    for task in reversed(problem.order):
        found[task] = mean[task] + max((sent[e] + found[c] for c, e in problem.children[task]), default=0.0)
    return found


def by_rank(problem: TaskProblem) -> list[int]:
    """List the tasks by rank; each stands behind its parents."""
    rank, place = ranks(problem), {task: at for at, task in enumerate(problem.order)}
    return sorted(problem.order, key=lambda task: (-rank[task], place[task]))


class Timetable:
    """What runs on each device so far, with gaps."""

    def __init__(self, problem: TaskProblem) -> None:
        self.problem = problem
        self.busy: list[list[tuple[Nanoseconds, Nanoseconds]]] = [[] for _ in range(problem.num_devices)]
        self.hosts = [-1] * problem.num_tasks
        self.starts = [0] * problem.num_tasks
        self.ends = [0] * problem.num_tasks

    def earliest(self, task: int, device: int) -> Nanoseconds:
        """Return the earliest start of a task whose parents are placed."""
        problem = self.problem
        row = problem.link[device]
        start = max(
            (self.ends[p] + problem.travel[e][row[self.hosts[p]]] for p, e in problem.parents[task]),
            default=0,
        )
        takes = problem.cost[task][device]
        busy = self.busy[device]
        for at in range(max(0, bisect_right(busy, (start, LARGEST)) - 1), len(busy)):
            begin, end = busy[at]
            if start + takes <= begin:
                break
            start = max(start, end)
        return start

    def put(self, task: int, device: int, start: Nanoseconds) -> None:
        """Place a task."""
        self.hosts[task], self.starts[task] = device, start
        self.ends[task] = start + self.problem.cost[task][device]
        if self.ends[task] > start:
            insort(self.busy[device], (start, self.ends[task]))


def heft(problem: TaskProblem, hosts: Sequence[int] | None = None) -> tuple[list[int], list[Nanoseconds]]:
    """Place all tasks.

    Args:
        problem: tasks and devices.
        hosts: devices that are given already; -1 = to be chosen.

    Returns:
        Device and start of every task.

    Raises:
        InfeasibleError: no assignment within the bytes exists, or none was found.
    """
    given = list(hosts) if hosts is not None else [-1] * problem.num_tasks
    table, free = Timetable(problem), problem.free(given)
    for task in by_rank(problem):
        size = problem.size[task]
        devices = (
            (given[task],) if given[task] >= 0 else [d for d in problem.options[task] if size <= free[d]]
        )
        if not devices:
            return heft(problem, fitting(problem))
        start, device = min(
            ((table.earliest(task, d), d) for d in devices),
            key=lambda pair: (pair[0] + problem.cost[task][pair[1]], pair[1]),
        )
        table.put(task, device, start)
        if given[task] < 0:
            free[device] -= size
    return table.hosts, table.starts
