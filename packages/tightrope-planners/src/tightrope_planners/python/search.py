"""The greedy search in Python, for machines without a C++ compiler.

Idea        The same byte profile and the same greedy as ``native/solvers/solver.cpp``, step for step: walk
            the events; where bytes exceed the limit, drop the idle storage with the least score and
            run its producer again, with dead inputs, before its next reader.
Source      Dynamic Tensor Rematerialization (ICLR 2021) for the first score; planned, not online
Guarantee   Equal calls give the same sets as the native greedy.
Complexity  O(storages) per eviction, O(lifetime) per added pair; about 100 times slower than native.
Gaps        No annealing.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from tightrope.core import Bytes, StepIndex, StorageId
from tightrope.native.solvers.solver import State
from tightrope.plan.model import Model, Pair

_LONGEST, _FARTHEST = 48, 512
"""Most ops in one chain of recomputations, and where no such chain is left."""


class PythonSolver:
    """One current set of pairs with its byte profile; events are pairs, op t itself is ``(t, t)``."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.num_ops = len(model.need)
        self.end: Pair = (self.num_ops, self.num_ops)
        self.limit: float = float("inf")
        self.candidates = [
            s
            for s, op in enumerate(model.producer)
            if op >= 0 and not model.pinned[s] and model.size[s] > 0 and model.window[op][1] > op
        ]
        self._reset()

    def _reset(self) -> None:
        model = self.model
        self.runs: list[Pair] = []
        self.again: list[Bytes] = []
        self.made: list[list[Pair]] = [[(op, op)] if op >= 0 else [] for op in model.producer]
        self.read: list[list[Pair]] = [[] for _ in model.producer]
        for op, reads in enumerate(model.reads):
            for storage in reads:
                self.read[storage].append((op, op))
        for storage, last in enumerate(model.at_end):
            if last:
                self.read[storage].append(self.end)
        self.base = list(model.need)
        for storage, readers in enumerate(self.read):
            if readers and model.producer[storage] >= 0:
                self._spread(self.made[storage][0], readers[-1], model.size[storage])
        for op in range(self.num_ops):
            self.base[op] -= self._overlap((op, op))

    def load(self, pairs: Iterable[Pair]) -> None:
        """Make ``pairs`` the current set."""
        self._reset()
        for pair in pairs:
            self._add(pair)

    def pairs(self) -> tuple[Pair, ...]:
        """List the current set, ascending."""
        return tuple(self.runs)

    def state(self, limit: Bytes) -> State:
        """Measure the current set against ``limit`` bytes."""
        self.limit = limit
        peak = max((*self.base, *self.again), default=0)
        return State(self.model.cost(self.runs), int(self._excess()), peak, len(self.runs))

    def greedy(self, limit: Bytes, rule: int, *, far: bool = False) -> bool:
        """Replace the current set by a greedy one; return whether it fits ``limit``.

        Args:
            limit: bytes.
            rule: score, see `tightrope.native.solvers.solver.NUM_RULES`.
            far: recompute from far back where nothing short is left to give up.
        """
        self._reset()
        self.limit = limit
        at = self._over_from((0, -1))
        while at is not None:
            chain = self._cheapest(at, rule, _LONGEST)
            if far and not chain:
                chain = self._cheapest(at, rule, _FARTHEST)
                far = bool(chain)
            for pair in chain:
                self._add(pair)
            at = self._over_from(at if chain else (at[0], at[1] + 1))
        self._prune()
        return self._excess() == 0

    def _cheapest(self, at: Pair, rule: int, most: int) -> list[Pair]:
        """Find the chain of at most so many ops that drops a storage for the least score."""
        least, chain = float("inf"), list[Pair]()
        for storage in self.candidates:
            score, candidate = self._price(storage, at, rule, most)
            if score < least:
                least, chain = score, candidate
        return chain

    def _prune(self) -> None:
        for pair in sorted(self.runs, key=lambda pair: -self.model.again_ns[pair[1]]):
            before = self._excess()
            self._remove(pair)
            if self._excess() > before:
                self._add(pair)

    def _excess(self) -> float:
        return sum(size - self.limit for size in (*self.base, *self.again) if size > self.limit)

    def _price(self, storage: StorageId, at: Pair, rule: int, most: int) -> tuple[float, list[Pair]]:
        stage = self._next_use(storage, at)
        found: dict[Pair, None] = {}
        if stage < 0 or not self._collect((stage, self.model.producer[storage]), at, most, found):
            return float("inf"), []
        chain = list(found)
        ns = 1.0 + sum(float(self.model.again_ns[op]) for _, op in chain)
        distance, size = float(stage - at[0] + 1), float(self.model.size[storage])
        return (ns / (size * distance), ns / size, -size, -distance, ns / distance)[rule], chain

    def _next_use(self, storage: StorageId, at: Pair) -> StepIndex:
        """Find the stage before which a storage must be made again when it is dropped at ``at``."""
        op = self.model.producer[storage]
        readers = self.read[storage]
        later = bisect_right(readers, at)
        if op >= at[0] or later == len(readers) or (later > 0 and readers[later - 1] == at):
            return -1
        reader = readers[later]
        pair = (reader[0], op)
        if reader == self.end or not self.model.allowed(pair) or pair <= at or self._has(pair):
            return -1
        copies = self.made[storage]
        return -1 if copies[bisect_left(copies, reader) - 1] >= at else reader[0]

    def _collect(self, pair: Pair, at: Pair, most: int, chain: dict[Pair, None]) -> bool:
        """Collect a pair and those for its inputs that are gone by ``at``; tell whether that works."""
        if pair in chain:
            return True
        if not self.model.allowed(pair) or pair <= at or self._has(pair) or len(chain) >= most:
            return False
        chain[pair] = None
        for storage in self.model.again_reads[pair[1]]:
            if self.model.pinned[storage] or self._copy(storage, pair)[1] >= at:
                continue
            source = self.model.producer[storage]
            if source == pair[1] or not self._collect((pair[0], source), at, most, chain):
                return False
        return True

    def _has(self, pair: Pair) -> bool:
        slot = bisect_left(self.runs, pair)
        return slot < len(self.runs) and self.runs[slot] == pair

    def _copy(self, storage: StorageId, at: Pair) -> tuple[Pair, Pair]:
        """Find the copy that an event at ``at`` reads: its creation and its last reader."""
        copies = self.made[storage]
        slot = bisect_left(copies, at)
        start = copies[slot - 1]
        following = bisect_right(copies, at)
        after = copies[following] if following < len(copies) else (self.num_ops + 1, 0)
        return start, self._reader_before(storage, start, after)

    def _reader_before(self, storage: StorageId, start: Pair, before: Pair) -> Pair:
        readers = self.read[storage]
        slot = bisect_left(readers, before)
        return readers[slot - 1] if slot > 0 and readers[slot - 1] > start else start

    def _add(self, pair: Pair) -> None:
        stage, op = pair
        model, slot = self.model, bisect_left(self.runs, pair)
        if slot < len(self.runs) and self.runs[slot][0] == stage:
            live = self.again[slot] + self._overlap(self.runs[slot]) - model.again_need[self.runs[slot][1]]
        else:
            live = self.base[stage] + self._overlap((stage, stage)) - model.need[stage]
        self.runs.insert(slot, pair)
        self.again.insert(slot, live + model.again_need[op])
        for storage in model.again_creates[op]:
            start, stop = self._copy(storage, pair)
            earlier = self._reader_before(storage, start, pair)
            self._settle(storage, earlier, stop, 1)
            if stop > pair:
                self._spread(earlier, pair, -model.size[storage])
            insort(self.made[storage], pair)
            self._settle(storage, earlier, stop, -1)
        for storage in model.again_reads[op]:
            stop = self._copy(storage, pair)[1]
            self._settle(storage, stop, pair, 1)
            if stop < pair:
                self._spread(stop, pair, model.size[storage])
            insort(self.read[storage], pair)
            self._settle(storage, stop, pair, -1)

    def _remove(self, pair: Pair) -> None:
        model = self.model
        for storage in model.again_reads[pair[1]]:
            self._settle(storage, self._copy(storage, pair)[1], pair, 1)
            self.read[storage].remove(pair)
            stop = self._copy(storage, pair)[1]
            if stop < pair:
                self._spread(stop, pair, -model.size[storage])
            self._settle(storage, stop, pair, -1)
        for storage in model.again_creates[pair[1]]:
            start, stop = self._copy(storage, pair)
            earlier = self._reader_before(storage, start, pair)
            self._settle(storage, earlier, stop, 1)
            self.made[storage].remove(pair)
            if stop > pair:
                self._spread(earlier, pair, model.size[storage])
            self._settle(storage, earlier, stop, -1)
        slot = self.runs.index(pair)
        del self.runs[slot], self.again[slot]

    def _target(self, at: Pair) -> StorageId:
        return self.model.over[at[1]] if at[0] == at[1] else self.model.again_over[at[1]]

    def _overlap(self, at: Pair) -> Bytes:
        """Bytes that an event takes less: it writes over a copy of its part that it reads last."""
        storage, part = self._target(at), self.model.part
        if storage < 0 or self.model.producer[storage] < 0:
            return 0
        start, stop = self._copy(storage, at)
        return self.model.size[storage] if stop == at and part[start[0]] == part[at[0]] else 0

    def _settle(self, storage: StorageId, one: Pair, other: Pair, sign: int) -> None:
        """Take back (sign 1), or give again (-1), what two events save by writing over a storage."""
        for at in {one, other}:
            if at == self.end or self._target(at) != storage or not (saved := self._overlap(at)):
                continue
            values, slot = (self.base, at[0]) if at[0] == at[1] else (self.again, bisect_left(self.runs, at))
            values[slot] += sign * saved

    def _spread(self, after: Pair, until: Pair, delta: Bytes) -> None:
        """Add to the bytes of every event in (after, until]."""
        first = after[0] + (after[0] == after[1])
        stop = min(until[0] + (until[0] == until[1]), self.num_ops)
        _shift(self.base, first, stop, delta)
        _shift(self.again, bisect_right(self.runs, after), bisect_right(self.runs, until), delta)

    def _over_from(self, start: Pair) -> Pair | None:
        stage = start[0] + (start[1] > start[0])
        over = next((t for t in range(stage, self.num_ops) if self.base[t] > self.limit), self.num_ops)
        slots = range(bisect_left(self.runs, start), len(self.runs))
        again = next((self.runs[i] for i in slots if self.again[i] > self.limit), self.end)
        found = min((over, over), again)
        return None if found == self.end else found


def _shift(values: list[Bytes], first: int, stop: int, delta: Bytes) -> None:
    for index in range(first, stop):
        values[index] += delta
