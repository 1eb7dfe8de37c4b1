"""Oracles that share nothing with the planners: a clock that ticks, and exhaustive search."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from tightrope_assign.tasks import Cluster, PairLink, PlaceDevice, PlaceTask, TaskEdge, TaskGraph


def small_case(
    seed: int, *, tasks: int = 4, devices: int = 2, bytes: bool = False, longest: int = 9
) -> tuple[TaskGraph, Cluster]:
    """Draw a graph whose times are a few nanoseconds."""
    chance = random.Random(seed)
    num = chance.randint(2, tasks)
    graph = TaskGraph(
        tuple(
            PlaceTask(
                f"t{at}",
                chance.randint(0, longest),
                chance.randint(0, 9) * bytes,
                chance.choice(("", "", "x")),
            )
            for at in range(num)
        ),
        tuple(
            TaskEdge(f"t{a}", f"t{b}", chance.randint(0, 6))
            for a, b in itertools.combinations(range(num), 2)
            if chance.random() < 0.4
        ),
    )
    machines = tuple(
        PlaceDevice(
            f"d{at}",
            chance.randint(12, 25) * bytes,
            chance.choice((1e9, 5e8, 3e8)),
            {"x": 1e9} if at == 0 else {},
        )
        for at in range(devices)
    )
    pairs = tuple(
        PairLink(a.name, b.name, chance.randint(0, 3) * 1e-9, chance.choice((1e9, 2e9)))
        for a, b in itertools.combinations(machines, 2)
    )
    return graph, Cluster(machines, (), pairs)


def ticking(graph: TaskGraph, cluster: Cluster, hosts: Sequence[int]) -> list[int]:
    """Let a clock tick: first come, first served; all times come from the values, in nanoseconds."""
    number = {task.name: at for at, task in enumerate(graph.tasks)}
    ends: dict[int, int] = {}
    starts: dict[int, int] = {}
    queues: list[list[tuple[int, int]]] = [[] for _ in cluster.devices]
    queued: set[int] = set()
    now = 0
    while len(ends) < len(graph.tasks):
        changed = True
        while changed:  # within one instant: end, arrive, start
            changed = False
            for at in starts:
                if at not in ends and starts[at] + takes(graph, cluster, at, hosts[at]) == now:
                    ends[at], changed = now, True
            for at in range(len(graph.tasks)):
                into = [edge for edge in graph.edges if edge.target == f"t{at}"]
                if at in queued or any(number[edge.source] not in ends for edge in into):
                    continue
                arrival = max(
                    (ends[number[e.source]] + travels(cluster, e, hosts, number) for e in into), default=0
                )
                if arrival <= now:
                    queues[hosts[at]].append((arrival, at))
                    queued.add(at)
                    changed = True
            if changed:
                continue
            for device, queue in enumerate(queues):
                running = [at for at in starts if at not in ends and hosts[at] == device]
                if queue and not running:
                    first = min(queue)
                    queue.remove(first)
                    starts[first[1]], changed = now, True
        now += 1
    return [starts[at] for at in range(len(graph.tasks))]


def takes(graph: TaskGraph, cluster: Cluster, task: int, device: int) -> int:
    """Nanoseconds of a task, rounded up."""
    one, where = graph.tasks[task], cluster.devices[device]
    rate = where.rates[one.needs] if one.needs else where.rate
    return math.ceil(1e9 * one.work / rate)


def travels(cluster: Cluster, edge: TaskEdge, hosts: Sequence[int], number: dict[str, int]) -> int:
    """Nanoseconds of a message."""
    names = {cluster.names[hosts[number[edge.source]]], cluster.names[hosts[number[edge.target]]]}
    if len(names) == 1:
        return 0
    (link,) = (pair for pair in cluster.pairs if {pair.one, pair.other} == names)
    return math.ceil(1e9 * link.latency + 1e9 * edge.bytes / link.bandwidth)


def assignments(graph: TaskGraph, cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """List every assignment within needs and bytes."""
    for hosts in itertools.product(range(len(cluster.devices)), repeat=len(graph.tasks)):
        held = [0] * len(cluster.devices)
        for task, host in zip(graph.tasks, hosts, strict=True):
            held[host] += task.bytes
        able = all(
            not task.needs or task.needs in cluster.devices[host].rates
            for task, host in zip(graph.tasks, hosts, strict=True)
        )
        if able and all(not d.bytes or h <= d.bytes for d, h in zip(cluster.devices, held, strict=True)):
            yield hosts


def brute_force(graph: TaskGraph, cluster: Cluster) -> int | None:
    """Find the smallest makespan over all assignments and all orders; None where no assignment fits."""
    number = {task.name: at for at, task in enumerate(graph.tasks)}
    best: int | None = None
    for hosts in assignments(graph, cluster):
        length = [takes(graph, cluster, at, host) for at, host in enumerate(hosts)]
        way = {(e.source, e.target): travels(cluster, e, hosts, number) for e in graph.edges}
        for order in itertools.permutations(range(len(hosts))):
            ends: dict[int, int] = {}
            free = [0] * len(cluster.devices)
            for at in order:
                into = [e for e in graph.edges if number[e.target] == at]
                if any(number[e.source] not in ends for e in into):
                    break
                start = max(
                    [free[hosts[at]], *(ends[number[e.source]] + way[e.source, e.target] for e in into)]
                )
                free[hosts[at]] = ends[at] = start + length[at]
            else:
                best = max(ends.values()) if best is None else min(best, max(ends.values()))
    return best
