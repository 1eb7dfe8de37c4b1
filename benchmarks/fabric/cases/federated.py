"""Clients train where their data is; a client that ended, or is late, is left out of the round."""

from torch import Tensor

from benchmarks.fabric.cases import nets
from tightrope_ranks.fabric import SharedFabric, register, this_node


@register("federated.train")
def locally(turn: int, *weights: Tensor) -> tuple[Tensor | int, ...]:
    found, count = nets.locally(this_node().number, turn, weights)
    return (*found, count)


def train(rounds: int, lost: int | None = None) -> list[Tensor]:
    weights = nets.weights_of(nets.classifier())
    with SharedFabric(4, modules=[__name__]) as fabric:
        for turn in range(rounds):
            if turn == lost:
                fabric.processes[2].kill()
            came = fabric.call_each((1, 2, 3), "federated.train", turn, *weights, timeout=30)
            weights = nets.mean_of([(trained, count) for *trained, count in came.values()])
    return weights
