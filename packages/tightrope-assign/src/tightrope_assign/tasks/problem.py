"""A task graph on a cluster as tables of whole numbers, which every planner reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, InfeasibleError, Nanoseconds, TightropeError
from tightrope_assign.values.cluster import LARGEST, Cluster, link_table, work_ns
from tightrope_assign.values.tasks import PlacedTask, TaskGraph, check_tasks

MOST_TRAVELS: Final = 40_000_000
"""Edges times kinds of links: 8 bytes or more each."""


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """Tasks, devices and links by position.

    Attributes:
        graph: where it comes from.
        cluster: likewise.
        cost: ns per task and device; -1 where the task cannot run.
        options: per task, the devices that can run it.
        parents: per task, (task, edge) that it waits for.
        children: likewise, that wait for it.
        order: every task behind its parents.
        link: per two devices, the kind of their link; 0 = the same device.
        travel: per edge and kind of link, ns.
        size: bytes per task.
        room: bytes per device; 2^53 where there is no limit.
    """

    graph: TaskGraph
    cluster: Cluster
    cost: tuple[tuple[Nanoseconds, ...], ...]
    options: tuple[tuple[int, ...], ...]
    parents: tuple[tuple[tuple[int, int], ...], ...]
    children: tuple[tuple[tuple[int, int], ...], ...]
    order: tuple[int, ...]
    link: tuple[tuple[int, ...], ...]
    travel: tuple[tuple[Nanoseconds, ...], ...]
    size: tuple[Bytes, ...]
    room: tuple[Bytes, ...]

    @property
    def num_tasks(self) -> int:
        """Tasks."""
        return len(self.cost)

    @property
    def num_devices(self) -> int:
        """Devices."""
        return len(self.room)

    def free(self, hosts: Sequence[int]) -> list[Bytes]:
        """Bytes that are left on every device; hosts of -1 take none."""
        left = list(self.room)
        for size, host in zip(self.size, hosts, strict=True):
            if host >= 0:
                left[host] -= size
        return left

    def placed(self, hosts: Sequence[int], starts: Sequence[Nanoseconds]) -> tuple[PlacedTask, ...]:
        """Write hosts and starts with the names of tasks and devices."""
        names = self.cluster.names
        return tuple(
            PlacedTask(task.name, names[host], start, start + self.cost[at][host])
            for at, (task, host, start) in enumerate(zip(self.graph.tasks, hosts, starts, strict=True))
        )


def task_problem(graph: TaskGraph, cluster: Cluster) -> TaskProblem:
    """Check a graph against a cluster, and compile both.

    Raises:
        TightropeError: they cannot be, or no device runs a task: says which.
        InfeasibleError: all tasks together take more bytes than the devices have.
    """
    check_tasks(graph, cluster)
    cost = tuple(
        tuple(
            work_ns(task.work, one.rates[task.needs] if task.needs else one.rate)
            if not task.needs or task.needs in one.rates
            else -1
            for one in cluster.devices
        )
        for task in graph.tasks
    )
    room = tuple(one.bytes or LARGEST for one in cluster.devices)
    size = tuple(task.bytes for task in graph.tasks)
    if sum(size) > sum(room):
        raise InfeasibleError(
            f"all tasks take {sum(size)} bytes, and the devices have {sum(room)}. Add devices or bytes.",
            asked=sum(room),
            lower_bound=sum(size),
        )
    options = tuple(
        tuple(d for d, ns in enumerate(row) if ns >= 0 and size[at] <= room[d]) for at, row in enumerate(cost)
    )
    position = {task.name: at for at, task in enumerate(graph.tasks)}
    parents: list[list[tuple[int, int]]] = [[] for _ in cost]
    children: list[list[tuple[int, int]]] = [[] for _ in cost]
    for number, edge in enumerate(graph.edges):
        source, target = position[edge.source], position[edge.target]
        parents[target].append((source, number))
        children[source].append((target, number))
    link, travel = _travels(graph, cluster)
    return TaskProblem(
        graph, cluster, cost, options, tuple(map(tuple, parents)), tuple(map(tuple, children)),
        _topological(parents, children), link, travel, size, room,
    )  # fmt: skip


def _travels(
    graph: TaskGraph, cluster: Cluster
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[Nanoseconds, ...], ...]]:
    kinds: dict[tuple[float, float], int] = {}
    link = tuple(
        tuple(
            0 if one is None else kinds.setdefault((one.latency, one.bandwidth), len(kinds) + 1)
            for one in row
        )
        for row in link_table(cluster)
    )
    if len(kinds) * len(graph.edges) > MOST_TRAVELS:
        raise TightropeError(
            f"{len(graph.edges)} edges over {len(kinds)} kinds of links: at most {MOST_TRAVELS} pairs. "
            "Give devices the same link where they have one."
        )
    travel = tuple(
        (0, *(math.ceil(1e9 * latency + 1e9 * edge.bytes / bandwidth) for latency, bandwidth in kinds))
        for edge in graph.edges
    )
    return link, travel


def _topological(
    parents: Sequence[Sequence[tuple[int, int]]], children: Sequence[Sequence[tuple[int, int]]]
) -> tuple[int, ...]:
    waiting = [len(row) for row in parents]
    order = [task for task, count in enumerate(waiting) if not count]
    for task in order:  # grows while it is read
        for child, _ in children[task]:
            waiting[child] -= 1
            if not waiting[child]:
                order.append(child)
    return tuple(order)
