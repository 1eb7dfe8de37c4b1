"""Orders by list scheduling: each rank takes the ready computation that its rule puts first.

Idea        An event simulation with a rule per run: which micro-batches go together (`group`: few = depth
            first, all = breadth first), whether backwards come before forwards, and whether the weights' half
            of a backward waits for idle time. A forward may begin only where, behind it, the oldest
            micro-batch of the rank still has room for the rest of its own forwards.
Source      Zero-bubble pipelines (Qi et al. 2024) for halves that fill idle time; the byte rule is the
            banker's algorithm (Dijkstra 1965) with one resource.
Guarantee   The oldest micro-batch of all ranks can always go on, so no order stops half-way for lack of
            bytes, if any micro-batch fits alone. Bytes are those of `simulate` without gathered parameters.
Complexity  O(actions x candidates per rank).
Gaps        Greedy: which rule is best is found by trying them (`search`).
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass

from tightrope.core import Machine
from tightrope.core.units import Bytes
from tightrope_ranks.pipeline.language import Action, Orders
from tightrope_ranks.values.ranks import StageWork


@dataclass(frozen=True, slots=True)
class ListRule:
    """How a rank chooses.

    Attributes:
        group: micro-batches that go through a stage together.
        backward_first: whether a backward goes before a forward that is ready, too.
        split: whether backwards are divided into halves.
        lag: computations by which the weights' half may stay behind; only where backwards are divided.
        ahead: largest number of micro-batches in flight on a rank, 0 = as many as fit.
    """

    group: int
    backward_first: bool = True
    split: bool = False
    lag: int = 1 << 30
    ahead: int = 0


def list_orders(
    work: StageWork,
    machine: Machine,
    rule: ListRule,
    *,
    room: tuple[Bytes, ...] = (),
    again: Collection[tuple[int, int]] = (),
) -> Orders | None:
    """Schedule by a rule.

    Args:
        work: what is done.
        machine: whose links messages go over.
        rule: how ranks choose.
        room: bytes of every rank beside what it holds all the time; empty = no limit.
        again: forwards that are computed again; their backwards are not divided.

    Returns:
        Computations of every rank; None where not even one micro-batch fits.
    """
    return _Lister(work, machine, rule, room, frozenset(again)).run()


class _Lister:
    """Clocks of the ranks, and what is ready."""

    def __init__(
        self,
        work: StageWork,
        machine: Machine,
        rule: ListRule,
        room: tuple[Bytes, ...],
        again: frozenset[tuple[int, int]],
    ) -> None:
        self.work, self.rule, self.room, self.again = work, rule, room, again
        ranks = range(work.num_ranks)
        self.local = [work.local(rank) for rank in ranks]
        self.turn = {stage: k for some in self.local for k, stage in enumerate(some)}
        self.now = [0] * work.num_ranks
        self.live = [0] * work.num_ranks
        self.rows: list[list[Action]] = [[] for _ in ranks]
        # per rank: (time, kind, stage, micro-batch) that will be ready, and what is
        self.coming: list[list[tuple[int, str, int, int]]] = [[] for _ in ranks]
        self.ready: list[dict[str, set[tuple[int, int]]]] = [
            {"F": set(), "B": set(), "W": set()} for _ in ranks
        ]
        self.left = [len(some) * work.num_micro_batches for some in self.local]  # backwards to come
        self.forwards: dict[tuple[int, int], int] = {}  # forwards that a rank has done of a micro-batch
        self.backs: dict[tuple[int, int], int] = {}
        self.oldest = [0] * work.num_ranks
        self.hops = [self._hop(machine, stage) for stage in range(len(work.stages) - 1)]
        self.events: list[tuple[int, int]] = []
        for micro in range(work.num_micro_batches):
            self._expect(0, "F", 0, micro)

    def _hop(self, machine: Machine, stage: int) -> int:
        one, other = self.work.owners[stage], self.work.owners[stage + 1]
        if one == other:
            return 0
        link = machine.links[machine.link(one * self.work.replicas, other * self.work.replicas)]
        return link.message_ns(self.work.stages[stage].output)

    def _expect(self, time: int, kind: str, stage: int, micro: int) -> None:
        rank = self.work.owners[stage]
        heapq.heappush(self.coming[rank], (time, kind, stage, micro))
        heapq.heappush(self.events, (time, rank))

    def run(self) -> Orders | None:
        heapq.heapify(self.events)
        while self.events:
            now, rank = heapq.heappop(self.events)
            if now < self.now[rank]:
                continue
            self.now[rank] = now
            self._collect(rank, now)
            chosen = self._choose(rank)
            if chosen is not None:
                self.now[rank] = self._do(rank, *chosen)
                heapq.heappush(self.events, (self.now[rank], rank))
        done = all(not left for left in self.left)
        return tuple(tuple(row) for row in self.rows) if done else None

    def _collect(self, rank: int, now: int) -> None:
        coming = self.coming[rank]
        while coming and coming[0][0] <= now:
            _, kind, stage, micro = heapq.heappop(coming)
            self.ready[rank][kind].add((stage, micro))

    # choosing

    def _choose(self, rank: int) -> tuple[str, int, int] | None:
        ready, group = self.ready[rank], self.rule.group
        weights = ready["W"]
        if weights and len(weights) > self.rule.lag:
            return ("W", *min(weights, key=lambda one: one[1]))
        fits = [one for one in ready["F"] if self._fits(rank, *one)]
        forward = min(fits, key=lambda one: (one[1] // group, self.turn[one[0]], one[1]), default=None)
        backs = [one for one in ready["B"] if self._backward_fits(rank, *one)]
        back = min(backs, key=lambda one: (one[1] // group, -self.turn[one[0]], one[1]), default=None)
        first, second = (back, forward) if self.rule.backward_first else (forward, back)
        if first is not None:
            return ("B" if self.rule.backward_first else "F", *first)
        if second is not None:
            return ("F" if self.rule.backward_first else "B", *second)
        if weights:
            return ("W", *min(weights, key=lambda one: one[1]))
        return None

    def _bytes(self, stage: int, micro: int) -> Bytes:
        """Bytes from forward to backward, with what was received."""
        cost = self.work.stages[stage]
        return self._received(stage) + cost.output + (0 if (stage, micro) in self.again else cost.saved)

    def _received(self, stage: int) -> Bytes:
        alone = stage and self.work.owners[stage - 1] != self.work.owners[stage]
        return self.work.stages[stage].input if alone else 0

    def _spare(self, stage: int, micro: int) -> Bytes:
        """Bytes that a stage takes beside while it runs, and what its backward needs."""
        cost = self.work.stages[stage]
        redo = cost.saved if (stage, micro) in self.again else 0
        half = cost.half if self.rule.split and not redo else 0
        return cost.work + redo + cost.input + cost.output + half + 2 * (cost.input + cost.output)

    def _fits(self, rank: int, stage: int, micro: int) -> bool:
        oldest = self.oldest[rank]
        if self.rule.ahead and micro >= oldest + self.rule.ahead:
            return False
        if not self.room:
            return True
        most = max(self._spare(one, micro) for one in self.local[rank])
        rest = 0
        if micro != oldest:
            done = self.forwards.get((rank, oldest), 0)
            rest = sum(self._bytes(one, oldest) for one in self.local[rank][done:])
        return self.live[rank] + self._bytes(stage, micro) + rest + most <= self.room[rank]

    def _backward_fits(self, rank: int, stage: int, micro: int) -> bool:
        """Keep halves from filling the room: then weights go first."""
        if not self.room or not self.ready[rank]["W"]:
            return True
        return self.live[rank] + self._spare(stage, micro) <= self.room[rank]

    # doing

    def _do(self, rank: int, kind: str, stage: int, micro: int) -> int:
        cost = self.work.stages[stage]
        self.ready[rank][kind].discard((stage, micro))
        redo = (stage, micro) in self.again
        begin = self.now[rank]
        if kind == "F":
            end = begin + cost.forward
            self.live[rank] += self._bytes(stage, micro)
            self.forwards[rank, micro] = self.forwards.get((rank, micro), 0) + 1
            if stage + 1 < len(self.work.stages):
                self._expect(end + self.hops[stage], "F", stage + 1, micro)
            else:
                self._expect(end, "B", stage, micro)
            self.rows[rank].append(Action(stage, "F", micro))
        elif kind == "W":
            end = begin + cost.weight
            self.live[rank] -= cost.half
            self.rows[rank].append(Action(stage, "W", micro))
        else:
            split = self.rule.split and not redo
            end = begin + cost.backward + (0 if split else cost.weight) + (cost.forward if redo else 0)
            self.live[rank] -= self._bytes(stage, micro)
            self.rows[rank].append(Action(stage, "I" if split else "B", micro))
            if split:
                self.live[rank] += cost.half
                self._expect(end, "W", stage, micro)
            if stage:
                self._expect(end + self.hops[stage - 1], "B", stage - 1, micro)
            self.left[rank] -= 1
            self.backs[rank, micro] = self.backs.get((rank, micro), 0) + 1
            while self.backs.get((rank, self.oldest[rank]), 0) == len(self.local[rank]):
                self.oldest[rank] += 1
        return end


def filled(work: StageWork, machine: Machine, orders: Orders, *, lag: int) -> Orders:
    """Divide the backwards of an order, and let halves of weights fill idle time.

    Args:
        work: what is done.
        machine: whose links messages go over.
        orders: computations of every rank, with whole backwards.
        lag: most halves that wait; one more goes at once.

    Returns:
        The same order of forwards and input gradients, with the weights' halves where a rank would wait for
        at least half of their time, or at the end.
    """
    hops = _Lister(work, machine, ListRule(1), (), frozenset()).hops
    done: dict[tuple[str, int, int], int] = {}
    at, now = [0] * len(orders), [0] * len(orders)
    rows: list[list[Action]] = [[] for _ in orders]
    waiting: list[list[tuple[int, int]]] = [[] for _ in orders]

    def weigh(rank: int) -> None:
        stage, micro = waiting[rank].pop(0)
        rows[rank].append(Action(stage, "W", micro))
        now[rank] += work.stages[stage].weight

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(orders):
            while at[rank] < len(row):
                stage, kind, micro = row[at[rank]]
                back = kind != "F"
                before = (
                    (stage + 1 if back else stage - 1) if not back or stage + 1 < len(work.stages) else -1
                )
                ready: int | None = 0
                if before >= 0:
                    key = ("I" if back else "F", before, micro)
                    hop = hops[min(stage, before)]
                    ready = done[key] + hop if key in done else None
                if ready is None:
                    break
                while waiting[rank]:
                    gap, taken = ready - now[rank], work.stages[waiting[rank][0][0]].weight
                    if 2 * gap < taken and len(waiting[rank]) <= lag:
                        break
                    weigh(rank)
                cost = work.stages[stage]
                now[rank] = max(now[rank], ready) + (cost.backward if back else cost.forward)
                done["I" if back else "F", stage, micro] = now[rank]
                rows[rank].append(Action(stage, "I" if back else "F", micro))
                if back:
                    waiting[rank].append((stage, micro))
                at[rank] += 1
                moved = True
    for rank in range(len(orders)):
        while waiting[rank]:
            weigh(rank)
    return tuple(tuple(row) for row in rows)
