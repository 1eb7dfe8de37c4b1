"""All blocks at once: find repeated blocks, solve a graph with few of them, copy what was found.

Idea        A network of 96 equal layers runs the same ops 96 times forward and 96 times backward. Two
            stretches of the base order in which every op equals the one a period earlier are the two
            passes. Leaving out the middle layers gives a graph with few of them; its budget keeps the
            bytes per layer. A re-run found there stands for the re-run at the same place in every
            layer that it stands for, layers being matched in tiles; small misfits are repaired on
            the whole graph.
Source      solving one block and reusing it as in Rockmate (ICML 2023) and torchtitan's planner
Guarantee   Copied sets are valid; whether they fit is measured on the whole graph.
Complexity  linear in the ops, beside the search of the small graph
Gaps        One kind of layer, one forward and one backward stretch. Layers must not skip layers.

    ops  | F F F F F F F F | head | B B B B B B B B | end        kept: | F F F F | head | B B B B | end
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from tightrope.core import Bytes, Graph, Op, OpId, StorageId
from tightrope.plan.model import Pair, producers

KEPT: Final = 12
"""Layers of the small graph."""
_LEAST_SHARE: Final = 0.5
"""Of the ops that the layers must make up."""
_MOST_PERIODS: Final = 12


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ops ``[start, start + period * count)``, of which each equals the one ``period`` earlier."""

    start: OpId
    period: int
    count: int

    def block(self, op: OpId) -> int:
        """Find the block of an op, -1 outside."""
        inside = 0 <= op - self.start < self.period * self.count
        return (op - self.start) // self.period if inside else -1


@dataclass(frozen=True, slots=True)
class Layers:
    """Forward block ``l`` and backward block ``turn - l`` are layer ``l``."""

    forward: Stretch
    backward: Stretch
    turn: int

    @property
    def count(self) -> int:
        """Number of layers that have both blocks, the first one being 0."""
        return min(self.forward.count, self.turn + 1)

    def layer(self, op: OpId) -> tuple[int, int]:
        """Find pass (0 forward, 1 backward) and layer of an op; -1, -1 outside both passes."""
        if (block := self.forward.block(op)) >= 0:
            return 0, block
        if (block := self.backward.block(op)) >= 0:
            return 1, self.turn - block
        return -1, -1

    def shifted(self, op: OpId, layers: int) -> OpId:
        """Find the op that is ``op`` of as many layers later."""
        side, _ = self.layer(op)
        return op + layers * (self.forward.period if side == 0 else -self.backward.period)


@dataclass(frozen=True, slots=True)
class Short:
    """A graph without the layers ``[cut, cut + gone)`` of another.

    Attributes:
        graph: the ops that are left, renumbered.
        layers: of the whole graph.
        cut: first layer left out.
        gone: number of layers left out.
        whole: op of the whole graph behind each op.
    """

    graph: Graph
    layers: Layers
    cut: int
    gone: int
    whole: tuple[OpId, ...]


def find_layers(graph: Graph) -> Layers | None:
    """Find the repeated layers of a training step, None where there are none worth using.

    Example:
        >>> find_layers(Graph((), ())) is None
        True
    """
    marks = _marks(graph)
    stretches = sorted(_stretches(marks), key=lambda s: -s.period * s.count)
    if not stretches:
        return None
    first = stretches[0]
    others = [s for s in stretches[1:] if _disjoint(s, first) and abs(s.count - first.count) <= 2]
    if not others:
        return None
    forward, backward = sorted((first, others[0]), key=lambda s: s.start)
    layers = Layers(forward, backward, _turn(graph, forward, backward))
    covered = forward.period * forward.count + backward.period * backward.count
    if layers.count < 2 * KEPT or covered < _LEAST_SHARE * len(graph.ops):
        return None
    return layers if _same_wiring(graph, layers) else None


