"""A policy that moves one task at a time, for clusters that change.

Idea        Options exchange messages along the edges of gpNet, level by level in both directions; a score per
            option; one task moves to the option that is drawn. The best placement seen is kept.
Source      GiPH, MLSys 2023: embeddings of 10, layers of 16, one relocation a step
Guarantee   Every placement is within the bytes, where the first one is; never worse than the first.
Complexity  O(edges * devices) a step.
Gaps        Trained on drawn graphs of 10 to 36 tasks. From random starts, workflows of 57 to 108 tasks end
            9 % above HEFT.
"""

import itertools
from collections.abc import Sequence
from importlib.resources import files
from typing import Final, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from tightrope.core import Nanoseconds, PlanFileError, TightropeError
from tightrope_assign.tasks.gpnet import EDGE_FEATURES, NODE_FEATURES, OptionGraph
from tightrope_assign.tasks.problem import TaskProblem
from tightrope_assign.values.files import parse_value, read_value

EMBEDDING: Final = 10
HIDDEN: Final = 16


class PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trained policy.

    Attributes:
        weights: numbers by the name of the parameter, row by row.
        trained: how, for people.
        features: numbers per node and edge that it reads.
        schema: of the file.
    """

    weights: dict[str, list[float]]
    trained: str
    features: tuple[int, int] = (NODE_FEATURES, EDGE_FEATURES)
    schema: Literal[1] = 1


class OptionBatch:
    """Several option graphs side by side, with the indices that the network needs."""

    def __init__(self, graphs: Sequence[OptionGraph]) -> None:
        self.graphs = graphs
        level = np.concatenate([graph.level for graph in graphs])
        owner = np.concatenate([np.full(len(graph.level), at) for at, graph in enumerate(graphs)])
        order = np.argsort(level, kind="stable")
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order))
        bases = np.cumsum([0, *(len(graph.level) for graph in graphs)])
        self.nodes = [self.place[bases[at] : bases[at + 1]] for at in range(len(graphs))]
        self.owner = torch.from_numpy(owner[order])
        self.bounds = np.searchsorted(level[order], np.arange(level.max() + 2)).tolist()
        self.cuts = [self._cuts(graph) for graph in graphs]

    @staticmethod
    def _cuts(graph: OptionGraph) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
        """Levels of both ends of all edges: into options, then from options."""
        task_level = np.zeros(graph.problem.num_tasks, np.int64)
        task_level[graph.node_task] = graph.level
        (_, parent, to), (_, child, of) = graph.into, graph.out
        return (
            np.concatenate([task_level[parent], graph.level[of]]),
            np.concatenate([graph.level[to], task_level[child]]),
        )

    def look(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return node features, edge features, sources, targets, and levels (from, to) of edges."""
        nodes = np.empty((len(self.place), NODE_FEATURES), np.float32)
        rows, sources, targets, levels = [], [], [], []
        for at, graph in enumerate(self.graphs):
            node, into, out = graph.look()
            place = self.nodes[at]
            nodes[place] = node
            (_, parent, to), (_, child, of) = graph.into, graph.out
            keep = np.concatenate([np.ones(len(to), bool), of != graph.pivots[graph.node_task[of]]])
            sources.append(np.concatenate([place[graph.pivots[parent]], place[of]])[keep])
            targets.append(np.concatenate([place[to], place[graph.pivots[child]]])[keep])
            rows.append(np.concatenate([into, out])[keep])
            levels.append(np.stack(self.cuts[at])[:, keep])
        source, target, row, level = (
            np.concatenate(one, -1 if one is levels else 0) for one in (sources, targets, rows, levels)
        )
        return (*map(torch.from_numpy, (nodes, row, source, target, level)),)  # type: ignore[return-value]


