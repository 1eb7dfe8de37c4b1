"""Train a policy by REINFORCE on drawn graphs and clusters.

Idea        Episodes of twice the tasks from random placements, several at once. The reward of a step is
            what the makespan loses, in mean times of a task; a running mean of returns at each step is the
            baseline.
Source      GiPH, MLSys 2023: discount 0.97, REINFORCE
Guarantee   Equal seeds give equal policies on one machine.
Complexity  2 n forward and backward passes per episode.
Gaps        One seed; a policy may be a little better or worse by chance.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tightrope_assign.fit import packed
from tightrope_assign.tasks.gpnet import OptionGraph
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph
from tightrope_assign.tasks.policy import OptionBatch, PlacementPolicy, move
from tightrope_assign.tasks.problem import TaskProblem, task_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How long and on what.

    Attributes:
        updates: of the weights.
        batch: episodes per update.
        tasks: fewest and most tasks of a graph.
        devices: fewest and most devices of a cluster.
        discount: of later rewards.
        rate: of Adam, falling to a tenth.
        entropy: weight of a bonus for undecided draws.
        seconds: of thread time, after which training ends; None = no limit.
        seed: of everything drawn.
    """

    updates: int = 300
    batch: int = 12
    tasks: tuple[int, int] = (10, 30)
    devices: tuple[int, int] = (10, 25)
    discount: float = 0.97
    rate: float = 3e-3
    entropy: float = 1e-3
    seconds: float | None = None
    seed: int = 0


TRAIN: Final = TrainOptions()


def train_policy(
    options: TrainOptions = TRAIN,
    progress: Callable[[int, float], None] | None = None,
    start: PlacementPolicy | None = None,
) -> PlacementPolicy:
    """Train a policy.

    Args:
        options: how long and on what.
        progress: called with the number of the update and the mean share of the makespan that is left.
        start: a policy to go on from, which is changed; None = a new one.
    """
    torch.manual_seed(options.seed)
    policy = PlacementPolicy() if start is None else start.train()
    adam = torch.optim.Adam(policy.parameters(), lr=options.rate)
    chance = random.Random(options.seed)
    baseline: list[float] = []
    until = None if options.seconds is None else time.thread_time() + options.seconds
    for update in range(options.updates):
        if until is not None and time.thread_time() > until:
            break
        graphs = [OptionGraph(problem, random_hosts(problem, chance)) for problem in _draw(options, chance)]
        before = [graph.makespan for graph in graphs]
        loss, left = _episode(policy, graphs, baseline, options)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in adam.param_groups:
            group["lr"] = options.rate * (1 - 0.9 * update / options.updates)
        adam.step()
        if progress is not None:
            progress(update, sum(a / b for a, b in zip(left, before, strict=True)) / len(left))
    return policy.eval()


def _draw(options: TrainOptions, chance: random.Random) -> list[TaskProblem]:
    """Draw problems of one size, so that all episodes are equally long; every fourth has limits on bytes."""
    tasks = chance.randint(*options.tasks)
    found = []
    for at in range(options.batch):
        devices, seed = chance.randint(*options.devices), chance.randrange(2**31)
        limited = at % 4 == 0
        graph = made_up_graph(tasks, seed=seed, bytes=1000 * limited, shape=chance.uniform(0.5, 2.0))
        room = max(1500, 3000 * tasks // devices) if limited else 0
        found.append(task_problem(graph, made_up_cluster(devices, seed=seed, bytes=room)))
    return found


def random_hosts(problem: TaskProblem, chance: random.Random) -> list[int]:
    """Draw a placement within the bytes: at random where that works, packed where not.

    Where packing finds none, each task is on its first device, above the bytes: moves can only mend that.
    """
    free, hosts = list(problem.room), []
    for task, able in enumerate(problem.options):
        fits = [device for device in able if problem.size[task] <= free[device]]
        if not fits:
            return packed(problem) or [able[0] for able in problem.options]
        hosts.append(chance.choice(fits))
        free[hosts[-1]] -= problem.size[task]
    return hosts


def _episode(
    policy: PlacementPolicy, graphs: list[OptionGraph], baseline: list[float], options: TrainOptions
) -> tuple[Tensor, list[float]]:
    """Run episodes side by side, and return the loss and the best makespans."""
    batch = OptionBatch(graphs)
    last = [-1] * len(graphs)
    best: list[float] = [graph.makespan for graph in graphs]
    logs, entropies, rewards = [], [], []
    for _ in range(2 * graphs[0].problem.num_tasks):
        scores = policy(batch)
        gains, chosen = [], []
        for at, graph in enumerate(graphs):
            able = torch.from_numpy(graph.allowed(last[at]))
            mine = scores[torch.from_numpy(batch.nodes[at])].masked_fill(~able, -1e9)
            spread = torch.log_softmax(mine, 0)
            node = int(torch.multinomial(spread.detach().exp(), 1))
            chosen.append(spread[node])
            entropies.append(-(spread.exp() * spread).sum())
            before = graph.makespan
            last[at] = move(graph, node)
            gains.append((before - graph.makespan) / graph.unit)
            best[at] = min(best[at], graph.makespan)
        logs.append(torch.stack(chosen))
        rewards.append(torch.tensor(gains))
    total = torch.zeros(len(graphs))
    loss = torch.zeros(())
    for step in reversed(range(len(rewards))):
        total = rewards[step] + options.discount * total
        while len(baseline) <= step:
            baseline.append(float(total.mean()))
        loss = loss - (logs[step] * (total - baseline[step])).mean()
        baseline[step] += 0.1 * (float(total.mean()) - baseline[step])
    return loss / len(rewards) - options.entropy * torch.stack(entropies).mean(), best
