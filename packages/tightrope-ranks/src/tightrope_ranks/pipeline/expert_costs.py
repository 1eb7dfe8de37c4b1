"""Layers of experts that ranks divide: each has some of the experts, and rows travel to those they chose.

Idea        X of the ranks that would hold the same parameters divide the experts of a layer. A rank sends
            each of its rows to the ranks of the experts that it chose, and gets them back: an exchange of all
            with all, twice in the forward and twice in the backward. Experts are summed over the ranks that
            have the same ones, all other parameters over all replicas.
Source      Lepikhin et al. 2020 (GShard); torchtitan's ``ParallelDims``: experts are divided among context
            ranks first, then among replicas.
Guarantee   What comes out are costs of layers, as those that go in: planner and judge see nothing new. Bytes
            are those of the expected load, at which every rank gets as many rows as it sends;
            `Experts.worst_rows` is what one gets at most.
Complexity  Linear in the layers.
Gaps        Exchanges are not hidden. Times are those of the expected load.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tightrope.core import DeviceLink, TightropeError
from tightrope.core.units import Bytes, shown
from tightrope_ranks.pipeline.emit import orders_of
from tightrope_ranks.pipeline.inside import computed_again, ring_ns
from tightrope_ranks.pipeline.segments import Segments
from tightrope_ranks.pipeline.starts import bare
from tightrope_ranks.pipeline.together import LayerInside
from tightrope_ranks.values.ranks import JointPlan, StageCost


def expert_ways(
    inside: Sequence[LayerInside], alike: int, asked: int | None, context: int = 1
) -> tuple[int, ...]:
    """List the numbers of ranks to divide experts among: of those with the same parameters, context first.

    Args:
        inside: what layers are made of.
        alike: ranks that hold the same parameters.
        asked: a number; None = every one that fits.
        context: ranks that divide the sequence, of these.

    >>> from tightrope_ranks.pipeline.experts import Experts
    >>> [expert_ways((LayerInside(experts=Experts(8)),), 16, None, context) for context in (1, 4)]
    [(1, 2, 4, 8), (1, 4, 8)]
    """
    numbers = [one.experts.number for one in inside if one.experts is not None]
    fitting = [
        ways
        for ways in range(1, min([alike, *numbers]) + 1)
        if not any(one % ways for one in (*numbers, alike)) and (ways == 1 or ways % context == 0)
    ]
    if not numbers:
        return (1,)
    return tuple(one for one in fitting if asked in (None, one))


def check_experts(inside: Sequence[LayerInside], ranks: int, asked: object) -> None:
    """Check that so many ranks can divide experts.

    Raises:
        TightropeError: no number; there are no experts; or it divides neither them nor the ranks.
    """
    if asked is not None and type(asked) is not int:
        raise TightropeError(f"expert={shown(asked)}: give a whole number, or None for any.")
    if asked in (None, 1):
        return
    numbers = [one.experts.number for one in inside if one.experts is not None]
    if not numbers:
        raise TightropeError(
            f"expert={asked}: no layer has experts. Give expert=1, or experts multiplied by grouped_mm."
        )
    fitting = expert_ways(inside, ranks, None)
    if asked not in fitting:
        raise TightropeError(
            f"expert={asked} does not divide {numbers[0]} experts and {ranks} ranks: give one of "
            f"{list(fitting)}."
        )


def shared_experts(
    costs: Sequence[StageCost],
    inside: Sequence[LayerInside],
    trained: Sequence[Bytes],
    link: DeviceLink,
    ways: int,
    *,
    sharded: bool,
) -> tuple[StageCost, ...]:
    """Divide experts among so many ranks.

    Args:
        costs: of layers on one rank.
        inside: what they are made of, on one rank.
        trained: bytes of gradients per layer.
        link: that rows travel over.
        ways: ranks that divide the experts.
        sharded: whether what is held will be divided among all replicas: experts are then no fewer in all.

    >>> from tightrope_ranks.pipeline.experts import Experts
    >>> layer = StageCost(forward=80, backward=80, weight=80, work=100, parameters=96, state=192)
    >>> of = LayerInside(experts=Experts(8, parameters=80, rows=4000))
    >>> (one,) = shared_experts((layer,), (of,), (96,), DeviceLink("link", bandwidth=1e12), 4, sharded=False)
    >>> one.forward, one.backward, one.work, one.parameters, one.state
    (86, 86, 8040, 36, 72)
    """
    found = []
    for cost, of, gradients in zip(costs, inside, trained, strict=True):
        if of.experts is None or ways == 1:
            found.append(cost)
            continue
        whole, mine = of.experts.parameters, -(-of.experts.parameters // ways)
        travel = 2 * ring_ns(link, of.experts.rows, ways, rounds=1)
        gone = whole - mine
        found.append(
            msgspec.structs.replace(
                cost,
                forward=cost.forward + travel,
                backward=cost.backward + travel if cost.backward else 0,
                work=cost.work + 2 * of.experts.rows - gradients * gone // cost.parameters,
                parameters=cost.parameters - gone,
                state=cost.state + (gone if sharded else -(cost.state * gone // cost.parameters)),
                summed=cost.summed - cost.summed * gone // cost.parameters,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ExpertsTold:
    """What the experts of one rank take, at most over the ranks of the pipeline.

    Attributes:
        ways: ranks that divide them.
        parameters: bytes of their parameters that a rank computes with, in all of its layers.
        rows: bytes of rows that a layer's experts get on a rank, per micro-batch, at the expected load.
        worst: of the same, at most.
        more: most bytes that a rank takes in addition to its plan, where every layer has the worst load.
    """

    ways: int
    parameters: Bytes
    rows: Bytes
    worst: Bytes
    more: Bytes


def experts_told(
    cut: Segments, plan: JointPlan, cuts: Sequence[int], *, ways: int, again: int
) -> ExpertsTold | None:
    """Tell what experts take on the fullest rank.

    Args:
        cut: layers of one rank, their experts divided.
        plan: of the ranks.
        cuts: where its stages begin, and the number of layers.
        ways: ranks that divide the experts.
        again: layers that are computed again.
    """
    layers = [one.experts for one in cut.inside]
    some = [one for one in layers if one is not None]
    if not some:
        return None
    costs = computed_again(cut.costs, again) if again else cut.costs
    repeated = [now.saved < whole.saved for now, whole in zip(costs, cut.costs, strict=True)]
    sizes, more = [], []
    for rank, row in enumerate(bare(orders_of(plan))):
        size = held = moving = 0
        for stage in plan.work.local(rank):
            alive = list(
                itertools.accumulate({"F": 1, "W": 0}.get(one.kind, -1) for one in row if one.stage == stage)
            )
            for layer in range(cuts[stage], cuts[stage + 1]):
                if (one := layers[layer]) is not None:
                    load = one.worst_rows(ways) / one.rows - 1
                    kept = round(one.kept * load)
                    size += -(-one.parameters // ways)
                    held += 0 if repeated[layer] else max(alive) * kept
                    moving = max(moving, round(2 * one.rows * load) + kept * repeated[layer])
        sizes.append(size)
        more.append(held + moving)
    worst = max(one.worst_rows(ways) for one in some)
    return ExpertsTold(ways, max(sizes), max(one.rows for one in some), worst, max(more))


def expert_shares(inside: Sequence[LayerInside], costs: Sequence[StageCost], ways: int) -> list[float]:
    """Tell which share of each layer's parameters on a rank are experts that other ranks of a group lack.

    Args:
        inside: what layers are made of, on one rank.
        costs: of these layers, before experts are divided.
        ways: ranks that divide the experts.
    """
    found = []
    for of, cost in zip(inside, costs, strict=True):
        whole = of.experts.parameters if of.experts is not None and ways > 1 else 0
        mine = -(-whole // ways)
        found.append(mine / (cost.parameters - whole + mine) if mine else 0.0)
    return found
