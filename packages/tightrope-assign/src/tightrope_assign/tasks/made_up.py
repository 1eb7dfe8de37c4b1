"""Task graphs and clusters that are drawn: what policies are trained on, and what methods are compared on.

Layers of tasks, as in HEFT's generator; devices that each support few kinds of tasks, as in GiPH's.
"""

import random

from tightrope_assign.values.cluster import Cluster, PairLink, PlaceDevice
from tightrope_assign.values.tasks import PlaceTask, TaskEdge, TaskGraph

KINDS = 5


def made_up_graph(num_tasks: int, *, seed: int = 0, bytes: int = 0, shape: float = 1.0) -> TaskGraph:
    """Draw a graph: about ``sqrt(num_tasks) / shape`` layers, edges to later layers, work around 1e6 units.

    Args:
        num_tasks: tasks.
        seed: of everything drawn.
        bytes: mean bytes of a task; 0 = none.
        shape: width relative to depth.

    Example:
        >>> len(made_up_graph(12, seed=1).tasks)
        12
    """
    chance = random.Random(f"graph {seed}")
    depth = max(2, round(num_tasks**0.5 / shape))
    layer = sorted(chance.randrange(depth) for _ in range(num_tasks))
    tasks = tuple(
        PlaceTask(
            f"t{at}",
            chance.uniform(0.5e6, 1.5e6),
            chance.randint(bytes // 2, bytes * 3 // 2) if bytes else 0,
            f"k{chance.randrange(KINDS)}",
        )
        for at in range(num_tasks)
    )
    edges = []
    for at in range(num_tasks):
        before = [other for other in range(at) if layer[other] < layer[at]]
        near = [other for other in before if layer[other] == layer[before[-1]]] if before else []
        parents = set(chance.sample(near, min(len(near), chance.randint(1, 2))))
        if before and chance.random() < 0.3:
            parents.add(chance.choice(before))
        edges += [TaskEdge(f"t{p}", f"t{at}", chance.randint(50_000, 150_000)) for p in sorted(parents)]
    return TaskGraph(tasks, tuple(edges), f"made-up {num_tasks} {seed}")


def made_up_cluster(num_devices: int, *, seed: int = 0, bytes: int = 0, support: float = 0.2) -> Cluster:
    """Draw devices that each run some kinds of tasks at their rate. Every pair has its own link.

    Args:
        num_devices: devices.
        seed: of everything drawn.
        bytes: limit of each device; 0 = none.
        support: chance that a device runs a kind; each kind has a device, and each device a kind.
    """
    chance = random.Random(f"cluster {seed}")
    kinds = [{k for k in range(KINDS) if chance.random() < support} for _ in range(num_devices)]
    for one in kinds:
        if not one:
            one.add(chance.randrange(KINDS))
    for kind in range(KINDS):
        if not any(kind in one for one in kinds):
            chance.choice(kinds).add(kind)
    devices = tuple(made_up_device(f"d{at}", sorted(one), chance, bytes) for at, one in enumerate(kinds))
    pairs = tuple(made_up_link(a.name, b.name, chance) for at, a in enumerate(devices) for b in devices[:at])
    return Cluster(devices, (), pairs, f"made-up {num_devices} {seed}")


def made_up_device(name: str, kinds: list[int], chance: random.Random, bytes: int = 0) -> PlaceDevice:
    """Draw a device that runs the given kinds."""
    rate = 1e9 * chance.uniform(0.5, 1.5)
    return PlaceDevice(name, bytes, rate, {f"k{kind}": rate for kind in kinds})


def made_up_link(one: str, other: str, chance: random.Random) -> PairLink:
    """Draw the link of two devices."""
    return PairLink(one, other, chance.uniform(0.5e-4, 1.5e-4), 4e8 * chance.uniform(0.5, 1.5))
