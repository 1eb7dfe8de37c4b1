"""Where and when the tasks of a graph run, on devices with limits and links."""

from tightrope_assign.tasks.place import TaskOptions, place_tasks
from tightrope_assign.values.cluster import Cluster, PairLink, PlaceDevice, read_cluster
from tightrope_assign.values.tasks import PlacedTask, PlaceTask, TaskEdge, TaskGraph, TaskPlan

__all__ = [
    "Cluster",
    "PairLink",
    "PlaceDevice",
    "PlaceTask",
    "PlacedTask",
    "TaskEdge",
    "TaskGraph",
    "TaskOptions",
    "TaskPlan",
    "place_tasks",
    "read_cluster",
]
