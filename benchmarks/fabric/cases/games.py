"""Players in other processes ask the learner for every move; it learns from the games."""

import torch
from torch import Tensor

from benchmarks.fabric.cases import nets
from tightrope_ranks.fabric import SharedFabric, register, this_node

NET = nets.policy()


@register("games.act")
def act(state: Tensor) -> Tensor:
    with torch.no_grad():
        values: Tensor = NET(state)
        return values


@register("games.play")
def play(seed: int) -> nets.Played:
    return nets.play(lambda state: this_node().call(0, "games.act", state), seed)


def train(rounds: int) -> list[Tensor]:
    NET.load_state_dict(nets.policy().state_dict())
    optimizer = torch.optim.SGD(NET.parameters(), lr=0.01)
    losses = []
    with SharedFabric(3, modules=[__name__]) as fabric:
        for turn in range(rounds):
            replies = [fabric.call_async(node, "games.play", 10 * turn + node) for node in (1, 2)]
            losses.append(nets.learn(NET, optimizer, [reply.wait() for reply in replies]))
    return losses + nets.weights_of(NET)
