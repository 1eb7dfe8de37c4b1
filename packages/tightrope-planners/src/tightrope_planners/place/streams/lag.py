"""The fewest waits that bring what parallel streams need under a capacity.

Idea        Streams that run ahead of each other keep more alive at once. A wait (u, v) holds op v back
            until op u has ended; where the bound is above the capacity, its witness says where a wait
            can help. Only waits between neighbours in issue order matter: every other one follows
            from one of them. Greedy: among the waits that break the first witness, take the one that
            gets furthest; then drop what is not needed. Small graphs: branch on the witness's waits,
            with one wait more at a time, which proves the number.
Source      own; branching as in hitting-set search (Reiter, 1987)
Guarantee   The bound of the result fits the capacity. At least ``num_needed`` waits are needed by any
            answer that keeps the issue order; ``proved`` says when that is the number found. A capacity
            that no set of waits reaches is refused with a proof: with all waits the order is total.
Complexity  A candidate costs one pass of clocks and one maximum flow. Greedy: at most 64 candidates a
            wait. The proof is exponential in the number of waits and stops when the effort is spent.
Gaps        The issue order is given. All waits count alike, whatever they delay.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes, InfeasibleError, OpId, format_bytes
from tightrope.place.options import check_effort, check_whole
from tightrope_planners.place.streams.bound import LiveBound, heaviest, live_bound
from tightrope_planners.place.streams.graph import StreamGraph
from tightrope_planners.place.streams.relation import (
    Relation,
    check_streams,
    clocks_of,
    last_uses,
    relation_of,
)
from tightrope_planners.solvers.safety import Booleans, Integers

Pair: TypeAlias = tuple[OpId, OpId]

_CANDIDATES: Final = 64
_WORK_PER_SECOND: Final = 4_000_000
_WORK_PER_BOUND: Final = 1_000


@dataclass(frozen=True, slots=True)
class Lag:
    """Waits that keep what streams need within a capacity.

    Attributes:
        graph: the graph with its own waits and the added ones.
        added: the added waits, by the op that waits.
        bound: what can be alive at once now.
        num_needed: proved: no answer has fewer waits than this.
    """

    graph: StreamGraph
    added: tuple[Pair, ...]
    bound: LiveBound
    num_needed: int

    @property
    def proved(self) -> bool:
        """Whether no smaller number of waits is enough."""
        return self.num_needed == len(self.added)


def bounded_lag(graph: StreamGraph, capacity: Bytes, *, seconds: float = 1.0) -> Lag:
    """Add the fewest waits with which everything that can be alive at once fits a capacity.

    Args:
        graph: ops on streams; its own waits stay.
        capacity: bytes of all streams together.
        seconds: effort for the proof that fewer are not enough, counted in units of work so that
            results repeat; an answer is found in any case.

    Returns:
        The waits, each with as much lag as the capacity allows.

    Raises:
        InfeasibleError: no waits are enough, because one op after another in issue order needs more.
        TightropeError: a use that no wait orders, or an argument that is negative or no number.

    Example:
        >>> from tightrope_planners.place.streams import StreamStorage
        >>> storages = [StreamStorage(64, op) for op in range(4)]
        >>> graph = StreamGraph.of([0, 1, 1, 0], storages)
        >>> bounded_lag(graph, 128).added, bounded_lag(graph, 64).added
        ((), ((0, 1), (2, 3)))
    """
    check_whole("capacity", capacity)
    check_effort(seconds)
    search = _LagSearch(graph, capacity, work=int(min(seconds, 1e6) * _WORK_PER_SECOND))
    every = [pair for pair in neighbours(graph) if pair not in set(graph.wait_pairs())]
    _refuse_impossible(search, every)
    added = search.greedy(every)
    needed = min(len(added), search.at_least([], every, len(added)))
    if needed < len(added):
        needed, added = search.prove(every, needed, added)
    added = search.slide(added)
    result = search.relation(added)
    return Lag(result.graph, added, live_bound(result), needed)


def neighbours(graph: StreamGraph) -> tuple[Pair, ...]:
    """List the waits from which all others follow.

    Returns:
        Pairs (u, v) of ops on two streams, u issued before v, with no op of either stream in between.

    Example:
        >>> neighbours(StreamGraph.of([0, 1, 0, 2], []))
        ((0, 1), (1, 2), (2, 3), (1, 3))
    """
    pairs: list[Pair] = []
    last: dict[int, OpId] = {}
    for op, stream in enumerate(graph.streams.tolist()):
        behind = last.get(stream, -1)
        pairs += [(u, op) for s, u in last.items() if s != stream and u > behind]
        last[stream] = op
    return tuple(pairs)


def _refuse_impossible(search: "_LagSearch", every: list[Pair]) -> None:
    least = live_bound(search.relation(every))
    if least.bytes > search.capacity:
        raise InfeasibleError(
            f"the capacity is {format_bytes(search.capacity)} ({search.capacity} B); with every op "
            f"waiting for the one issued before it, {least} ({least.bytes} B). Recompute or "
            "page some of them.",
            asked=search.capacity,
            smallest_found=least.bytes,
            lower_bound=least.bytes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Excess:
    """A set that can be alive at once and is above the capacity.

    Any answer has, for some row, a wait that starts at or behind ``after`` and ends at or before
    ``before``: otherwise no two storages of the set are ordered.
    """

    after: Integers
    before: Integers


class _LagSearch:
    """Bounds under changing waits; what does not change is computed once."""

    def __init__(self, graph: StreamGraph, capacity: Bytes, *, work: int) -> None:
        check_streams(graph)
        self.graph, self.capacity, self.work = graph, capacity, work
        self.own = graph.wait_pairs()
        self.last = last_uses(graph)
        issue = graph.issue
        rows = np.argsort(issue.stream, kind="stable")  # op of each clock row
        self.writers = graph.writers[graph.placed]
        self.resident = graph.resident[graph.placed]
        padded = np.concatenate([rows, [-1]])
        self.last_ops: Integers = padded[np.where(self.last < 0, len(rows), issue.base[:-1] + self.last)]

    def relation(self, added: list[Pair] | tuple[Pair, ...]) -> Relation:
        graph = self.graph.with_waits((*self.own, *added))
        self.work -= _WORK_PER_BOUND + len(graph.streams) + self.last.size
        return relation_of(graph, clocks_of(graph), self.last)

    def fits(self, added: list[Pair] | tuple[Pair, ...]) -> bool:
        births = self.relation(added).births
        return heaviest(births, budget=self.capacity)[1] == len(births.size)

    def excess(self, added: list[Pair]) -> _Excess | None:
        """Find the first set above the capacity, in issue order."""
        relation = self.relation(added)
        _, reach, inside = heaviest(relation.births, budget=self.capacity)
        if reach == len(inside):
            return None
        after, before = self._openings(relation, np.flatnonzero(inside))
        return _Excess(after, before)

    def _openings(self, relation: Relation, inside: npt.NDArray[np.intp]) -> tuple[Integers, Integers]:
        """List, for pairs (a, b) inside, the last use of a that nothing orders before the writer of b."""
        issue, writers = self.graph.issue, self.writers[inside]
        rows = issue.base[issue.stream[writers]] + issue.position[writers]
        open_until = np.full((len(inside), len(inside)), -1, dtype=np.int64)
        latest = self.last_ops[inside].max(axis=1)
        for stream in range(issue.num_streams):
            unordered = relation.clocks[rows, stream][None, :] <= self.last[inside, stream][:, None]
            uses = np.where(unordered, self.last_ops[inside, stream][:, None], -1)
            open_until = np.maximum(open_until, uses)
        can = (latest[:, None] < writers[None, :]) & ~self.resident[inside][:, None]
        a, b = np.nonzero(can)
        after, before = open_until[a, b], writers[b]
        return _outermost(after, before)

    def greedy(self, every: list[Pair]) -> tuple[Pair, ...]:
        """Add the wait that gets furthest until all fits, then drop what is not needed."""
        added: list[Pair] = []
        while (excess := self.excess(added)) is not None:
            useful = _inside(excess, every, added)
            assert useful, "with all waits it fits"
            if len(useful) > _CANDIDATES:
                picks = np.linspace(0, len(useful) - 1, _CANDIDATES).astype(int)
                useful = [useful[pick] for pick in dict.fromkeys(picks.tolist())]
            added.append(max(useful, key=lambda pair: self._reach([*added, pair])))
        return self._needed(added)

    def _reach(self, added: list[Pair]) -> int:
        return heaviest(self.relation(added).births, budget=self.capacity)[1]

    def _needed(self, added: list[Pair]) -> tuple[Pair, ...]:
        for pair in list(added):
            rest = [other for other in added if other != pair]
            if self.fits(rest):
                added = rest
        return tuple(sorted(added, key=lambda pair: pair[::-1]))

    def at_least(self, added: list[Pair], allowed: list[Pair], most: int) -> int:
        """Prove a number of allowed waits that must be added; ``most`` + 1 = no answer has so few.

        All waits that end early are given away for free, those of one set above the capacity after
        those of another: every set then needs a wait that ends later than the ones before.
        """
        free = list(added)
        for count in range(most + 1):
            excess = self.excess(free) if self.work > 0 else None
            if excess is None:
                return count
            useful = _inside(excess, allowed, free)
            if not useful:
                break
            end = max(later for _, later in useful)
            free = [*added, *(pair for pair in allowed if pair[1] <= end)]
        return most + 1

    def prove(self, every: list[Pair], needed: int, best: tuple[Pair, ...]) -> tuple[int, tuple[Pair, ...]]:
        """Look for fewer waits, one more at a time, while the effort lasts."""
        while needed < len(best):
            found = self._branch([], every, needed)
            if self.work <= 0:
                break
            if found is not None:
                return needed, tuple(sorted(found, key=lambda pair: pair[::-1]))
            needed += 1
        return needed, best

    def _branch(self, added: list[Pair], allowed: list[Pair], left: int) -> list[Pair] | None:
        """Add at most ``left`` waits to reach the capacity; None = impossible, or the effort is spent."""
        needed = self.at_least(added, allowed, left)
        excess = self.excess(added) if self.work > 0 and 0 < needed <= left else None
        if excess is None:
            return added if self.work > 0 and needed == 0 else None
        for pair in _inside(excess, allowed, added):
            # answers with this wait are all looked at here
            allowed = [other for other in allowed if other != pair]
            found = self._branch([*added, pair], allowed, left - 1)
            if found is not None or self.work <= 0:
                return found
        return None

    def slide(self, added: tuple[Pair, ...]) -> tuple[Pair, ...]:
        """Let every wait ask for as early an op as the capacity allows."""
        issue = self.graph.issue
        rows = np.argsort(issue.stream, kind="stable")
        pairs = list(added)
        for number, (u, v) in enumerate(pairs):
            base = int(issue.base[issue.stream[u]])
            low, high = base, base + int(issue.position[u])
            while low < high:
                middle = (low + high) // 2
                pairs[number] = (int(rows[middle]), v)
                low, high = (low, middle) if self.fits(pairs) else (middle + 1, high)
            pairs[number] = (int(rows[low]), v)
        return tuple(pairs)


def _outermost(after: Integers, before: Integers) -> tuple[Integers, Integers]:
    """Keep the intervals that lie in no other one."""
    order = np.lexsort((-before, after))
    after, before = after[order], before[order]
    furthest = np.maximum.accumulate(before) if len(before) else before
    kept = np.ones(len(before), dtype=np.bool_)
    kept[1:] = before[1:] > furthest[:-1]
    return after[kept], before[kept]


def _inside(excess: _Excess, pairs: list[Pair], added: list[Pair]) -> list[Pair]:
    """List the waits that can break a set: those inside one of its intervals."""
    if not len(excess.after):
        return []
    table = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
    place = np.searchsorted(excess.after, table[:, 0], side="right") - 1
    good: Booleans = (place >= 0) & (excess.before[np.maximum(place, 0)] >= table[:, 1])
    taken = set(added)
    return [pairs[index] for index in np.flatnonzero(good).tolist() if pairs[index] not in taken]
