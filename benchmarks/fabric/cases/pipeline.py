"""The halves of a small GPT are in two other processes, with their optimizers; gradients go by calls."""

import torch
from torch import Tensor, nn

from benchmarks.fabric.cases import nets
from tightrope_ranks.fabric import RemoteModule, SharedFabric, register


@register("pipeline.stage")
def stage(number: int) -> nn.Module:
    return nets.stage(number)


def train(rounds: int) -> list[Tensor]:
    losses = []
    with SharedFabric(3, modules=[__name__]) as fabric:
        stages = [RemoteModule(fabric, node, "stage", "pipeline.stage", node) for node in (1, 2)]
        optimizers = [one.optimizer("AdamW", lr=0.01) for one in stages]
        for step in range(rounds):
            for words, targets in nets.micro_batches(step):
                loss = nets.loss_of(stages[1](stages[0](words)), targets)
                torch.autograd.backward(loss)
                losses.append(loss.detach())
            for optimizer in optimizers:
                optimizer.step()
        return losses + [weight for one in stages for weight in one.fetch()]
