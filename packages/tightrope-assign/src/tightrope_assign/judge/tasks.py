"""Check where and when tasks run.

Idea        Every task once, on a device that has what it needs, for the time that its work takes there. No
            two at once on a device; nothing starts before its messages arrive; bytes are summed by device.
            Then the makespan and the bound are derived anew.
Guarantee   Passes exactly when the plan can run as written and its figures follow from it.
Complexity  O(n log n + edges * devices^2).
Gaps        Links carry any number of messages at once. That CP-SAT proved an optimum is not checked.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tightrope.core import DeviceLink, JudgeError, Nanoseconds
from tightrope_assign.judge.items import check_bytes, check_devices, check_figure, check_names
from tightrope_assign.values.cluster import Cluster, link_table
from tightrope_assign.values.tasks import PlacedTask, PlaceTask, TaskEdge, TaskGraph, TaskPlan

_MOST_PAIRS = 50_000_000
"""Device pairs times edges, above which the bound leaves messages out."""


def check_task_plan(
    graph: TaskGraph, cluster: Cluster, plan: TaskPlan, *, replaces: TaskPlan | None = None
) -> None:
    """Refuse a plan that is wrong.

    Args:
        graph: the tasks.
        cluster: the devices.
        plan: where and when they run.
        replaces: the plan before, where bytes that move are counted.

    Raises:
        JudgeError: names the task, the device or the figure.
    """
    check_names((task.name for task in graph.tasks), (one.task for one in plan.placed), "task")
    check_devices(cluster, ((one.task, one.device) for one in plan.placed), "task")
    where = {one.task: one for one in plan.placed}
    _check_times(graph, cluster, where)
    _check_overlap(plan)
    _check_messages(graph, cluster, where)
    held: dict[str, int] = {}
    for task in graph.tasks:
        device = where[task.name].device
        held[device] = held.get(device, 0) + task.bytes
    check_bytes(cluster, held)
    check_figure("makespan", plan.makespan, max(one.end for one in plan.placed))
    check_figure(
        "lower_bound", plan.lower_bound, max(_path_bound(graph, cluster), _load_bound(graph, cluster, plan))
    )
    if plan.makespan < plan.lower_bound:
        raise JudgeError(f"makespan {plan.makespan} is below the bound {plan.lower_bound}.")
    if replaces is not None:
        before = {one.task: one.device for one in replaces.placed}
        moved = sum(task.bytes for task in graph.tasks if before.get(task.name) != where[task.name].device)
        check_figure("moved_bytes", plan.moved_bytes, moved)


def _time(task: PlaceTask, cluster: Cluster, device: int) -> Nanoseconds | None:
    """Nanoseconds of a task on a device; None where it does not run."""
    one = cluster.devices[device]
    rate = one.rates.get(task.needs) if task.needs else one.rate
    return None if rate is None else math.ceil(1e9 * task.work / rate)


def _check_times(graph: TaskGraph, cluster: Cluster, where: dict[str, PlacedTask]) -> None:
    position = {name: at for at, name in enumerate(cluster.names)}
    for task in graph.tasks:
        one = where[task.name]
        takes = _time(task, cluster, position[one.device])
        if takes is None:
            raise JudgeError(
                f"task {task.name!r:.60} needs {task.needs!r:.60}, and {one.device!r:.60} has none."
            )
        if one.start < 0 or one.end - one.start != takes:
            raise JudgeError(f"task {task.name!r:.60} runs [{one.start}, {one.end}); there it takes {takes}.")


def _check_overlap(plan: TaskPlan) -> None:
    last: dict[str, PlacedTask] = {}
    for one in sorted(plan.placed, key=lambda one: (one.start, one.end)):
        if one.end > one.start:
            before = last.get(one.device)
            if before is not None and before.end > one.start:
                raise JudgeError(
                    f"tasks {before.task!r:.60} and {one.task!r:.60} run on {one.device!r:.60} at once."
                )
            last[one.device] = one


def _takes(link: DeviceLink | None, edge: TaskEdge) -> Nanoseconds:
    return 0 if link is None else math.ceil(1e9 * link.latency + 1e9 * edge.bytes / link.bandwidth)


def _check_messages(graph: TaskGraph, cluster: Cluster, where: dict[str, PlacedTask]) -> None:
    table = link_table(cluster)
    position = {name: at for at, name in enumerate(cluster.names)}
    for edge in graph.edges:
        source, target = where[edge.source], where[edge.target]
        link = table[position[source.device]][position[target.device]]
        if source.end + _takes(link, edge) > target.start:
            raise JudgeError(
                f"task {edge.target!r:.60} starts at {target.start}; {edge.source!r:.60} sends until "
                f"{source.end + _takes(link, edge)}."
            )


def _load_bound(graph: TaskGraph, cluster: Cluster, plan: TaskPlan) -> Nanoseconds:
    """Bound the makespan: a weighted sum of device times is at most the makespan times the weights' sum."""
    prices = plan.prices or (1,) * len(cluster.devices)
    if len(prices) != len(cluster.devices) or min(prices) < 0 or sum(prices) < 1:
        raise JudgeError(f"the plan has {len(prices)} prices: one of at least 0 is wanted per device.")
    total = 0
    for task in graph.tasks:
        times = [_time(task, cluster, at) for at in range(len(prices))]
        total += min(price * time for price, time in zip(prices, times, strict=True) if time is not None)
    return -(-total // sum(prices))


def _path_bound(graph: TaskGraph, cluster: Cluster) -> Nanoseconds:
    """Bound the makespan by chains of tasks, where a task may choose its device anew for each reader."""
    table = link_table(cluster)
    num = len(cluster.devices)
    latency = np.array([[one.latency if one else 0.0 for one in row] for row in table])
    bandwidth = np.array([[one.bandwidth if one else np.inf for one in row] for row in table])
    if num * num * len(graph.edges) > _MOST_PAIRS:
        latency, bandwidth = np.zeros((num, num)), np.full((num, num), np.inf)
    times = {task.name: np.array(_times_of(task, cluster)) for task in graph.tasks}
    before: dict[str, list[TaskEdge]] = {task.name: [] for task in graph.tasks}
    after: dict[str, list[TaskEdge]] = {task.name: [] for task in graph.tasks}
    for edge in graph.edges:
        before[edge.target].append(edge)
        after[edge.source].append(edge)
    order = _order(before)
    heads: dict[str, NDArray[np.float64]] = {}
    tails: dict[str, NDArray[np.float64]] = {}
    for ends, names, edges in ((heads, order, before), (tails, order[::-1], after)):
        for name in names:
            ends[name] = times[name]
            begin = np.zeros(num)
            for edge in edges[name]:
                other = ends[edge.source if ends is heads else edge.target]
                came = other + np.ceil(
                    1e9 * latency + 1e9 * edge.bytes / bandwidth
                )  # (this device, that device)
                begin = np.maximum(begin, came.min(axis=1))
            ends[name] = begin + times[name]
    able = {name: np.isfinite(row) for name, row in times.items()}
    return int(max((heads[n][able[n]] + tails[n][able[n]] - times[n][able[n]]).min() for n in order))


def _times_of(task: PlaceTask, cluster: Cluster) -> list[float]:
    times = (_time(task, cluster, at) for at in range(len(cluster.devices)))
    return [math.inf if time is None else time for time in times]


def _order(before: dict[str, list[TaskEdge]]) -> list[str]:
    """List tasks behind all that they wait for."""
    done: dict[str, None] = {}
    waiting = list(before)[::-1]
    while waiting:
        name = waiting[-1]
        missing = [edge.source for edge in before[name] if edge.source not in done]
        if missing:
            waiting += missing
        else:
            waiting.pop()
            done[name] = None
    return list(done)
