"""Brute force over everything that a schedule may hold, for small graphs; shares nothing with planners.

A state is (first run that comes next, last re-run of this stage, storages held). Between two runs any
storage may be dropped; a run needs what it reads, and takes its own allocations on top of what is held.
Re-runs of one stage stand in base order, each at most once, as in Checkmate's stages. Dijkstra over the
states gives the least time within a capacity, or the least capacity of all schedules.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property

from tests.oracles import Pair, allowed_pairs
from tightrope.core import Graph, Op, round_up

State = tuple[int, int, frozenset[int], tuple[int, ...]]
"""Next first run, last re-run of the stage, storages held, re-runs of each op so far (when limited)."""


@dataclass(frozen=True)
class Brute:
    """All schedules of a small graph.

    ``max_runs``: runs of each op at most, None = any number. ``any_order``: re-runs of a stage in any
    order, any number of times.
    """

    graph: Graph
    max_runs: int | None = None
    any_order: bool = False

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        return frozenset(allowed_pairs(self.graph))

    @cached_property
    def stays(self) -> frozenset[int]:
        return frozenset(s.id for s in self.graph.storages if s.resident_at_end or s.outside)

    @cached_property
    def base_reads(self) -> frozenset[int]:
        return frozenset(s.id for s in self.graph.storages if s.external)

    def least_ns(self, capacity: int) -> int | None:
        """Find the least time of all schedules whose live arena bytes are at most ``capacity``."""
        found = self._search(capacity)
        return None if found is None else found[1]

    def least_peak(self) -> int:
        """Find the least peak of all schedules."""
        found = self._search(None)
        assert found is not None
        return found[0]

    def _search(self, capacity: int | None) -> tuple[int, int] | None:
        """Dijkstra by time within a capacity; without one, by peak."""
        start: State = (0, -1, frozenset(), (0,) * len(self.graph.ops) if self.max_runs else ())
        queue: list[tuple[int, int, int, State]] = [(0, 0, 0, start)]
        done: set[State] = set()
        number = 0
        while queue:
            key, other, _, state = heapq.heappop(queue)
            peak, ns = (other, key) if capacity is not None else (key, other)
            if state in done:
                continue
            done.add(state)
            if state[0] == len(self.graph.ops):
                return peak, ns
            for more, spent, after in self._moves(state):
                if after not in done and (capacity is None or more <= capacity):
                    high, total = max(peak, more), ns + spent
                    number += 1
                    first, second = (total, high) if capacity is not None else (high, total)
                    heapq.heappush(queue, (first, second, number, after))
        return None

    def _moves(self, state: State) -> list[tuple[int, int, State]]:
        stage, last, held, counts = state
        moves = [(0, 0, (stage, last, held - {s}, counts)) for s in held - self.stays]
        for op in range(last + 1, stage):
            if (stage, op) in self.pairs and not (counts and counts[op] + 2 > (self.max_runs or 0)):
                base = self.graph.ops[op]
                run = self.graph.op(base.variant) if base.variant >= 0 else base
                made = set(run.creates) - self.stays
                more = tuple(n + (i == op) for i, n in enumerate(counts))
                then = (stage, -1 if self.any_order else op, more)
                moves += self._run(run, held - made, made, then)
        base = self.graph.ops[stage]
        moves += self._run(base, held, set(base.creates), (stage + 1, -1, counts))
        return moves

    def _run(
        self, op: Op, held: frozenset[int], made: set[int], then: tuple[int, int, tuple[int, ...]]
    ) -> list[tuple[int, int, State]]:
        if not set(op.reads) <= held | self.base_reads:
            return []
        live = sum(self.graph.storages[s].size for s in held if not self.graph.storages[s].outside)
        return [(live + self._own(op), op.ns, (then[0], then[1], held | made, then[2]))]

    def _own(self, op: Op) -> int:
        rows = [
            a
            for a in self.graph.allocations(op)
            if a.storage < 0 or not self.graph.storages[a.storage].outside
        ]
        ticks = {a.start for a in rows}
        return max(
            (
                sum(round_up(a.bytes) for a in rows if a.start <= t and (a.end < 0 or t < a.end))
                for t in ticks
            ),
            default=0,
        )
