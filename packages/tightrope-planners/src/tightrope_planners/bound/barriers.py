"""Barriers: an op whose re-run does not fit unless some expensive op runs again then or later.

Idea        While an op runs again just before base op t, what t and later ops still need is live, or
            will be made again from something that is. With some expensive ops set aside, every chain
            ``needed storage, what its producer reads, what that one's producer reads, ...`` ends at a
            storage that nothing makes again, so one storage of every chain is live. The fewest bytes
            that meet every chain are a minimum vertex cut; where they and what the op itself takes
            exceed the budget, the op does not run then, or one of the expensive ops runs again later.
Source      own; Menger's theorem gives the chains as a maximum flow
Guarantee   Holds for every schedule within the budget that recomputes, does not page and keeps the base
            order. The chains prove it by addition: no storage gives more than its bytes.
Complexity  One maximum flow over the storages per op and instant.
Gaps        Only what the cheapest solution so far runs again is looked at.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from tightrope.core import Barrier, Bytes, Chain, Graph, OpId, StorageId
from tightrope.plan.bound.problem import Problem
from tightrope_planners.bound.stages import Lineage
from tightrope_planners.solvers.mincut import INFINITE, max_flow


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an op does not run again right before a base op.

    Attributes:
        chains: that leave it no room.
        others: expensive ops that would make room.
    """

    chains: tuple[Chain, ...]
    others: frozenset[OpId]


class Barriers:
    """The barriers of a graph under a budget that were found so far.

    Attributes:
        stops: by op, and base op that it does not run before.
        work: edges of all flows so far.
    """

    def __init__(self, graph: Graph, problem: Problem, lineage: Lineage, budget: Bytes) -> None:
        self.graph, self.problem, self.lineage, self.budget = graph, problem, lineage, budget
        self.stops: dict[OpId, dict[OpId, Stop]] = {}
        self.work = 0

    def between(self, rows: Sequence[OpId]) -> list[Barrier]:
        """List the barriers from one row to the next that all their base ops agree on."""
        found = list[Barrier]()
        for op, stops in self.stops.items():
            for row, (first, last) in enumerate(pairwise(rows)):
                stages = [stops.get(stage) for stage in range(max(first, op) + 1, last + 1)]
                if first < op or not all(stages):
                    continue
                agreed = [stop for stop in stages if stop is not None]
                others = frozenset[OpId]().union(*(stop.others for stop in agreed))
                found.append(Barrier(op, row, tuple(sorted(others)), tuple(stop.chains for stop in agreed)))
        return found

    def look(self, op: OpId, first: OpId, last: OpId, expensive: frozenset[OpId]) -> list[OpId]:
        """Look for base ops in a stretch before which an op does not fit, and go on beyond both ends.

        Args:
            op: that runs again between both rows in some solution.
            first: op of the row before.
            last: op of the next row.
            expensive: ops that are set aside.

        Returns:
            Two ops that as rows enclose the longest stretch that is blocked; none where nothing new is.
        """
        before = dict(self.stops.get(op, {}))
        inside = [s for s in range(max(first, op) + 1, last + 1) if self._blocks(op, s, expensive)]
        if self.stops.get(op, {}) == before:
            return []
        lengths = {end: next(n for n in count(1) if end - n not in inside) for end in inside}
        high = max(inside, key=lambda end: (lengths[end], end))
        low = high - lengths[high] + 1
        while low - 1 > op and self._blocks(op, low - 1, expensive):
            low -= 1
        while high + 1 < len(self.graph.ops) and self._blocks(op, high + 1, expensive):
            high += 1
        return [low - 1, high]

    def _blocks(self, op: OpId, stage: OpId, expensive: frozenset[OpId]) -> bool:
        """Tell whether an op does not fit before a base op, and note why."""
        known = self.stops.get(op, {}).get(stage)
        if known is not None and known.others <= expensive:
            return True
        chains = self._chains(op, stage, expensive)
        if chains is None:
            return known is not None
        ends = {storages[-1] for _, storages in chains}
        others = frozenset(self.lineage.producer[end] for end in ends if self.remade(end))
        self.stops.setdefault(op, {})[stage] = Stop(chains, others)
        return True

    def remade(self, storage: StorageId) -> bool:
        """Tell whether a storage may be made again; what must be resident at the end stays."""
        return storage in self.lineage.remade and not self.graph.storages[storage].resident_at_end

    def _chains(self, op: OpId, stage: OpId, expensive: frozenset[OpId]) -> tuple[Chain, ...] | None:
        """Find chains that together leave no room for an op before a base op; None where it fits."""
        ways = self.problem.runs[op]
        read = frozenset(self.lineage.inputs[op])
        taken = self.graph.persistent + min(way.need for way in ways)
        taken += sum(self.graph.storages[storage].size for storage in read)
        counted = read.union(*(way.creates for way in ways))
        heads = [s for s in self._needed(stage) if s not in counted]
        network = _ChainNetwork(self, stage, expensive, counted)
        amount = network.flow(heads)
        self.work += len(network.edges)
        return tuple(network.chains()) if taken + amount > self.budget else None

    def _needed(self, stage: OpId) -> Iterator[StorageId]:
        """List what was made before a base op and is needed at it or later."""
        for storage, uses in self.lineage.uses.items():
            if uses[0] < stage and (uses[-1] >= stage or self.graph.storages[storage].resident_at_end):
                yield storage


