"""A plan of tasks for people: devices over time, what each holds, who talks to whom."""

from typing import Any

from tightrope.core import format_bytes
from tightrope.core.units import format_time
from tightrope_assign.page import device_page
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.tasks import TaskGraph, TaskPlan
from tightrope_shared.draw import Bar, Lane


def device_rows(graph: TaskGraph, cluster: Cluster, plan: TaskPlan) -> list[dict[str, Any]]:
    """List what each device holds and how long it works."""
    size = {task.name: task.bytes for task in graph.tasks}
    rows = []
    for device in cluster.devices:
        mine = [one for one in plan.placed if one.device == device.name]
        rows.append(
            {
                "device": device.name,
                "tasks": [one.task for one in sorted(mine, key=lambda one: one.start)],
                "bytes": sum(size[one.task] for one in mine),
                "limit": device.bytes or None,
                "busy_ns": sum(one.end - one.start for one in mine),
            }
        )
    return rows


def task_page(graph: TaskGraph, cluster: Cluster, plan: TaskPlan) -> str:
    """Draw a page: a lane per device, then bytes per device, then bytes between devices."""
    lanes = [
        Lane(
            name,
            tuple(
                Bar(
                    one.start / 1e6,
                    one.end / 1e6,
                    one.task,
                    f"{one.task}: {format_time(one.end - one.start)}",
                )
                for one in plan.placed
                if one.device == name
            ),
        )
        for name in cluster.names
    ]
    where = {one.task: one.device for one in plan.placed}
    sent: dict[tuple[str, str], list[int]] = {}
    for edge in graph.edges:
        if where[edge.source] != where[edge.target]:
            sent.setdefault((where[edge.source], where[edge.target]), []).append(edge.bytes)
    talks = [[a, b, str(len(sizes)), format_bytes(sum(sizes))] for (a, b), sizes in sorted(sent.items())]
    return device_page(
        f"{graph.name[:80]} on {cluster.name[:80]}",
        f"{graph.name} by {plan.planner}",
        lanes,
        "tasks",
        device_rows(graph, cluster, plan),
        talks,
    )
