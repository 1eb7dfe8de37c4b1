"""Layers that several ranks compute together: a part of every weight each, or a part of the sequence each.

Idea        Tensor parallel: products of two dimensions are cut by columns, then by rows; rows of the sequence
            are gathered before the first and summed in parts behind the second, so that everything between
            is divided, too. Context parallel: each rank has a part of the sequence, and keys and values
            travel in a ring while attention works on those that came before.
Source      Shoeybi et al. 2019, Korthikanti et al. 2022 (tensor with sequence); Liu et al. 2023 (rings of
            keys); NCCL, which runs a ring per network card of a node
Guarantee   What comes out are costs of layers, as those that go in: planner and judge see nothing new.
Complexity  Linear in the layers.
Gaps        A layer with attention is taken to gather and sum twice, any other once, none of it hidden; the
            second gather of its inputs is hidden by gradients of weights. Parameters of one dimension are
            not divided. Parts of a sequence are taken to be equally much work. Experts: see `experts`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import torch

from tightrope.capture._eager import tensors_in
from tightrope.core import DeviceLink, Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds
from tightrope_ranks.pipeline.experts import Experts, ExpertsSeen
from tightrope_ranks.pipeline.inside import ring_ns
from tightrope_ranks.pipeline.pool import LayerRun
from tightrope_ranks.pipeline.prices import is_attention
from tightrope_ranks.values.ranks import StageCost

_SOFTMAX: Final = "aten::_softmax"


@dataclass(frozen=True, slots=True)
class LayerInside:
    """What a layer is made of.

    Attributes:
        flat: bytes of parameters of fewer than two dimensions.
        heads: numbers of heads of its attention.
        attention_ns: time of its fused attention, forward.
        keys: bytes of the keys and values of it.
        unfused: whether attention of several ops was seen.
        shapes: of parameters of two dimensions or more.
        experts: of it; None = it has none.
        run: what it allocates and frees, in order; None = not told.
    """

    flat: Bytes = 0
    heads: tuple[int, ...] = ()
    attention_ns: Nanoseconds = 0
    keys: Bytes = 0
    unfused: bool = False
    shapes: frozenset[tuple[int, ...]] = frozenset()
    experts: Experts | None = None
    run: LayerRun | None = None

    @property
    def num_parts(self) -> int:
        """Parts that gather rows and sum them: attention and what follows it, or one."""
        return 2 if self.heads or self.unfused else 1


class InsideSeen:
    """Watches the ops of a layer."""

    def __init__(self) -> None:
        self.heads: set[int] = set()
        self.seconds, self.keys, self.unfused = 0.0, 0, False
        self.experts = ExpertsSeen()
        self.run: LayerRun | None = None

    def see(self, op: Any, given: Any, seconds: float) -> None:
        """Note an op, its arguments and its time."""
        self.experts.see(op, given)
        if is_attention(op):
            query, *others = tensors_in(given)[:3]
            self.heads.add(query.shape[1])
            self.seconds += seconds
            self.keys += sum(one.numel() * one.element_size() for one in others)
        elif op._schema.name == _SOFTMAX and tensors_in(given)[0].dim() > 2:
            self.unfused = True

    @property
    def backward_more_ns(self) -> Nanoseconds:
        """Time above twice the forward: the backward of fused attention makes five products of its two."""
        return math.ceil(0.5e9 * self.seconds)

    def found(self, parameters: Iterable[tuple[torch.Tensor, Bytes]]) -> LayerInside:
        """Put together what was seen, and the layer's parameters with their bytes."""
        pairs = list(parameters)
        flat = sum(size for one, size in pairs if one.dim() < 2)
        shapes = frozenset(tuple(one.shape) for one, _ in pairs if one.dim() > 1)
        ns = math.ceil(1e9 * self.seconds)
        heads = tuple(sorted(self.heads))
        return LayerInside(
            flat, heads, ns, self.keys, self.unfused, shapes, self.experts.found(pairs), self.run
        )


