"""A placement as a graph of options, which a policy reads.

Idea        A node per task and device that can run it; those of the current placement are pivots. Edges go
            from a parent's pivot to every option of the child, and from every option of the parent to the
            child's pivot. Options without bytes left are nodes too, and cannot be chosen.
Source      gpNet of GiPH, MLSys 2023; the features `through` and `bytes`, and the mask by bytes, are ours
Guarantee   An option that may be chosen is within the bytes of its device.
Complexity  O(edges * devices) for a placement.
Gaps        `through` leaves out what the move does to other tasks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tightrope.core import Nanoseconds
from tightrope_assign.tasks.heft import by_rank
from tightrope_assign.tasks.problem import TaskProblem
from tightrope_assign.tasks.simulate import makespan, simulate
from tightrope_assign.values.cluster import LARGEST

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

NODE_FEATURES: Final = 11
EDGE_FEATURES: Final = 4


class OptionGraph:
    """The options of a problem, and what they look like at a placement.

    Attributes:
        problem: tasks and devices.
        node_task: task of every node; nodes are sorted by the level of their task.
        node_device: likewise, device.
        level: of every node: the longest way in edges from a task without parents.
        hosts: the placement.
        starts: when tasks run, by queues in the order of their rank.
        makespan: of the placement.
    """

    def __init__(self, problem: TaskProblem, hosts: Sequence[int]) -> None:
        self.problem = problem
        depth = [0] * problem.num_tasks
        for task in problem.order:
            depth[task] = max((depth[p] + 1 for p, _ in problem.parents[task]), default=0)
        pairs = sorted((depth[t], t, d) for t, able in enumerate(problem.options) for d in able)
        self.level: Ints = np.array([level for level, _, _ in pairs])
        self.node_task: Ints = np.array([task for _, task, _ in pairs])
        self.node_device: Ints = np.array([device for _, _, device in pairs])
        self.node_of = {(task, device): at for at, (_, task, device) in enumerate(pairs)}
        nodes: list[list[int]] = [[] for _ in range(problem.num_tasks)]
        for at, task in enumerate(self.node_task.tolist()):
            nodes[task].append(at)
        self._tables(nodes)
        self.priority = [0] * problem.num_tasks
        for at, task in enumerate(by_rank(problem)):
            self.priority[task] = at
        self.move_to(hosts)

    def _tables(self, nodes: Sequence[Sequence[int]]) -> None:
        """Lay out what no placement changes: (edge, other task, node) for options behind and before edges."""
        problem = self.problem
        into = [(e, p, n) for t, rows in enumerate(problem.parents) for p, e in rows for n in nodes[t]]
        out = [(e, c, n) for t, rows in enumerate(problem.children) for c, e in rows for n in nodes[t]]
        self.into: Ints = np.array(into, np.int64).reshape(-1, 3).T
        self.out: Ints = np.array(out, np.int64).reshape(-1, 3).T
        self._travel = np.array(problem.travel or ((0,),), np.float64)
        self._link: Ints = np.array(problem.link)
        cost = np.array(problem.cost, np.float64)
        self._cost = cost[self.node_task, self.node_device]
        means = np.array([row[row >= 0].mean() for row in cost])
        self._mean = means[self.node_task]
        self.unit = max(float(means.mean()), 1.0)
        self._size: Ints = np.array(problem.size)[self.node_task]
        self._sent = np.log1p(np.array([edge.bytes for edge in problem.graph.edges], np.float64)) / 37

    def move_to(self, hosts: Sequence[int]) -> None:
        """Take a placement, and simulate it."""
        self.hosts = list(hosts)
        self.starts = simulate(self.problem, self.hosts, self.priority)
        self.makespan = makespan(self.problem, self.hosts, self.starts)
        self.pivots: Ints = np.array([self.node_of[t, d] for t, d in enumerate(self.hosts)])

    def allowed(self, last: int) -> NDArray[np.bool_]:
        """Tell which nodes may be chosen: no pivot, not the task moved last, and within the bytes."""
        left = np.array(self.problem.free(self.hosts))
        able: NDArray[np.bool_] = (self._size <= left[self.node_device]) & (self.node_task != last)
        able[self.pivots] = False
        return able

    def look(self) -> tuple[Floats, Floats, Floats]:
        """Describe the placement.

        Returns:
            Features of nodes, of edges into all options, of edges from all options; as ``into``, ``out``.
        """
        problem, unit = self.problem, self.unit
        hosts: Ints = np.array(self.hosts)
        start = np.array(self.starts, np.float64)
        end = start + self._cost[self.pivots]
        tail = self._tails(end)
        (e_in, parent, to), (e_out, child, of) = self.into, self.out
        took = (
            self._travel[e_in, self._link[hosts[parent], self.node_device[to]]] if len(e_in) else np.zeros(0)
        )
        takes = (
            self._travel[e_out, self._link[self.node_device[of], hosts[child]]] if len(e_out) else np.zeros(0)
        )
        come, go = np.zeros(len(self.node_task)), np.zeros(len(self.node_task))
        np.maximum.at(come, to, end[parent] + took)
        np.maximum.at(go, of, takes + tail[child])
        done = self._earliest(come, end)
        through = done + go
        mine = self.node_task
        load = np.bincount(hosts, self._cost[self.pivots], problem.num_devices) / max(self.makespan, 1)
        room = np.array(problem.room, np.float64)
        left = np.array(problem.free(self.hosts)) / np.where(room < LARGEST, room, np.inf)
        pivot = np.zeros(len(mine))
        pivot[self.pivots] = 1
        slack = self.makespan - start - tail
        node = np.stack(
            [
                _squash(self._mean / unit),
                _squash(self._cost / unit),
                (self._cost - self._mean) / self._mean.clip(1),
                _squash((come - start[mine]) / unit),
                _squash((done - end[mine]) / unit),
                _squash((through - self.makespan) / unit),
                _squash(slack[mine] / unit),
                (slack[mine] <= 0).astype(np.float64),
                pivot,
                load[self.node_device],
                left[self.node_device],
            ],
            1,
        )
        edges = [
            np.stack([self._sent[e], _squash(way / unit), _squash(gap / unit), pivot[n]], 1)
            for e, way, gap, n in (
                (e_in, took, start[mine[to]] - end[parent] - took, to),
                (e_out, takes, start[child] - end[mine[of]] - takes, of),
            )
        ]
        return node.astype(np.float32), edges[0].astype(np.float32), edges[1].astype(np.float32)

    def _tails(self, end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what follows each task's start at least, by messages and by the queue of its device."""
        problem, hosts = self.problem, self.hosts
        tail = np.zeros(problem.num_tasks)
        after: list[float] = [0.0] * problem.num_devices
        place = {task: at for at, task in enumerate(problem.order)}
        for task in sorted(range(problem.num_tasks), key=lambda t: (-self.starts[t], -end[t], -place[t])):
            host = hosts[task]
            row = problem.link[host]
            most = after[host]
            for child, edge in problem.children[task]:
                most = max(most, tail[child] + problem.travel[edge][row[hosts[child]]])
            tail[task] = after[host] = problem.cost[task][host] + most
        return tail

    def _earliest(self, come: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return when each option's task could end in a gap of its device, which it may have left."""
        busy: list[list[tuple[Nanoseconds, float, int]]] = [[] for _ in range(self.problem.num_devices)]
        for task, host in enumerate(self.hosts):
            busy[host].append((self.starts[task], float(end[task]), task))
        for row in busy:
            row.sort()
        found = come + self._cost
        arrivals, costs = come.tolist(), self._cost.tolist()
        for at, (task, device) in enumerate(
            zip(self.node_task.tolist(), self.node_device.tolist(), strict=True)
        ):
            row, begin, takes = busy[device], arrivals[at], costs[at]
            first = max(0, bisect_right(row, (begin, 0.0, 0)) - 1)
            for start, until, other in row[first:]:
                if other == task or until <= begin:
                    continue
                if begin + takes <= start:
                    break
                begin = until
            found[at] = begin + takes
        return found


def _squash(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bring values into (-1, 1)."""
    squashed: NDArray[np.float64] = values / (1 + np.abs(values))
    return squashed
