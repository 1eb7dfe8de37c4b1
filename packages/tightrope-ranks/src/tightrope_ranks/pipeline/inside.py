"""What layers do inside of their stage: compute again what they keep, and exchange parameters and gradients.

Idea        A layer that is computed again keeps its input alone, and runs its forward once more before its
            backward. A layer whose parameters are divided gathers them before each of its passes, lets go of
            them afterwards, and hands out its gradients; that goes on while layers compute.
Source      Chen et al. 2016 (a checkpoint per layer); Rajbhandari et al. 2020 (ZeRO-3), as FSDP2 runs it.
Guarantee   What comes out are costs of layers, as those that go in: planner and judge see nothing new.
Complexity  Linear in the layers.
Gaps        Layers that are computed again are spread evenly, not chosen one by one, and whole. An exchange is
            hidden by the time of its own layer alone. Parameters of the next layer and gradients of the last
            one count with every layer.
"""

import math
from collections.abc import Sequence

import msgspec

from tightrope.core import DeviceLink
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.values.ranks import StageCost


def ring_ns(link: DeviceLink, size: Bytes, replicas: int, *, rounds: int) -> Nanoseconds:
    """Time a ring over replicas: one round gathers or reduces in parts, two sum and hand out.

    >>> ring_ns(DeviceLink("link", latency=1e-6, bandwidth=1e9), 4000, 4, rounds=2)
    12000
    """
    if replicas == 1 or not size:
        return 0
    steps = rounds * (replicas - 1)
    return math.ceil(steps * (1e9 * link.latency + 1e9 * size / (replicas * link.bandwidth)))


def num_keeping(costs: Sequence[StageCost]) -> int:
    """Count the layers that keep something for their backward.

    >>> num_keeping((StageCost(1, 1, saved=8), StageCost(1, 1)))
    1
    """
    return sum(one.saved > 0 for one in costs)


def computed_again(costs: Sequence[StageCost], count: int) -> tuple[StageCost, ...]:
    """Compute so many layers again, of those that keep something, evenly spread.

    >>> layer = StageCost(forward=5, backward=6, weight=4, saved=80, half=80, work=9)
    >>> [(one.saved, one.backward, one.work) for one in computed_again((layer, layer), 1)]
    [(80, 6, 9), (0, 11, 89)]
    """
    found, seen, of = [], 0, num_keeping(costs)
    for one in costs:
        chosen = one.saved > 0 and (seen + 1) * count // of > seen * count // of
        seen += one.saved > 0
        if chosen:
            work = one.work + one.saved
            one = msgspec.structs.replace(
                one, saved=0, half=0, work=work, backward=one.backward + one.forward
            )
        found.append(one)
    return tuple(found)


def shared_ring_ns(
    link: DeviceLink, size: Bytes, replicas: int, *, rounds: int, share: float = 0.0, ways: int = 1
) -> Nanoseconds:
    """Time rings over replicas, where a share of the bytes is in rings of every so many of them alone.

    >>> link = DeviceLink("link", bandwidth=1e9)
    >>> [shared_ring_ns(link, 4000, 4, rounds=1, share=one, ways=4) for one in (0.0, 0.5, 1.0)]
    [3000, 1500, 0]
    """
    part = round(size * share)
    return ring_ns(link, size - part, replicas, rounds=rounds) + ring_ns(
        link, part, replicas // ways, rounds=rounds
    )


def divided(
    costs: Sequence[StageCost],
    link: DeviceLink,
    replicas: int,
    trained: Sequence[Bytes],
    shares: Sequence[float] = (),
    ways: int = 1,
) -> tuple[StageCost, ...]:
    """Divide parameters, gradients and state of every layer among replicas, layer by layer.

    Args:
        costs: of the layers, as they compute.
        link: that the replicas exchange over.
        replicas: how many.
        trained: bytes of gradients per layer.
        shares: of the parameters of each layer, those of experts; empty = none.
        ways: ranks that divide experts, of the replicas.

    >>> layer = StageCost(forward=5, backward=6, weight=4, parameters=4000, state=8000)
    >>> divided((layer,), DeviceLink("link", bandwidth=1e12), 4, (4000,))[0].parameters
    1000
    """
    found = []
    for one, gradients, share in zip(costs, trained, shares or [0.0] * len(costs), strict=True):
        gather = shared_ring_ns(link, one.parameters, replicas, rounds=1, share=share, ways=ways)
        summed = one.whole_gradients if gradients else 0
        reduce = shared_ring_ns(link, summed, replicas, rounds=1, share=share, ways=ways)
        found.append(
            msgspec.structs.replace(
                one,
                forward=max(one.forward, gather),
                backward=one.backward + max(0, gather + reduce - one.backward - one.weight),
                work=one.work + 2 * one.parameters + summed,
                parameters=-(-one.parameters // replicas),
                state=-(-one.state // replicas),
                summed=0,
            )
        )
    return tuple(found)