def grouped(machine: Machine, size: int) -> Machine:
    """Return a machine whose devices are groups of so many.

    >>> links = (DeviceLink("inside", span=8), DeviceLink("between", level=1))
    >>> [one.span for one in grouped(Machine("m", (), devices=32, links=links), 4).links]
    [2, 0]
    """
    links = tuple(
        msgspec.structs.replace(one, span=one.span // size)
        for one in machine.links
        if not one.span or one.span > size
    )
    number, links = machine.devices // size, links or machine.links[-1:]
    return msgspec.structs.replace(machine, devices=number, links=links)


def slowest_within(machine: Machine, size: int, groups: int = 0) -> DeviceLink:
    """Find the slowest link that groups of so many neighbours span; 0 groups = as many as there are.

    >>> links = (DeviceLink("inside", span=8), DeviceLink("between", level=1))
    >>> [slowest_within(Machine("m", (), devices=24, links=links), size).name for size in (4, 6)]
    ['inside', 'between']
    """
    places = range(groups or machine.devices // size)
    return machine.links[max(machine.link(place * size, place * size + size - 1) for place in places)]


def ring_within(machine: Machine, size: int, groups: int = 0) -> DeviceLink:
    """Give the link that a ring over such a group sees: members of one node share what goes out of it.

    Every member has a link of its own to other nodes. As many rings run at once as a node has members, each
    over another one's link, and no ring is faster than the link inside.

    >>> links = (DeviceLink("in", bandwidth=240e9, span=8), DeviceLink("between", bandwidth=25e9, level=1))
    >>> [ring_within(Machine("m", (), devices=64, links=links), size).bandwidth for size in (8, 12, 64)]
    [240000000000.0, 100000000000.0, 200000000000.0]
    """
    link = slowest_within(machine, size, groups)
    inner = machine.links[: machine.links.index(link)]
    if not inner:
        return link
    members = math.gcd(size, inner[-1].span)
    most = max(link.bandwidth, min(inner[-1].bandwidth, members * link.bandwidth))
    return msgspec.structs.replace(link, bandwidth=most)


def shared_tensors(
    costs: Sequence[StageCost], inside: Sequence[LayerInside], link: DeviceLink, ways: int
) -> tuple[StageCost, ...]:
    """Divide weights, rows and what is kept among so many ranks.

    >>> layer = StageCost(forward=80, backward=80, weight=80, input=8, output=8, saved=800, parameters=96)
    >>> (one,) = shared_tensors((layer,), (LayerInside(flat=16),), DeviceLink("link", bandwidth=1e12), 4)
    >>> one.forward, one.saved, one.parameters
    (22, 200, 36)
    """
    found = []
    for cost, of in zip(costs, inside, strict=True):
        rows, flat = cost.output or cost.input, of.flat
        ring = of.num_parts * ring_ns(link, rows, ways, rounds=1)
        found.append(
            msgspec.structs.replace(
                cost,
                forward=-(-cost.forward // ways) + 2 * ring,
                backward=-(-cost.backward // ways) + 2 * ring if cost.backward else 0,
                weight=max(-(-cost.weight // ways), ring) if cost.weight else 0,
                input=-(-cost.input // ways),
                output=-(-cost.output // ways),
                saved=-(-cost.saved // ways),
                half=-(-cost.half // ways),
                work=-(-cost.work // ways) + rows,
                parameters=_whole(cost.parameters, flat, cost.parameters, ways),
                state=_whole(cost.state, flat, cost.parameters, ways),
                summed=_whole(cost.summed, flat, cost.parameters, ways),
            )
        )
    return tuple(found)


def shared_sequence(
    costs: Sequence[StageCost],
    inside: Sequence[LayerInside],
    trained: Sequence[Bytes],
    link: DeviceLink,
    ways: int,
) -> tuple[StageCost, ...]:
    """Divide the sequence among so many ranks.

    >>> layer = StageCost(forward=80, backward=80, weight=80, input=8, output=8, saved=800, parameters=96)
    >>> of = LayerInside(heads=(4,), attention_ns=40, keys=4000)
    >>> (one,) = shared_sequence((layer,), (of,), (96,), DeviceLink("link", bandwidth=1e12), 4)
    >>> one.forward, one.saved, one.parameters
    (20, 200, 96)
    """
    found = []
    for cost, of, gradients in zip(costs, inside, trained, strict=True):
        ring = (ways - 1) * link.message_ns(-(-of.keys // ways)) if of.keys else 0
        seen = -(-of.attention_ns // ways)
        back = -(-cost.backward // ways) + max(0, 2 * ring - 2 * seen)
        found.append(
            msgspec.structs.replace(
                cost,
                forward=-(-cost.forward // ways) + max(0, ring - seen),
                backward=back if cost.backward else 0,
                weight=-(-cost.weight // ways),
                input=-(-cost.input // ways),
                output=-(-cost.output // ways),
                saved=-(-cost.saved // ways),
                half=-(-cost.half // ways),
                work=-(-(cost.work - gradients) // ways) + gradients + 2 * -(-of.keys // ways),
            )
        )
    return tuple(found)


def of_a_rank(
    inside: Sequence[LayerInside], trained: Sequence[Bytes], costs: Sequence[StageCost], ways: int
) -> tuple[tuple[LayerInside, ...], tuple[Bytes, ...]]:
    """Return what is inside of divided layers, and the bytes of their gradients."""
    parts = tuple(
        replace(
            one,
            attention_ns=-(-one.attention_ns // ways),
            keys=-(-one.keys // ways),
            experts=one.experts and one.experts.divided(ways, 1),
        )
        for one in inside
    )
    gradients = tuple(
        _whole(size, one.flat, cost.parameters, ways)
        for size, one, cost in zip(trained, inside, costs, strict=True)
    )
    return parts, gradients


def check_tensors(names: Sequence[str], inside: Sequence[LayerInside], ways: int) -> None:
    """Check that so many ranks can divide the layers.

    Raises:
        TightropeError: they do not divide the heads, or a parameter; says what does.
    """
    for name, one in zip(names, inside, strict=True):
        for shape in one.shapes:
            if all(side % ways for side in shape):
                raise TightropeError(
                    f"tensor={ways} divides no side of a parameter of {name!r}, of shape {list(shape)}: give "
                    "a divisor of its sides."
                )
        for heads in one.heads:
            if heads % ways:
                fitting = [number for number in range(1, heads + 1) if heads % number == 0]
                raise TightropeError(
                    f"tensor={ways} does not divide the {heads} heads of {name!r}: give one of {fitting}."
                )


def check_sequence(names: Sequence[str], inside: Sequence[LayerInside], ways: int) -> None:
    """Check that the sequence can be divided.

    Raises:
        TightropeError: no attention was seen, or one of several ops.
    """
    for name, one in zip(names, inside, strict=True):
        if one.unfused:
            raise TightropeError(
                f"context={ways}: the attention of {name!r} is of several ops, and its keys cannot travel. "
                "Use torch.nn.functional.scaled_dot_product_attention."
            )
    if not any(one.keys for one in inside):
        raise TightropeError(
            f"context={ways}: no layer has attention, so there is no sequence to divide. Give context=1."
        )


def _whole(size: Bytes, flat: Bytes, parameters: Bytes, ways: int) -> Bytes:
    """Divide bytes in proportion to the parameters that are divided."""
    if not parameters:
        return -(-size // ways)
    kept = size * flat // parameters
    return kept - (-(size - kept) // ways)