def shorten(graph: Graph, layers: Layers, kept: int = KEPT) -> Short:
    """Leave out middle layers so that ``kept`` are left."""
    cut, gone = kept // 2, layers.count - kept
    out = {op.id for op in graph.ops if cut <= layers.layer(op.id)[1] < cut + gone}
    whole = tuple(op.id for op in graph.ops if op.id not in out)
    rewire = _Rewire(graph, layers, cut, gone, out)
    ops = [rewire.op(graph.ops[op]) for op in whole]
    replays = {op.variant: rewire.reads(graph.op(op.variant), op.id) for op in ops if op.variant >= 0}
    return Short(renumbered(graph, ops, replays), layers, cut, gone, whole)


def share(whole: Bytes, small: Bytes, limit: Bytes, short: Short) -> Bytes:
    """Scale a limit for the whole graph to the small one, both with their peaks without re-runs.

    Peaks grow by the same bytes with every layer; what is left of a limit is shared equally.
    """
    count = short.layers.count
    each = max(0, whole - small) / short.gone
    fixed = max(0.0, whole - each * count)
    return int(fixed + (limit - fixed) * (count - short.gone) / count)


def copy_pairs(short: Short, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Repeat pairs of the small graph in every layer of the whole graph that each layer stands for."""
    layers, kept = short.layers, short.layers.count - short.gone
    result: set[Pair] = set()
    for stage, op in pairs:
        ends = [(short.whole[end], *layers.layer(short.whole[end])) for end in (stage, op)]
        small = [layer - short.gone if layer >= short.cut else layer for _, _, layer in ends]
        anchor = 1 if ends[1][1] >= 0 else 0
        if ends[anchor][1] < 0:
            result.add((ends[0][0], ends[1][0]))
            continue
        for layer in range((small[anchor] - layers.count) % kept, layers.count, kept):
            moved = [
                end if side < 0 else layers.shifted(end, layer + small[i] - small[anchor] - at)
                for i, (end, side, at) in enumerate(ends)
            ]
            if all(layers.layer(new)[0] == side for new, (_, side, _) in zip(moved, ends, strict=True)):
                result.add((moved[0], moved[1]))
    return tuple(sorted(result))


class _Rewire:
    """Reads of the ops that are left: what is gone is read from the layer that took its place."""

    def __init__(self, graph: Graph, layers: Layers, cut: int, gone: int, out: set[OpId]) -> None:
        self.graph, self.layers, self.cut, self.gone, self.out = graph, layers, cut, gone, out
        self.producer = producers(graph)

    def op(self, op: Op) -> Op:
        return self.reads(op, op.id)

    def reads(self, op: Op, base: OpId) -> Op:
        side, layer = self.layers.layer(base)
        step = 0 if side < 0 else self.gone if layer < self.cut else -self.gone
        moved = {storage: self._moved(storage, step) for storage in op.reads}
        reads = tuple(sorted({s for s in moved.values() if s >= 0}))
        mutates = tuple(sorted({moved[s] for s in op.mutates if moved[s] >= 0}))
        return msgspec.structs.replace(op, reads=reads, mutates=mutates, over=moved.get(op.over, -1))

    def _moved(self, storage: StorageId, step: int) -> StorageId:
        source = self.producer[storage]
        if source not in self.out:
            return storage
        if not step:
            return -1
        slot = self.graph.ops[source].creates.index(storage)
        return self.graph.ops[self.layers.shifted(source, step)].creates[slot]


def renumbered(graph: Graph, ops: list[Op], replays: dict[OpId, Op]) -> Graph:
    """Make a graph of some ops of another, for planning: without arguments and parts.

    Args:
        graph: the other.
        ops: in order; what they read is made by one of them or by the caller.
        replays: their recompute variants, by number in ``graph``.
    """
    used = sorted({s for op in (*ops, *replays.values()) for s in (*op.reads, *op.creates)})
    number = {storage: position for position, storage in enumerate(used)}
    place = {replay: len(ops) + position for position, replay in enumerate(replays)}

    def renamed(op: Op, new: OpId) -> Op:
        allocations = tuple(
            msgspec.structs.replace(a, storage=number[a.storage]) if a.storage >= 0 else a
            for a in op.allocations
        )
        return msgspec.structs.replace(
            op,
            id=new,
            reads=tuple(number[s] for s in op.reads),
            creates=tuple(number[s] for s in op.creates),
            mutates=tuple(number[s] for s in op.mutates),
            allocations=allocations,
            variant=place.get(op.variant, -1),
            over=number.get(op.over, -1),
            arguments=(),
            keywords=(),
            results=(),
        )

    storages = tuple(msgspec.structs.replace(graph.storages[s], id=number[s]) for s in used)
    return msgspec.structs.replace(
        graph,
        ops=tuple(renamed(op, position) for position, op in enumerate(ops)),
        storages=storages,
        variants=tuple(renamed(op, place[replay]) for replay, op in replays.items()),
        parts=(),
    )


def _marks(graph: Graph) -> list[int]:
    """Give equal numbers to ops that do the same to storages of the same sizes."""
    known: dict[object, int] = {}
    storages = graph.storages
    marks: list[int] = []
    for op in graph.ops:
        made = tuple((storages[s].size, storages[s].resident_at_end) for s in op.creates)
        read = tuple(sorted((storages[s].size, storages[s].external) for s in op.reads))
        mark = (op.target, int(op.flags), op.phase, op.variant >= 0, made, read, len(op.mutates))
        marks.append(known.setdefault(mark, len(known)))
    return marks


def _stretches(marks: list[int]) -> list[Stretch]:
    """List long stretches that repeat with one of the most frequent periods."""
    latest: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for position, mark in enumerate(marks):
        if mark in latest:
            gaps[position - latest[mark]] += position - latest[mark]
        latest[mark] = position
    found: list[Stretch] = []
    for period, _ in gaps.most_common(_MOST_PERIODS):
        start = 0
        for position in range(period, len(marks) + 1):
            if position == len(marks) or marks[position] != marks[position - period]:
                if (count := (position - start) // period) >= 2 * KEPT:
                    found.append(Stretch(start, period, count))
                start = position - period + 1
    return found


def _disjoint(a: Stretch, b: Stretch) -> bool:
    return a.start + a.period * a.count <= b.start or b.start + b.period * b.count <= a.start


def _turn(graph: Graph, forward: Stretch, backward: Stretch) -> int:
    """Find the sum of forward and backward block that most reads of the backward pass agree on."""
    producer = producers(graph)
    sums: Counter[int] = Counter()
    for op in graph.ops[backward.start : backward.start + backward.period * backward.count]:
        for storage in op.reads:
            if (block := forward.block(producer[storage])) >= 0:
                sums[block + backward.block(op.id)] += 1
    return sums.most_common(1)[0][0] if sums else -1


def _same_wiring(graph: Graph, layers: Layers) -> bool:
    """Tell whether inner layers read the same things of themselves and of their neighbours."""
    producer = producers(graph)
    for op in graph.ops:
        side, layer = layers.layer(op.id)
        if side < 0 or not 2 <= layer < layers.count - 2:
            continue
        mine, other = ({*graph.ops[i].reads} for i in (op.id, layers.shifted(op.id, 1)))
        if _moved_reads(graph, layers, producer, mine) != {_named(graph, producer, s) for s in other}:
            return False
    return True


def _moved_reads(
    graph: Graph, layers: Layers, producer: tuple[OpId, ...], reads: set[StorageId]
) -> set[tuple[int, int]]:
    named = {_named(graph, producer, storage) for storage in reads}
    return {(layers.shifted(op, 1) if layers.layer(op)[0] >= 0 else op, slot) for op, slot in named}


def _named(graph: Graph, producer: tuple[OpId, ...], storage: StorageId) -> tuple[int, int]:
    """Name a storage by its producer and slot; storages of the caller by their size."""
    op = producer[storage]
    return (op, graph.ops[op].creates.index(storage)) if op >= 0 else (-1, graph.storages[storage].size)
