"""Tasks that wait for each other, and plans that say where and when each runs.

device ^
     b |      [--B--]  [-D-]         an edge A -> B takes latency + bytes / bandwidth between devices,
     a | [-A-]   [---C---]           and nothing on one device
       +-----------------------> ns  half-open
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tightrope.core import Bytes, InfeasibleError, Nanoseconds, TightropeError
from tightrope.core.units import shown
from tightrope_assign.values.cluster import LARGEST, Cluster, unique_names

MOST_TASKS: Final = 20_000
MOST_EDGES: Final = 200_000


class PlaceTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that runs once, on one device, without a break.

    Attributes:
        name: unique in its graph.
        work: in the unit of a device's rate.
        bytes: that it takes on its device all the time, such as weights.
        needs: key of ``rates`` that its device must have; empty = any device, at ``rate``.
    """

    name: str
    work: float
    bytes: Bytes = 0
    needs: str = ""


class TaskEdge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one task sends another, which waits for it.

    Attributes:
        source: name of the task that sends.
        target: name of the task that waits.
        bytes: sent.
    """

    source: str
    target: str
    bytes: Bytes = 0


class TaskGraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks and edges, without a cycle."""

    tasks: tuple[PlaceTask, ...]
    edges: tuple[TaskEdge, ...] = ()
    name: str = "graph"
    schema: Literal[1] = 1


class PlacedTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when a task runs, ``[start, end)``."""

    task: str
    device: str
    start: Nanoseconds
    end: Nanoseconds


class TaskPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs where and when.

    Attributes:
        placed: every task once.
        makespan: when the last task ends.
        lower_bound: no plan ends earlier; the judge derives it from ``prices``.
        prices: per device, a weight of its time; empty = all alike.
        planner: what found it.
        proved: CP-SAT says that no plan ends earlier; the judge does not check that.
        moved_bytes: of tasks that change their device, in a plan that replaces another.
        seed: of everything random.
        schema: of the file.
    """

    placed: tuple[PlacedTask, ...]
    makespan: Nanoseconds
    lower_bound: Nanoseconds
    prices: tuple[int, ...] = ()
    planner: str = "heft"
    proved: bool = False
    moved_bytes: Bytes = 0
    seed: int = 0
    schema: Literal[1] = 1

    @property
    def gap(self) -> float:
        """Makespan relative to the bound, less one."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0


def check_tasks(graph: TaskGraph, cluster: Cluster) -> None:
    """Refuse graphs that cannot be, or that no device of the cluster can run.

    Raises:
        TightropeError: names the task or the edge, and quotes the value.
        InfeasibleError: a task takes more bytes than any device has that runs it.
    """
    where = f"graph {graph.name!r:.60}"
    if not 1 <= len(graph.tasks) <= MOST_TASKS or len(graph.edges) > MOST_EDGES:
        raise TightropeError(
            f"{where} has {len(graph.tasks)} tasks and {len(graph.edges)} edges: give 1 to {MOST_TASKS} "
            f"tasks and at most {MOST_EDGES} edges."
        )
    unique_names([graph.name], "graph")
    unique_names([task.name for task in graph.tasks], f"{where}: task")
    for task in graph.tasks:
        _check_task(where, task, cluster)
    names = {task.name for task in graph.tasks}
    pairs: set[tuple[str, str]] = set()
    for edge in graph.edges:
        one = f"{where}, edge {edge.source!r:.60} -> {edge.target!r:.60}"
        for end in (edge.source, edge.target):
            if end not in names:
                raise TightropeError(f"{one}: no task is called {end!r:.60}: name one that is there.")
        if (edge.source, edge.target) in pairs:
            raise TightropeError(f"{one} is there twice: add their bytes up in one edge.")
        pairs.add((edge.source, edge.target))
        if not 0 <= edge.bytes <= LARGEST:
            raise TightropeError(f"{one}: bytes={shown(edge.bytes)}: give 0 to 2^53.")
    if cycle := find_cycle(graph):
        raise TightropeError(
            f"{where}: {' -> '.join(cycle)[:300]} is a cycle: no task of it could start. Take one edge out."
        )


def _check_task(where: str, task: PlaceTask, cluster: Cluster) -> None:
    one = f"{where}, task {task.name!r:.60}"
    if not 0 <= task.work <= 1e21:
        raise TightropeError(f"{one}: work={shown(task.work)}: give a number from 0 to 1e21.")
    if not 0 <= task.bytes <= LARGEST:
        raise TightropeError(f"{one}: bytes={shown(task.bytes)}: give 0 to 2^53.")
    able = [device for device in cluster.devices if not task.needs or task.needs in device.rates]
    if not able:
        raise TightropeError(
            f"{one} needs {task.needs!r:.60}, which no device has: add it to the rates of a device."
        )
    largest = max((device.bytes or LARGEST) for device in able)
    if task.bytes > largest:
        raise InfeasibleError(
            f"{one} takes {task.bytes} bytes; no device that can run it has more than {largest}. Divide it.",
            asked=largest,
            lower_bound=task.bytes,
        )
    for device in able:
        if 1e9 * task.work / (device.rates[task.needs] if task.needs else device.rate) > LARGEST:
            raise TightropeError(
                f"{one}: work={shown(task.work)} takes {device.name!r:.60} more than 2^53 ns: give less work."
            )


def find_cycle(graph: TaskGraph) -> list[str]:
    """Find tasks that wait for each other; empty without a cycle."""
    waiting = {task.name: 0 for task in graph.tasks}
    after: dict[str, list[str]] = {task.name: [] for task in graph.tasks}
    before: dict[str, list[str]] = {task.name: [] for task in graph.tasks}
    for edge in graph.edges:
        waiting[edge.target] += 1
        after[edge.source].append(edge.target)
        before[edge.target].append(edge.source)
    ready = [name for name, count in waiting.items() if not count]
    while ready:
        for name in after[ready.pop()]:
            waiting[name] -= 1
            if not waiting[name]:
                ready.append(name)
    left = {name for name, count in waiting.items() if count}
    if not left:
        return []
    path = [min(left)]
    while path.count(path[-1]) < 2:
        path.append(next(name for name in before[path[-1]] if name in left))
    return path[path.index(path[-1]) :][::-1]


def hosts_of(graph: TaskGraph, cluster: Cluster, placed: Sequence[PlacedTask]) -> dict[str, int]:
    """Find the position of every task's device; tasks on devices that are not there are left out."""
    position = {name: at for at, name in enumerate(cluster.names)}
    names = {task.name for task in graph.tasks}
    return {one.task: position[one.device] for one in placed if one.device in position and one.task in names}
