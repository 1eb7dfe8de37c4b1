"""A training step as a chain of segments, for the planners of checkpointing on chains.

Segment l runs from what segment l-1 handed over to what it hands over itself (its *handover*); nothing
else crosses a cut of the forward pass. Backward runs the segments in reverse: stage ``back[l]`` is the
first op of the backward pass that reads what segment l was handed or made inside.

    ops  -+--F 1--+--F 2--+ ... +--F L--+-------B L-------+ ... +--B 2--+--B 1--+-->
                                        back[L]                 back[2] back[1]

A tree of checkpoints becomes a set of pairs: running segment l again at the backward of segment t is
one pair (back[t], u) for every op u of segment l that may run then.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tightrope.core import Bytes, Graph, OpId, Phase, StepIndex, StorageId, TightropeError
from tightrope.plan.engine import open_solver
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import useful

Rerun: TypeAlias = tuple[int, int]
"""(t, l): before the backward of segment t, run the ops of segment l again."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops of the forward pass, what they hand over, and where their backward begins."""

    ops: tuple[OpId, ...]
    handover: StorageId
    back: StepIndex


@dataclass(frozen=True)
class Chain:
    """The segments in forward order, with the graph and its tables."""

    graph: Graph
    model: Model
    segments: tuple[Segment, ...]

    def pairs(self, reruns: Iterable[Rerun]) -> tuple[Pair, ...]:
        """Turn re-runs of segments into pairs of ops, those left out of which nothing is read."""
        wanted = {(self.segments[late].back, op) for late, early in reruns for op in self.segments[early].ops}
        return useful(self.graph, (pair for pair in wanted if self.model.allowed(pair)))


def chain_of(graph: Graph, *, planner: str) -> Chain:
    """Cut a training step into as many segments as its forward pass allows.

    Args:
        graph: with a forward and a backward phase.
        planner: named in the error.

    Raises:
        TightropeError: it has no backward phase, or no place to cut.
    """
    num_forward = next((op.id for op in graph.ops if op.phase is Phase.BACKWARD), len(graph.ops))
    model = build(graph)
    cuts = _cuts(model, num_forward)
    segments = _segments(model, num_forward, cuts)
    if num_forward in (0, len(graph.ops)) or len(segments) < 2:
        what = "no backward phase" if num_forward == len(graph.ops) else f"{len(segments)} segments"
        raise TightropeError(
            f"{planner} plans training steps whose forward pass is a chain; this graph of {len(graph.ops)} "
            f'ops has {what}. Use planner="auto".'
        )
    return Chain(graph, model, segments)


def _cuts(model: Model, num_forward: int) -> list[tuple[StepIndex, StorageId]]:
    """List the places between two forward ops that exactly one storage crosses, with that storage."""
    last: dict[StorageId, OpId] = {}
    for op in range(num_forward):
        for storage in model.reads[op]:
            last[storage] = op
    begins: dict[StepIndex, list[StorageId]] = {}
    for storage in last:
        begins.setdefault(model.producer[storage] + 1, []).append(storage)
    cuts: list[tuple[StepIndex, StorageId]] = []
    crossing: set[StorageId] = set()
    for position in range(1, num_forward):
        crossing.update(begins.get(position, ()))
        crossing = {storage for storage in crossing if last[storage] >= position}
        if len(crossing) == 1:
            cuts.append((position, next(iter(crossing))))
    return cuts


def _segments(model: Model, num_forward: int, cuts: list[tuple[StepIndex, StorageId]]) -> tuple[Segment, ...]:
    """Join stretches until every segment has a backward of its own, in reverse order."""
    first_back = {
        storage: op for op in reversed(range(num_forward, len(model.need))) for storage in model.reads[op]
    }
    segments: list[Segment] = []
    start = 0
    for position, handover in [*cuts, (num_forward, -1)]:
        ops = tuple(range(start, position))
        back = _back(model, segments, ops, handover, first_back)
        while segments and back is not None and back >= segments[-1].back:
            ops = segments.pop().ops + ops
            back = _back(model, segments, ops, handover, first_back)
        if back is not None:
            segments.append(Segment(ops, handover, back))
            start = position
    return tuple(segments)


def _back(
    model: Model,
    before: list[Segment],
    ops: tuple[OpId, ...],
    handover: StorageId,
    first_back: dict[StorageId, StepIndex],
) -> StepIndex | None:
    """Find the first op of the backward pass that reads what the ops read or make, the handover left out."""
    inside = set(ops)
    touched = {s for s, op in enumerate(model.producer) if op in inside and s != handover}
    if before:
        touched.add(before[-1].handover)
    elif not touched & first_back.keys():
        return len(model.need) - 1
    return min((first_back[s] for s in touched if s in first_back), default=None)


def joined(chain: Chain, most: int) -> Chain:
    """Join neighbours until at most ``most`` segments are left, always the pair with the fewest ops."""
    segments = list(chain.segments)
    while len(segments) > most:
        number = min(range(len(segments) - 1), key=lambda i: len(segments[i].ops) + len(segments[i + 1].ops))
        first, second = segments[number : number + 2]
        segments[number : number + 2] = [Segment(first.ops + second.ops, second.handover, second.back)]
    return Chain(chain.graph, chain.model, tuple(segments))


def best_reruns(
    chain: Chain, candidates: Iterable[Iterable[Rerun]], limit: Bytes, options: Options
) -> tuple[Pair, ...]:
    """Choose the cheapest candidate whose live bytes fit, or the one with the fewest bytes too many."""
    solver = open_solver(chain.model)
    best: tuple[int, int, int] | None = None
    chosen: tuple[Pair, ...] = ()
    for reruns in candidates:
        if best is not None and options.watch.over:
            break
        pairs = chain.pairs(reruns)
        solver.load(pairs)
        state = solver.state(limit)
        rank = (max(0, state.peak - limit), state.ns, state.peak)
        if best is None or rank < best:
            best, chosen = rank, pairs
    return chosen
