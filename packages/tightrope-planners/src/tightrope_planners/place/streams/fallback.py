"""Stream safety in Python, for machines without a C++ compiler.

Idea        The same clocks, death positions, maximum flow and first fit as the native part, with
            numpy where it helps.
Source      see ``native/safety.cpp``
Guarantee   clocks, hazards, death positions and antichain weights equal the native ones
Complexity  as the native part, 20 to 200 times slower; first fit only, in two orders
Gaps        no dives and no squeaky wheel, so layouts are a few percent larger
"""

from collections import defaultdict

import numpy as np

from tightrope.core import Bytes, Offset, OpId
from tightrope_planners.solvers.safety import Births, Booleans, Integers, Issue, Positions


def clocks(issue: Issue, waits: Integers) -> Positions:
    """Compute the vector clock of every op at its start; see `tightrope_planners.solvers.safety.clocks`."""
    before = defaultdict(list)
    for earlier, later in waits.tolist():
        before[later].append(earlier)
    streams, positions = issue.stream.tolist(), issue.position.tolist()
    rows = (issue.base[issue.stream] + issue.position).tolist()
    table: list[list[int]] = [[] for _ in rows]
    for op, (stream, position, row) in enumerate(zip(streams, positions, rows, strict=True)):
        clock = list(table[row - 1]) if position else [0] * issue.num_streams
        clock[stream] = position
        for other in before[op]:
            clock = [max(pair) for pair in zip(clock, table[rows[other]], strict=True)]
            clock[streams[other]] = max(clock[streams[other]], positions[other] + 1)
        table[row] = clock
    return np.array(table, dtype=np.int32).reshape(len(table), issue.num_streams)


def note_uses(issue: Issue, uses: Integers, last: Positions) -> None:
    """Raise ``last`` to the positions of the uses; see `tightrope_planners.solvers.safety.note_uses`."""
    storages, ops = uses.T
    np.maximum.at(last, (storages, issue.stream[ops]), issue.position[ops])


def deaths(issue: Issue, clock: Positions, last: Positions, resident: Booleans) -> Positions:
    """Find the position on every stream from which each storage is dead."""
    found = np.zeros_like(last)
    for stream in range(issue.num_streams):
        rows = clock[issue.base[stream] : issue.base[stream + 1]]
        for other in range(issue.num_streams):
            first = np.searchsorted(rows[:, other], last[:, other] + 1, side="left")
            found[:, stream] = np.maximum(found[:, stream], first)
        found[resident, stream] = len(rows)
    return found


def hazard(
    issue: Issue, clock: Positions, writers: Integers, reads: Integers, mutates: Integers
) -> tuple[int, int, int] | None:
    """Find two uses of one storage that nothing orders; see `tightrope_planners.solvers.safety.hazard`."""
    uses: list[dict[OpId, bool]] = [{} for _ in writers]
    for rows, writes in ((reads, False), (mutates, True)):
        for storage, op in rows.tolist():
            uses[storage][op] = writes
    for storage, found in enumerate(uses):
        written, readers = int(writers[storage]), dict[int, OpId]()
        for op in sorted(found):
            for earlier in [written, *(readers.values() if found[op] else ())]:
                if earlier >= 0 and not _ended(issue, clock, earlier, op):
                    return storage, earlier, op
            if found[op]:
                written, readers = op, {}
            else:
                readers[int(issue.stream[op])] = op
    return None


def _ended(issue: Issue, clock: Positions, op: OpId, later: OpId) -> bool:
    row = int(issue.base[issue.stream[later]]) + int(issue.position[later])
    return bool(clock[row, issue.stream[op]] > issue.position[op])


