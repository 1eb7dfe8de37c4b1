"""Task graphs to compare on: ours, those of anrg-saga's generators, and workflows of wfcommons.

The last two are there where the libraries are installed (``pip install --no-deps anrg-saga wfcommons``).
"""

import importlib.util
import random
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from tightrope_assign.tasks import Cluster, PairLink, PlaceDevice, PlaceTask, TaskEdge, TaskGraph
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph

Case: TypeAlias = tuple[TaskGraph, Cluster]
_UNIT = 1_000_000
_GB = 1_000_000_000


def made_up(num: int, tasks: int, devices: int, *, seed: int = 10**6) -> list[Case]:
    """Draw cases with seeds that no policy was trained on."""
    return [(made_up_graph(tasks, seed=s), made_up_cluster(devices, seed=s)) for s in range(seed, seed + num)]


def has_saga() -> bool:
    """Tell whether anrg-saga is installed."""
    return find_spec("saga") is not None


def saga_pairs(num: int) -> Iterator[tuple[Any, Any]]:
    """Draw networks and task graphs by anrg-saga: branching graphs of 2 to 4 levels, and chains."""
    import numpy as np
    from saga.utils.random_graphs import (
        get_branching_dag,
        get_chain_dag,
        get_diamond_dag,
        get_fork_dag,
        get_network,
    )
    from saga.utils.random_variable import UniformRandomVariable

    class Weight(UniformRandomVariable):
        """That of its generators; with numpy 2 their sample is an array, which its own graphs refuse."""

        def sample(self, num_samples: int = 1) -> float:
            return float(np.random.uniform(0.1, 1.0))

    weight = Weight(0.1, 1.0)
    for seed in range(num):
        np.random.seed(seed)
        kind = seed % 8
        if kind < 5:
            sizes = {"levels": 2 + kind % 3, "branching_factor": 2 + kind // 3}
            graph = get_branching_dag(**sizes, weight_distribution=weight)
        else:
            graph = (get_chain_dag, get_diamond_dag, get_fork_dag)[kind - 5](weight_distribution=weight)
        yield get_network(num_nodes=3 + seed % 6, weight_distribution=weight), graph


def of_saga(network: Any, graph: Any) -> Case:
    """Take a pair of anrg-saga as a graph and a cluster; a unit of its time is a millisecond."""
    tasks = tuple(PlaceTask(one.name, one.cost * _UNIT) for one in sorted(graph.tasks))
    edges = tuple(TaskEdge(e.source, e.target, round(e.size * _UNIT)) for e in sorted(graph.dependencies))
    devices = tuple(PlaceDevice(node.name, rate=node.speed * 1e9) for node in sorted(network.nodes))
    pairs = {
        tuple(sorted((edge.source, edge.target))): edge.speed
        for edge in network.edges
        if edge.source != edge.target
    }
    return TaskGraph(tasks, edges), Cluster(
        devices, (), tuple(PairLink(a, b, bandwidth=speed * 1e9) for (a, b), speed in sorted(pairs.items()))
    )


def workflows(num: int) -> list[Case]:
    """Build workflows of wfcommons on clusters of eight devices; empty where it is not installed."""
    if find_spec("wfcommons") is None:
        return []
    import numpy as np
    from wfcommons import WorkflowGenerator
    from wfcommons.wfchef import recipes

    kinds = [getattr(recipes, name) for name in sorted(dir(recipes)) if name.endswith("Recipe")]
    found: list[Case] = []
    for seed in range(num):
        random.seed(seed)
        np.random.seed(seed)
        for tasks in (60, 110, 160, 240):
            try:
                workflow = WorkflowGenerator(kinds[seed % len(kinds)].from_num_tasks(tasks)).build_workflow()
            except ValueError:  # the recipe has no graph as small
                continue
            found.append((_graph(workflow), _workers(seed)))
            break
    return found


def _graph(workflow: Any) -> TaskGraph:
    """Seconds become milliseconds of work; an edge sends the files that one writes and the other reads."""
    tasks = tuple(PlaceTask(name, max(one.runtime, 1e-3) * _UNIT) for name, one in workflow.tasks.items())
    edges = []
    for source, target in workflow.edges:
        written = {one.file_id: one.size for one in workflow.tasks[source].output_files}
        read = {one.file_id for one in workflow.tasks[target].input_files}
        edges.append(
            TaskEdge(source, target, sum(int(size) for name, size in written.items() if name in read) // 1000)
        )
    return TaskGraph(tasks, tuple(edges), workflow.name[:60])


def _workers(seed: int) -> Cluster:
    chance = random.Random(seed)
    devices = tuple(PlaceDevice(f"w{at}", rate=1e9 * chance.uniform(0.5, 2)) for at in range(8))
    pairs = tuple(
        PairLink(a.name, b.name, 1e-5, _GB * chance.uniform(0.5, 2))
        for at, a in enumerate(devices)
        for b in devices[:at]
    )
    return Cluster(devices, (), pairs)


@cache
def oracles(name: str = "assign_references") -> ModuleType:
    """Load the oracles of the tests."""
    folder = Path(__file__).parents[2] / "packages" / "tightrope-assign" / "tests"
    if str(folder) not in sys.path:  # oracles import each other
        sys.path.append(str(folder))
    file = folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
