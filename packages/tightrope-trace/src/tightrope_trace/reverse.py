"""Which forward op a backward node belongs to.

Idea        The engine runs nodes in falling order of their sequence numbers, which were given out as the
            forward ran: the backward is the forward in reverse, node for op. Where a kind of node is as
            frequent as its kind of op, the k-th one is the k-th op from the end. The others are looked
            for between those anchors, the latest op first; where there are more ops than nodes, these
            are guesses. A gradient is accumulated right after the node that made it.
Guarantee   With sequence numbers, exact; without them, exact for kinds whose counts agree, and guesses
            are named.
Complexity  O(n log n).
Gaps        Engines with several device threads run independent branches in another order.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from tightrope.core import EventPhase
from tightrope_trace.slices import Slice
from tightrope_trace.stages import ENGINE
from tightrope_trace.vocabulary import plain

_NODE = re.compile(r"Backward\d*$")
_SUM: Final = "torch::autograd::accumulategrad"


def node_key(name: str) -> str:
    """Name what a node differentiates.

    Example:
        >>> node_key("autograd::engine::evaluate_function: NativeLayerNormBackward0")
        'nativelayernorm'
    """
    return _NODE.sub("", name.rpartition(": ")[2]).lower()


class Nodes(NamedTuple):
    """The forward ops of what the engine ran.

    Attributes:
        ops: position of an op, or -1, by position of a node.
        guessed: nodes whose op may be another one.
    """

    ops: dict[int, int]
    guessed: frozenset[int]


def nodes_of(slices: Sequence[Slice], stages: Sequence[EventPhase]) -> Nodes:
    """Find the forward ops of all nodes: by sequence numbers where there are any, else by names and order."""
    known = by_sequence(slices, stages)
    return Nodes(_with_sums(slices, known), frozenset()) if known else forward_of(slices, stages)


def forward_of(slices: Sequence[Slice], stages: Sequence[EventPhase]) -> Nodes:
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
    unsure = _fill(matched, keys, by_key, len(slices))
    found, guessed, last, doubtful = {}, set(), -1, False
    for number, node in enumerate(nodes):
        if number in matched:
            last, doubtful = matched[number], number in unsure
        elif keys[number] != _SUM:
            doubtful = True
        found[node] = last
        if doubtful:
            guessed.add(node)
    return Nodes(found, frozenset(guessed))


def _fill(matched: dict[int, int], keys: list[str], by_key: dict[str, list[int]], end: int) -> set[int]:
    """Match nodes of the other kinds between the anchors, the latest op first.

    Returns:
        Nodes that could be of another op: there are fewer of them between two anchors than such ops.
    """
    floors, floor = [-1] * len(keys), -1
    for number in range(len(keys) - 1, -1, -1):
        floors[number] = floor
        floor = max(floor, matched.get(number, -1))
    ceiling, top = end, end
    between: dict[tuple[str, int, int], list[int]] = {}
    for number, key in enumerate(keys):
        if number in matched:
            ceiling = min(ceiling, matched[number])
            top = ceiling
            continue
        candidates = by_key.get(key, [])
        between.setdefault((key, floors[number], top), []).append(number)
        at = bisect_left(candidates, ceiling) - 1
        if at >= 0 and candidates[at] > floors[number]:
            matched[number] = ceiling = candidates[at]
    return {
        number
        for (key, floor, top), numbers in between.items()
        if bisect_left(by_key.get(key, []), top) - bisect_left(by_key.get(key, []), floor + 1) != len(numbers)
        for number in numbers
    }


def _op_key(name: str) -> str:
    return plain(name).replace("_", "").lower()


def _counts(slices: Sequence[Slice]) -> list[bool]:
    """Whether an op counts the batches that a norm has seen: whole numbers have no gradient."""
    found, last = [False] * len(slices), -1
    for position, one in enumerate(slices):
        if one.parent < 0 or slices[one.parent].annotation:
            if one.name == "aten::batch_norm" and last >= 0 and slices[last].name == "aten::add_":
                found[last] = True
            last = position
    return found


def _differentiable(slices: Sequence[Slice], stages: Sequence[EventPhase], keys: frozenset[str]) -> list[int]:
    """Forward ops that could have a node: the outermost of each kind; what they call is below autograd."""
    covered = _counts(slices)
    found = []
    for position, one in enumerate(slices):
        if stages[position] not in (EventPhase.FORWARD, EventPhase.LOSS) or one.annotation:
            continue
        if covered[position] or (one.parent >= 0 and covered[one.parent]):
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


def _with_sums(slices: Sequence[Slice], known: dict[int, int]) -> dict[int, int]:
    """Give nodes without a forward op of their own (accumulated gradients) the op of the node before."""
    found, last = {}, dict[int, int]()
    for position, one in enumerate(slices):
        if one.name.startswith(ENGINE):
            last[one.thread] = known.get(position, last.get(one.thread, -1))
            found[position] = last[one.thread]
    return found