class PlacementPolicy(nn.Module):
    """Scores of all options."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList([_Direction() for _ in range(2)])
        self.score = nn.Sequential(
            nn.Linear(2 * EMBEDDING + NODE_FEATURES, 2 * HIDDEN), nn.ReLU(), nn.Linear(2 * HIDDEN, 1)
        )

    def forward(self, batch: OptionBatch) -> Tensor:
        """Return a score per node, in the order of the batch."""
        nodes, rows, source, target, level = batch.look()
        with_parents = self.ways[0](nodes, rows, (source, target, level[1]), batch.bounds)
        # levels from the last on: number the nodes from the other end
        last, flipped = len(nodes) - 1, [len(nodes) - one for one in reversed(batch.bounds)]
        top = len(batch.bounds) - 2
        back = self.ways[1](nodes.flip(0), rows, (last - target, last - source, top - level[0]), flipped)
        scores: Tensor = self.score(torch.cat([with_parents, back.flip(0), nodes], 1)).squeeze(1)
        return scores


class _Direction(nn.Module):
    """Messages along edges, level by level: mean over edges, then an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.of_node = nn.Linear(EMBEDDING, HIDDEN)
        self.of_edge = nn.Linear(EDGE_FEATURES, HIDDEN, bias=False)
        self.embed = nn.Linear(NODE_FEATURES + HIDDEN, EMBEDDING)

    def forward(
        self, nodes: Tensor, rows: Tensor, edges: tuple[Tensor, Tensor, Tensor], bounds: Sequence[int]
    ) -> Tensor:
        source, target, level = edges
        order = torch.argsort(level, stable=True)
        source, target, level = source[order], target[order], level[order]
        along = self.of_edge(rows[order])
        count = torch.bincount(target, minlength=len(nodes)).clamp(min=1).unsqueeze(1)
        cuts = torch.searchsorted(level, torch.arange(len(bounds))).tolist()
        sent: list[Tensor] = []
        found: list[Tensor] = []
        for at, (first, last) in enumerate(itertools.pairwise(bounds)):
            mean = nodes.new_zeros(last - first, HIDDEN)
            low, high = cuts[at], cuts[at + 1]
            if high > low:
                message = torch.relu(torch.cat(sent)[source[low:high]] + along[low:high])
                mean = mean.index_add(0, target[low:high] - first, message) / count[first:last]
            found.append(torch.relu(self.embed(torch.cat([nodes[first:last], mean], 1))))
            sent.append(self.of_node(found[-1]))
        return torch.cat(found)


def run_policy(
    problem: TaskProblem,
    policy: PlacementPolicy,
    hosts: Sequence[int],
    *,
    steps: int | None = None,
    seed: int = 0,
) -> tuple[list[int], list[Nanoseconds]]:
    """Move tasks, one a step, and return hosts and starts of the best placement seen.

    Args:
        problem: tasks and devices.
        policy: trained.
        hosts: of a placement within the bytes.
        steps: moves; None = twice the tasks.
        seed: of the draws.
    """
    graph = OptionGraph(problem, hosts)
    batch = OptionBatch([graph])
    draws = torch.Generator().manual_seed(seed)
    best = (graph.makespan, graph.hosts, graph.starts)
    last = -1
    with torch.inference_mode():
        for _ in range(2 * problem.num_tasks if steps is None else steps):
            able = torch.from_numpy(graph.allowed(last))
            if not able.any():
                break
            scores = policy(batch)[torch.from_numpy(batch.nodes[0])].masked_fill(~able, -torch.inf)
            if not scores[able].isfinite().all():
                raise TightropeError("the policy's weights give scores that are no numbers: train it anew.")
            node = int(torch.multinomial(torch.softmax(scores, 0), 1, generator=draws))
            last = move(graph, node)
            if graph.makespan < best[0]:
                best = (graph.makespan, graph.hosts, graph.starts)
    return best[1], best[2]


def move(graph: OptionGraph, node: int) -> int:
    """Move the task of a node to its device, and return the task."""
    task = int(graph.node_task[node])
    hosts = list(graph.hosts)
    hosts[task] = int(graph.node_device[node])
    graph.move_to(hosts)
    return task


def save_policy(policy: PlacementPolicy, trained: str) -> PolicyFile:
    """Write a policy as plain numbers."""
    state = policy.state_dict()
    weights = {name: [round(x, 5) for x in one.flatten().tolist()] for name, one in state.items()}
    return PolicyFile(weights, trained)


def load_policy(path: str = "") -> PlacementPolicy:
    """Read a policy from a file; empty = the one that comes with the package.

    Raises:
        PlanFileError: it is no policy of this version; says what and where.
    """
    if path:
        found = read_value(path, PolicyFile, "policy")
    else:
        data = files("tightrope_assign.tasks").joinpath("policy.json").read_bytes()
        found = parse_value(data, PolicyFile, "policy")
    policy = PlacementPolicy()
    state = policy.state_dict()
    if found.features != (NODE_FEATURES, EDGE_FEATURES) or set(found.weights) != set(state):
        raise PlanFileError(
            f"policy {path!r:.200} reads {list(found.features)} features, this version has "
            f"{[NODE_FEATURES, EDGE_FEATURES]}. Train it again, by train_policy."
        )
    for name, one in state.items():
        if len(found.weights[name]) != one.numel():
            raise PlanFileError(
                f"policy {path!r:.200}: {name} has {len(found.weights[name])} numbers, not {one.numel()}."
            )
    policy.load_state_dict(
        {name: torch.tensor(found.weights[name]).view_as(one) for name, one in state.items()}
    )
    return policy.eval()
