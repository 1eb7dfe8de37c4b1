"""The four programs in one process, in plain torch: what all others have to give bit by bit."""

import torch
from torch import Tensor

from benchmarks.fabric.cases import nets


def games(rounds: int) -> list[Tensor]:
    """Play and learn."""
    net = nets.policy()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def ask(state: Tensor) -> Tensor:
        with torch.no_grad():
            values: Tensor = net(state)
            return values

    found = [
        nets.learn(net, optimizer, [nets.play(ask, 10 * turn + actor) for actor in (1, 2)])
        for turn in range(rounds)
    ]
    return found + nets.weights_of(net)


def pipeline(rounds: int) -> list[Tensor]:
    """Train both stages."""
    stages = [nets.stage(number) for number in (1, 2)]
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in stages]
    losses = []
    for step in range(rounds):
        for words, targets in nets.micro_batches(step):
            loss = nets.loss_of(stages[1](stages[0](words)), targets)
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses + [weight for one in stages for weight in nets.weights_of(one)]


def recommender(rounds: int) -> list[Tensor]:
    """Train tables and what ranks."""
    tables, head = [nets.table(number) for number in (1, 2)], nets.top()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (*tables, head)]
    losses = []
    for step in range(rounds):
        dense, indices, clicked = nets.clicks(step)
        rows = [one(some) for one, some in zip(tables, indices, strict=True)]
        loss = nets.ranking_loss(head, dense, rows, clicked)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses + [weight for one in (*tables, head) for weight in nets.weights_of(one)]


def federated(rounds: int, lost: int | None = None) -> list[Tensor]:
    """Train on three clients in turn, and average; on two from the round on in which one is lost."""
    weights = nets.weights_of(nets.classifier())
    for turn in range(rounds):
        clients = (1, 2, 3) if lost is None or turn < lost else (1, 2)
        weights = nets.mean_of([nets.locally(client, turn, weights) for client in clients])
    return weights
