"""Which forward op a backward node belongs to.

Idea        The engine runs nodes in falling order of their sequence numbers, which were given out as the
            forward ran: the backward is the forward in reverse, node for op. Where a kind of node is as
            frequent as its kind of op, the k-th one is the k-th op from the end. The others are looked
            for between those anchors, the latest op first. A gradient is accumulated right after the
            node that made it.
Guarantee   With sequence numbers, exact; without them, exact for kinds whose counts agree.
Complexity  O(n log n).
Gaps        Engines with several device threads run independent branches in another order.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from tightrope.core import EventPhase
from tightrope.record.slices import Slice
from tightrope.record.stages import ENGINE
from tightrope.record.vocabulary import plain

_NODE = re.compile(r"Backward\d*$")


def node_key(name: str) -> str:
    """Name what a node differentiates.

    Example:
        >>> node_key("autograd::engine::evaluate_function: NativeLayerNormBackward0")
        'nativelayernorm'
    """
    return _NODE.sub("", name.rpartition(": ")[2]).lower()


def forward_of(slices: Sequence[Slice], stages: Sequence[EventPhase]) -> dict[int, int]:
    """Map each node that the engine ran to the position of a forward op, by names and order.

    Nodes without a forward op of their own (accumulated gradients) get the op of the node before.
    """
    nodes = [k for k, one in enumerate(slices) if one.name.startswith(ENGINE)]
    keys = [node_key(slices[node].name) for node in nodes]
    ops = _differentiable(slices, stages, frozenset(keys))
    by_key: dict[str, list[int]] = {}
    for op in ops:
        by_key.setdefault(_op_key(slices[op].name), []).append(op)
    wanted: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        wanted.setdefault(key, []).append(number)
    matched: dict[int, int] = {}
    for key, numbers in wanted.items():
        if len(by_key.get(key, ())) == len(numbers):
            matched |= zip(numbers, reversed(by_key[key]), strict=True)
    _fill(matched, keys, by_key, len(slices))
    found, last = {}, -1
    for number, node in enumerate(nodes):
        last = matched.get(number, last)
        found[node] = last
    return found


def _fill(matched: dict[int, int], keys: list[str], by_key: dict[str, list[int]], end: int) -> None:
    """Match nodes of the other kinds between the anchors, the latest op first."""
    floors, floor = [-1] * len(keys), -1
    for number in range(len(keys) - 1, -1, -1):
        floors[number] = floor
        floor = max(floor, matched.get(number, -1))
    ceiling = end
    for number, key in enumerate(keys):
        if number in matched:
            ceiling = min(ceiling, matched[number])
            continue
        candidates = by_key.get(key, [])
        at = bisect_left(candidates, ceiling) - 1
        if at >= 0 and candidates[at] > floors[number]:
            matched[number] = ceiling = candidates[at]


def _op_key(name: str) -> str:
    return plain(name).replace("_", "").lower()


def _differentiable(slices: Sequence[Slice], stages: Sequence[EventPhase], keys: frozenset[str]) -> list[int]:
    """Forward ops that could have a node: the outermost of each kind; what they call is below autograd."""
    covered = [False] * len(slices)
    found = []
    for position, one in enumerate(slices):
        if stages[position] not in (EventPhase.FORWARD, EventPhase.LOSS) or one.annotation:
            continue
        if one.parent >= 0 and covered[one.parent]:
            covered[position] = True
            continue
        if _op_key(one.name) in keys:
            covered[position] = True
            found.append(position)
    return found


def by_sequence(slices: Sequence[Slice], stages: Sequence[EventPhase]) -> dict[int, int]:
    """Map each node that the engine ran to the forward op with its sequence number.

    An op without a node notes the number that the next one gets, so the last one counts.
    """
    makers = {
        one.sequence: position
        for position, one in enumerate(slices)
        if one.sequence >= 0 and stages[position] in (EventPhase.FORWARD, EventPhase.LOSS)
    }
    return {
        position: makers[one.sequence]
        for position, one in enumerate(slices)
        if one.name.startswith(ENGINE) and one.sequence in makers
    }
