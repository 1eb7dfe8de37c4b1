"""Layers of experts that ranks divide: each has some of the experts, and rows travel to those they chose.

Idea        X of the ranks that would hold the same parameters divide the experts of a layer. A rank sends
            each of its rows to the ranks of the experts that it chose, and gets them back: an exchange of all
            with all, twice in the forward and twice in the backward. Experts are summed over the ranks that
            have the same ones, all other parameters over all replicas.
Source      Lepikhin et al. 2020 (GShard); torchtitan's ``ParallelDims``: experts are divided among context
            ranks first, then among replicas.
Guarantee   What comes out are costs of layers, as those that go in: planner and judge see nothing new. Bytes
            are those of the expected load, at which every rank gets as many rows as it sends; `worst_rows`
            is what one gets at most.
Complexity  Linear in the layers.
Gaps        Exchanges are not hidden. Times are those of the expected load. Experts are products of
            ``grouped_mm``, or those of tightrope-experts; a loop over modules is not known as experts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tightrope.capture._eager import tensors_in
from tightrope.core import DeviceLink, TightropeError
from tightrope.core.units import Bytes
from tightrope_ranks.pipeline.emit import orders_of
from tightrope_ranks.pipeline.inside import computed_again, ring_ns
from tightrope_ranks.pipeline.starts import bare
from tightrope_ranks.values.ranks import JointPlan, StageCost

if TYPE_CHECKING:
    from tightrope_ranks.pipeline.layouts import RankLayout
    from tightrope_ranks.pipeline.segments import Segments
    from tightrope_ranks.pipeline.together import LayerInside

GROUPED: Final = ("aten::_grouped_mm", "tightrope_experts::spread_rows", "tightrope_experts::gather_rows")
"""Ops that multiply rows by the weights of the expert that each of them chose."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    Attributes:
        number: of them.
        parameters: bytes of their parameters.
        rows: bytes of the rows that a micro-batch sends to them, each as often as it chose one.
        kept: bytes that the backward needs of such rows.
        choices: experts per row; 0 = not seen.
    """

    number: int
    parameters: Bytes = 0
    rows: Bytes = 0
    kept: Bytes = 0
    choices: int = 0

    def divided(self, tensor: int, context: int) -> "Experts":
        """Tell the part of a rank where so many divide the layer, and its sequence."""
        ways = tensor * context
        return replace(
            self,
            parameters=-(-self.parameters // tensor),
            rows=-(-self.rows // ways),
            kept=-(-self.kept // ways),
        )

    def worst_rows(self, ways: int) -> Bytes:
        """Tell the bytes of rows that one of so many ranks gets at most: a row chooses an expert once.

        >>> [Experts(8, rows=100, choices=2).worst_rows(ways) for ways in (1, 2, 4, 8)]
        [100, 200, 400, 400]
        """
        each = self.number // ways
        share = min(self.choices, each) / self.choices if self.choices else 1.0
        return round(self.rows * ways * share)


class ExpertsSeen:
    """Watches the ops of a layer for experts."""

    def __init__(self) -> None:
        self.number = self.rows = self.count = self.choices = self._asked = 0
        self._kept: dict[int, tuple[int, Bytes]] = {}

    def see(self, op: Any, given: Any) -> None:
        """Note an op and its arguments."""
        name = str(op._schema.name)
        if name == "aten::topk":
            self._asked = int(given[0][1])
        if name not in GROUPED or self.number:
            return
        tensors = tensors_in(given)
        stacks = [one for one in tensors if one.dim() == 3]
        if stacks and tensors[0].dim() == 2:
            x, self.number, self.choices = tensors[0], stacks[0].shape[0], self._asked
            whole = [one.numel() for one in tensors if not one.is_floating_point()]
            self.count = x.shape[0] if name == GROUPED[0] else whole[0]
            self.rows = self.count * x.shape[1] * x.element_size()

    def keep(self, key: int, rows: int, size: Bytes) -> None:
        """Note a tensor that is kept for the backward."""
        self._kept[key] = rows, size

    def found(self, parameters: Sequence[tuple[Any, Bytes]]) -> Experts | None:
        """Put together what was seen, and the layer's parameters with their bytes."""
        if not self.number:
            return None
        size = sum(size for one, size in parameters if one.dim() == 3 and one.shape[0] == self.number)
        kept = sum(size for rows, size in self._kept.values() if rows == self.count)
        return Experts(self.number, size, self.rows, kept, self.choices)


def expert_ways(
    inside: Sequence["LayerInside"], alike: int, asked: int | None, context: int = 1
) -> tuple[int, ...]:
    """List the numbers of ranks to divide experts among: of those with the same parameters, context first.

    Args:
        inside: what layers are made of.
        alike: ranks that hold the same parameters.
        asked: a number; None = every one that fits.
        context: ranks that divide the sequence, of these.

    >>> from tightrope_ranks.pipeline.together import LayerInside
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


def check_experts(inside: Sequence["LayerInside"], ranks: int, asked: int | None) -> None:
    """Check that so many ranks can divide experts.

    Raises:
        TightropeError: there are none, or the number divides neither them nor the ranks; says what does.
    """
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
    inside: Sequence["LayerInside"],
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

    >>> from tightrope_ranks.pipeline.together import LayerInside
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
        more: bytes that a rank takes beside its plan, at most, where every layer has the worst load.
    """

    ways: int
    parameters: Bytes
    rows: Bytes
    worst: Bytes
    more: Bytes


def experts_told(
    cut: "Segments", layout: "RankLayout", plan: JointPlan, cuts: Sequence[int]
) -> ExpertsTold | None:
    """Tell what experts take on the fullest rank.

    Args:
        cut: layers of one rank, their experts divided.
        layout: of the ranks.
        plan: of them.
        cuts: where its stages begin, and the number of layers.
    """
    ways, layers = layout.expert, [one.experts for one in cut.inside]
    some = [one for one in layers if one is not None]
    if not some:
        return None
    costs = computed_again(cut.costs, layout.again) if layout.again else cut.costs
    again = [now.saved < whole.saved for now, whole in zip(costs, cut.costs, strict=True)]
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
                    held += 0 if again[layer] else max(alive) * kept
                    moving = max(moving, round(2 * one.rows * load) + kept * again[layer])
        sizes.append(size)
        more.append(held + moving)
    worst = max(one.worst_rows(ways) for one in some)
    return ExpertsTold(ways, max(sizes), max(one.rows for one in some), worst, max(more))


def expert_shares(inside: Sequence["LayerInside"], costs: Sequence[StageCost], ways: int) -> list[float]:
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
