"""When tasks run that have a device: by queues, or in a given sequence.

Idea        `simulate`: a task enters the queue of its device when all its messages are there, and a free
            device starts the first of its queue: the one with the smallest priority, or the first that
            came. `in_sequence`: tasks take their devices in a given order of all tasks; a device waits for
            its next.
Source      The simulator of GiPH (MLSys 2023); semi-active schedules of job shops
Guarantee   Both give plans that the judge accepts. Some sequence gives the best plan of all.
Complexity  O((tasks + edges) log tasks), and O(tasks + edges).
Gaps        A link carries any number of messages at once, as in HEFT and GiPH.
"""

import heapq
from collections.abc import Sequence

from tightrope.core import Nanoseconds
from tightrope_assign.tasks.problem import TaskProblem

_ARRIVES, _ENDS = 1, 0


def simulate(
    problem: TaskProblem, hosts: Sequence[int], priority: Sequence[float] | None = None
) -> list[Nanoseconds]:
    """Run tasks by queues and return their starts.

    Args:
        problem: tasks and devices.
        hosts: device of every task.
        priority: of every task, smallest first; None = first come, first served, then by position.
    """
    starts = [0] * problem.num_tasks
    arrival = [0] * problem.num_tasks
    waiting = [len(row) for row in problem.parents]
    queues: list[list[tuple[float, int]]] = [[] for _ in range(problem.num_devices)]
    busy = [False] * problem.num_devices
    events = [(0, task, _ARRIVES) for task, count in enumerate(waiting) if not count]
    heapq.heapify(events)
    cost, link, travel = problem.cost, problem.link, problem.travel
    while events:
        now = events[0][0]
        touched: set[int] = set()
        while events and events[0][0] == now:
            _, task, kind = heapq.heappop(events)
            host = hosts[task]
            touched.add(host)
            if kind == _ARRIVES:
                heapq.heappush(queues[host], (now if priority is None else priority[task], task))
                continue
            busy[host] = False
            for child, edge in problem.children[task]:
                arrival[child] = max(arrival[child], now + travel[edge][link[host][hosts[child]]])
                waiting[child] -= 1
                if not waiting[child]:
                    heapq.heappush(events, (arrival[child], child, _ARRIVES))
        for host in touched:
            if queues[host] and not busy[host]:
                task = heapq.heappop(queues[host])[1]
                starts[task], busy[host] = now, True
                heapq.heappush(events, (now + cost[task][host], task, _ENDS))
    return starts


def in_sequence(problem: TaskProblem, hosts: Sequence[int], sequence: Sequence[int]) -> list[Nanoseconds]:
    """Run tasks in a sequence, where each stands behind its parents, and return their starts."""
    ends = [0] * problem.num_tasks
    starts = [0] * problem.num_tasks
    free = [0] * problem.num_devices
    cost, link, travel, parents = problem.cost, problem.link, problem.travel, problem.parents
    for task in sequence:
        host = hosts[task]
        start = free[host]
        row = link[host]
        for parent, edge in parents[task]:
            came = ends[parent] + travel[edge][row[hosts[parent]]]
            if came > start:
                start = came
        starts[task] = start
        free[host] = ends[task] = start + cost[task][host]
    return starts


def makespan(problem: TaskProblem, hosts: Sequence[int], starts: Sequence[Nanoseconds]) -> Nanoseconds:
    """Return when the last task ends."""
    return max(start + problem.cost[task][hosts[task]] for task, start in enumerate(starts))


def critical(
    problem: TaskProblem, hosts: Sequence[int], starts: Sequence[Nanoseconds]
) -> list[tuple[int, bool]]:
    """List a chain of tasks that decides the makespan, the last first.

    Returns:
        (task, whether its device let it wait) pairs; otherwise a message did, or nothing.
    """
    ends = [start + problem.cost[task][hosts[task]] for task, start in enumerate(starts)]
    last_on = {(hosts[task], end): task for task, end in enumerate(ends) if end > starts[task]}
    chain: list[tuple[int, bool]] = []
    task = max(range(len(ends)), key=ends.__getitem__)
    while True:
        host = hosts[task]
        came = [
            parent
            for parent, edge in problem.parents[task]
            if ends[parent] + problem.travel[edge][problem.link[host][hosts[parent]]] == starts[task]
        ]
        before = last_on.get((host, starts[task])) if not came or starts[task] else None
        chain.append((task, bool(not came and before is not None)))
        follow = came[0] if came else before
        if follow is None or len(chain) > len(ends):
            return chain
        task = follow
