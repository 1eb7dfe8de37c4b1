"""What replicas exchange once per step: rings per layer, of gradients, and of parameters if they are divided.

Idea        Replicas hold the same parameters, or the parts of them; gradients are summed in a ring per layer.
            Experts are summed over those ranks alone that have the same ones.
Source      Rajbhandari et al. 2020 (ZeRO); NCCL's rings.
Guarantee   Bytes are unchanged; times are those of rings over the slowest link that a group spans.
Complexity  Linear in the layers.
Gaps        Rings of experts are taken to cross the same link as those of all replicas.
"""

from collections.abc import Sequence

import msgspec

from tightrope.core import Machine
from tightrope.core.units import Bytes
from tightrope_ranks.pipeline.inside import shared_ring_ns
from tightrope_ranks.pipeline.rank_layout import RankLayout
from tightrope_ranks.pipeline.together import ring_within
from tightrope_ranks.values.ranks import StageCost


def exchanged(
    costs: Sequence[StageCost],
    machine: Machine,
    layout: RankLayout,
    *,
    sharded: bool,
    trained: Sequence[Bytes] | None = None,
    shares: Sequence[float] = (),
) -> tuple[StageCost, ...]:
    """Add what replicas exchange: per layer a ring over the slowest link that one of their groups spans.

    Args:
        costs: of the layers on one rank.
        machine: whose links are used.
        layout: of the ranks.
        sharded: whether replicas divide parameters, gradients and state.
        trained: bytes of gradients per layer; None = of all parameters.
        shares: of the parameters of each layer, those of experts; empty = none.
    """
    if trained is None:
        trained = [cost.parameters for cost in costs]
    size = layout.alike
    if size == 1:
        return tuple(costs)
    link, found = ring_within(machine, size, layout.pipeline), []
    for cost, gradients, share in zip(costs, trained, shares or [0.0] * len(costs), strict=True):
        whole = cost.whole_gradients if sharded and gradients else gradients
        rounds = 1 if sharded else 2
        gather = shared_ring_ns(link, cost.parameters, size, rounds=1, share=share, ways=layout.expert)
        reduce = shared_ring_ns(link, whole, size, rounds=rounds, share=share, ways=layout.expert)
        found.append(msgspec.structs.replace(cost, gather=gather if sharded else 0, reduce=reduce))
    return tuple(found)
