"""What ranks run for these tests, and the models over a whole graph as dense matrices: no code is shared."""

import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tightrope.core import RankError
from tightrope_ranks.graphs.training import GraphTrainer
from tightrope_ranks.values.graphs import NodeGraph


def trained(rank: int, _: int, folder: str) -> list[Any]:
    """Run several trainings one after another in the same processes."""
    found = []
    for job in pickle.loads((Path(folder) / "jobs").read_bytes()):
        trainer, gradients = GraphTrainer(job[rank]), []
        for _ in range(trainer.options.epochs):
            trainer.epoch()
            gradients.append(
                {
                    name: one.grad.clone()
                    for name, one in trainer.layers.named_parameters()
                    if one.grad is not None
                }
            )
        told, sent, peak = trainer.result()
        found.append(({**told, "gradients": gradients[0]}, sent, peak))
    return found


def died(rank: int, _: int, folder: str, signal_: int) -> None:
    """Train for ever; rank 1 is killed or stopped in the middle, and the others say when they noticed."""
    trainer = GraphTrainer(pickle.loads((Path(folder) / "jobs").read_bytes())[0][rank])
    for epoch in range(10**6):
        if rank == 1 and epoch == 5:
            (Path(folder) / "lost").write_text(f"{os.getpid()} {time.time()}")
            os.kill(os.getpid(), signal_)
        try:
            trainer.epoch()
        except RankError:
            pid, lost = (Path(folder) / "lost").read_text().split()
            (Path(folder) / f"noticed{rank}").write_text(str(time.time() - float(lost)))
            if signal_ == signal.SIGSTOP and rank == 0:
                time.sleep(1.0)  # for the others to notice it themselves
                os.kill(int(pid), signal.SIGKILL)
            raise


def dense(graph: NodeGraph, model: str, layers: nn.ModuleList) -> tuple[float, dict[str, torch.Tensor]]:
    """Give the loss and the gradients of one process, in 64-bit floats."""
    num = graph.num_nodes
    there = torch.zeros(num, num, dtype=torch.float64)
    there.index_put_(
        (torch.from_numpy(graph.edges[1]), torch.from_numpy(graph.edges[0])),
        torch.ones(graph.edges.shape[1], dtype=torch.float64), accumulate=True,
    )  # fmt: skip
    if model != "sage":
        there.fill_diagonal_(1)
    degree = there.sum(1)
    parameters = {name: one.detach().double().requires_grad_() for name, one in layers.named_parameters()}
    x = torch.from_numpy(graph.features).double()
    for number in range(len(layers)):
        own = {
            name.split(".", 1)[1]: one for name, one in parameters.items() if name.startswith(f"{number}.")
        }
        x = x.relu() if number else x
        if model == "gcn":
            x = (there / (degree[:, None] * degree).sqrt()) @ x @ own["linear.weight"].T + own["linear.bias"]
        elif model == "sage":
            mean = there @ x / degree.clamp(min=1)[:, None]
            x = x @ own["own.weight"].T + own["own.bias"] + mean @ own["others.weight"].T
        else:
            heads = own["source"].shape[0]
            z = (x @ own["linear.weight"].T).view(num, heads, -1)
            parts = []
            for head in range(heads):
                score = (z[:, head] @ own["target"][head])[:, None] + z[:, head] @ own["source"][head]
                score = nn.functional.leaky_relu(score, 0.2).masked_fill(there == 0, -torch.inf)
                parts.append((there * score.softmax(1)) @ z[:, head])
            x = torch.cat(parts, 1) + own["bias"]
    train = torch.from_numpy(np.flatnonzero(graph.train))
    loss = nn.functional.cross_entropy(x[train], torch.from_numpy(graph.labels)[train])
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {name: one.grad for name, one in parameters.items()}  # type: ignore[misc]