class _ChainNetwork:
    """Storages as vertices with room for their bytes; flow comes from what nothing makes again.

    A storage is two vertices, joined by an edge of its bytes; what the op itself reads or makes is left out.
    """

    def __init__(
        self, of: Barriers, stage: OpId, expensive: frozenset[OpId], counted: frozenset[StorageId]
    ) -> None:
        self.of, self.stage, self.expensive, self.counted = of, stage, expensive, counted
        self.number: dict[StorageId, int] = {}
        self.edges: list[tuple[int, int, int]] = []
        self.flows: tuple[int, ...] = ()

    def flow(self, heads: list[StorageId]) -> Bytes:
        """Push as many bytes as go from what nothing makes again to what is needed."""
        waiting = list(heads)
        while waiting:
            storage = waiting.pop()
            made = self.of.lineage.producer[storage] < self.stage  # a replay may read what is made later
            if storage in self.number or storage in self.counted or not made:
                continue
            self.number[storage] = len(self.number)
            if self._again(storage):
                waiting += self.of.lineage.read_for(storage)
        for storage, number in self.number.items():
            self.edges.append((2 * number + 2, 2 * number + 3, self.of.graph.storages[storage].size))
            if not self._again(storage):
                self.edges.append((0, 2 * number + 2, INFINITE))
                continue
            for read in self.of.lineage.read_for(storage):
                if read in self.number:
                    self.edges.append((2 * self.number[read] + 3, 2 * number + 2, INFINITE))
        self.edges += [(2 * self.number[head] + 3, 1, INFINITE) for head in heads]
        total, self.flows = max_flow(2 * len(self.number) + 2, self.edges, source=0, sink=1)
        return total

    def _again(self, storage: StorageId) -> bool:
        return self.of.remade(storage) and self.of.lineage.producer[storage] not in self.expensive

    def chains(self) -> Iterator[Chain]:
        """Take the flow apart into chains, needed storage first."""
        storages = list(self.number)
        out: dict[int, list[list[int]]] = defaultdict(list)
        for (start, end, _), flow in zip(self.edges, self.flows, strict=True):
            if flow:
                out[start].append([end, flow])
        while out[0]:
            path, at = [], 0
            while at != 1:
                edge = out[at][-1]
                path.append((at, edge))
                at = edge[0]
            least = min(edge[1] for _, edge in path)
            for start, edge in path:
                edge[1] -= least
                if not edge[1]:
                    out[start].pop()
            yield least, tuple(storages[(start - 3) // 2] for start, _ in reversed(path) if start % 2)