class _AntichainFlow:
    """Bytes that later storages take over from earlier ones; grows one storage at a time."""

    def __init__(self, births: Births) -> None:
        self.size, self.stream = births.size.tolist(), births.stream.tolist()
        self.width = births.deaths.shape[1]
        self.born: list[list[int]] = [[] for _ in range(self.width)]
        for number, stream in enumerate(self.stream):
            self.born[stream].append(number)
        # from_[a][s]: first storage born on s that a precedes, as an index into born[s]
        self.from_ = np.stack(
            [
                np.searchsorted(births.position[births.stream == s], births.deaths[:, s], side="left")
                for s in range(self.width)
            ],
            axis=1,
        ).tolist()
        self.active = [0] * self.width
        self.supply: dict[int, Bytes] = {}
        self.demand: dict[int, Bytes] = {}
        self.taken: list[dict[int, Bytes]] = [{} for _ in self.size]
        self.weight = 0

    def add(self, number: int) -> None:
        self.active[self.stream[number]] += 1
        self.weight += self.size[number]
        self.supply[number] = self.demand[number] = self.size[number]

    def search(self) -> tuple[set[int], list[int]]:
        """Shift bytes along shortest paths until none is left; return what the last search reached."""
        while True:
            parent: dict[int, tuple[int, int]] = {}  # storage -> (giver before it, taker between them)
            queue = [a for a, left in self.supply.items() if left]
            reached, low, end = set(queue), list(self.active), (-1, -1)
            for a in queue:  # grows while it is walked
                for stream in range(self.width):
                    first = self.from_[a][stream]
                    for b in self.born[stream][first : low[stream]]:
                        if self.demand[b]:
                            end = (a, b)
                            break
                        for giver in [
                            g for g, bytes_ in self.taken[b].items() if bytes_ and g not in reached
                        ]:
                            reached.add(giver)
                            parent[giver] = (a, b)
                            queue.append(giver)
                    low[stream] = min(low[stream], first)
                if end[0] >= 0:
                    break
            if end[0] < 0:
                return reached, low
            self._shift(*end, parent)

    def _shift(self, a: int, b: int, parent: dict[int, tuple[int, int]]) -> None:
        amount, at = self.demand[b], a
        while at in parent:
            before, between = parent[at]
            amount, at = min(amount, self.taken[between][at]), before
        amount = min(amount, self.supply[at])
        self.demand[b] -= amount
        self.weight -= amount
        while True:
            self.taken[b][a] = self.taken[b].get(a, 0) + amount
            if a not in parent:
                break
            before, between = parent[a]
            self.taken[between][a] -= amount
            a, b = before, between
        self.supply[a] -= amount


def antichain(births: Births, *, budget: Bytes = -1) -> tuple[Bytes, int, Booleans]:
    """Find the heaviest antichain by augmenting paths; see `tightrope_planners.solvers.safety.antichain`."""
    flow, witness = _AntichainFlow(births), np.zeros(len(births.size), dtype=np.bool_)
    for number in range(len(births.size)):
        flow.add(number)
        last = number + 1 == len(births.size)
        if (budget >= 0 and flow.weight > budget) or (budget < 0 and last):
            reached, low = flow.search()
            if budget < 0 or flow.weight > budget:
                for a in reached:
                    stream = flow.stream[a]
                    witness[a] = flow.born[stream].index(a) < low[stream]
                return flow.weight, number if budget >= 0 else number + 1, witness
    return flow.weight, len(births.size), witness


def place_births(births: Births, alignments: Integers, *, goal: Bytes) -> tuple[Integers, Bytes, str]:
    """Place by first fit, largest first and then by size and conflicts; see the native namesake."""
    before = births.deaths[:, births.stream] <= births.position[None, :]
    conflicts = ~(before | before.T) & (births.size > 0)[None, :]
    degree = conflicts.sum(axis=1)
    best, best_peak = np.zeros(len(births.size), dtype=np.int64), -1
    for key in (births.size, births.size * np.log2(degree + 1.0)):
        offsets = np.full(len(births.size), -1, dtype=np.int64)
        for number in np.argsort(-key, kind="stable").tolist():
            near = np.flatnonzero(conflicts[number] & (offsets >= 0))
            near = near[np.argsort(offsets[near], kind="stable")]
            taken = zip(offsets[near].tolist(), (offsets + births.size)[near].tolist(), strict=True)
            offsets[number] = _lowest(int(births.size[number]), int(alignments[number]), list(taken))
        peak = int((offsets + births.size)[births.size > 0].max(initial=0))
        if best_peak < 0 or peak < best_peak:
            best, best_peak = offsets, peak
        if best_peak <= goal:
            break
    return best, best_peak, "first fit in Python (no C++ compiler)"


def _lowest(size: Bytes, align: Bytes, taken: list[tuple[Offset, Offset]]) -> Offset:
    offset = 0
    for low, high in taken:
        if low >= offset + size:
            break
        if high > offset:
            offset = -(-high // align) * align
    return offset
