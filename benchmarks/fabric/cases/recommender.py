"""Tables of embeddings are in two other processes, with their optimizers; what ranks is here."""

import torch
from torch import Tensor, nn

from benchmarks.fabric.cases import nets
from tightrope_ranks.fabric import RemoteModule, SharedFabric, register


@register("recommender.table")
def table(number: int) -> nn.Module:
    return nets.table(number)


def train(rounds: int) -> list[Tensor]:
    head, losses = nets.top(), []
    with SharedFabric(3, modules=[__name__]) as fabric:
        tables = [RemoteModule(fabric, node, "table", "recommender.table", node) for node in (1, 2)]
        optimizers = [one.optimizer("SGD", lr=0.1) for one in tables]
        own = torch.optim.SGD(head.parameters(), lr=0.1)
        for step in range(rounds):
            dense, indices, clicked = nets.clicks(step)
            rows = [one(some) for one, some in zip(tables, indices, strict=True)]
            loss = nets.ranking_loss(head, dense, rows, clicked)
            own.zero_grad()
            torch.autograd.backward(loss)
            losses.append(loss.detach())
            own.step()
            for optimizer in optimizers:
                optimizer.step()
        remote = [weight for one in tables for weight in one.fetch()]
    return losses + remote + nets.weights_of(head)
