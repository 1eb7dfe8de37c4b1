"""Rematerialization with the least bytes, by recursion over balanced separators.

Idea        To make some values of a part: go through its separator in base order; for each member that
            is wanted, make its inputs inside the parts below, one part after the other, run it, let the
            inputs go and hold it. Then make what else is wanted below, and let the separator go.
            Whatever happens to be there already is not made again: values let go stay until their bytes
            are needed; those that no first run will read go first, then those deepest below. A
            post-pass skips re-runs that the bytes allow.
Source      Kumar, Purohit, Svitkina, Vee, Wang: Efficient rematerialization for deep networks
            (NeurIPS 2019); here first runs keep the base order, and the inputs of each op are made so
Guarantee   With a decomposition of width k and at most d inputs of an op, at most
            (k + 1 + d) * levels + d + 1 values at once, levels <= 1 + log2(n): `bytes_bound` in bytes.
            k^O(log n) re-runs for each op; where they exceed `TreewidthKnobs.most_runs`, it gives up.
Complexity  O(re-runs * (w + log n)) and the separators
Gaps        An op with several storages counts as one value. Values that cannot be made again are held,
            beside the bound, until nothing can want them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tightrope.core import Bytes, Graph, Limits, Machine, OpId, Schedule, StepIndex
from tightrope.plan.engine import live_limit
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand_in_order
from tightrope_planners.bound.runs import Runs
from tightrope_planners.peers.recovery import recovery
from tightrope_planners.peers.separators import Separators, separators

_NO_LIMIT: Final = 2**62
_NUM_LIMITS, _RATIO = 60, 0.93
"""Limits that are tried for the fewest bytes, from the peak without re-runs down to a part in 80 of it."""


@dataclass(frozen=True, slots=True)
class TreewidthKnobs:
    """Knobs of the recursion.

    Attributes:
        linger: keep values that were let go while their bytes are not needed.
        generous: first try to hold, instead of what it was made from, what lingers, with half of the
            bytes; then, or without, with no more than the bytes beyond the bound.
        most_runs: re-runs at which the recursion gives up.
    """

    linger: bool = True
    generous: bool = True
    most_runs: int = 200_000


def treewidth(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan by separators within the limit; where that does not fit, with the fewest bytes found."""
    del machine
    model, limit = build(graph), live_limit(graph, limits)
    runs = Recursion(model).within(limit)
    if runs is None or Runs(model, runs).peak > limit:
        return smallest_seed(graph, options=options)
    return expand_in_order(graph, skipped(model, runs, limit))


def smallest_seed(graph: Graph, *, options: Options | None = None) -> Schedule:
    """Find a schedule with few bytes, whatever its time: a start where a search finds nothing that fits.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "a", creates=(0,)),), (Storage(0, 64, resident_at_end=True),))
        >>> smallest_seed(graph).computes()
        (0,)
    """
    model = build(graph)
    pairs, peak = smallest_runs(model, options=options)
    return expand_in_order(graph, skipped(model, pairs, peak))


def smallest_runs(model: Model, *, options: Options | None = None) -> tuple[tuple[Pair, ...], Bytes]:
    """Run the recursion with fewer and fewer bytes; return the best re-runs in order, and their peak."""
    watch = (options or Options()).watch
    recursion = Recursion(model)
    best: tuple[Pair, ...] = ()
    peak = plain = Runs(model, best).peak
    for step in range(_NUM_LIMITS + 1):
        if watch.over:
            break
        runs = recursion.within(int(plain * _RATIO**step)) if step else recursion.barely()
        reached = Runs(model, runs).peak if runs is not None else peak
        if runs is not None and reached < peak:
            best, peak = runs, reached
        watch.tell("separators: looking for the fewest bytes")
    return best, peak


def skipped(model: Model, pairs: tuple[Pair, ...], limit: Bytes) -> tuple[Pair, ...]:
    """Leave out re-runs while the peak stays within ``limit``."""
    runs = Runs(model, pairs)
    runs.skip(limit)
    return runs.pairs()


class Recursion:
    """The separators of one model, and the recursion over them.

    Attributes:
        bytes_bound: at most this many bytes are needed at once; see the module text.
    """

    def __init__(self, model: Model, knobs: TreewidthKnobs | None = None) -> None:
        self.model, self.knobs = model, knobs or TreewidthKnobs()
        facts = recovery(model)
        num_ops = len(model.need)
        self.loose = [tuple(s for s in model.again_creates[op] if facts.returns[s]) for op in range(num_ops)]
        self.size = [sum(model.size[s] for s in loose) for loose in self.loose]
        self.wanted = [max((facts.wanted[s] for s in loose), default=-1) for loose in self.loose]
        self.inputs = [self._sources(model.again_reads[op], facts.returns) for op in range(num_ops)]
        self.first_inputs = [self._sources(model.reads[op], facts.returns) for op in range(num_ops)]
        self.last_read = [-1] * num_ops
        for op, sources in enumerate(self.first_inputs):
            for source in sources:
                self.last_read[source] = op
        self.fixed = self._fixed(facts.wanted, facts.returns)
        self.separators: Separators = separators(self._neighbours())
        self.bytes_bound = self._bound()

    def within(self, limit: Bytes) -> tuple[Pair, ...] | None:
        """List the re-runs that keep the bytes within ``limit``, in order.

        Returns:
            None where the bytes do not suffice, which does not happen from ``bytes_bound`` on, or where
            it takes too many runs.
        """
        spares = [limit // 2] if self.knobs.generous else []
        if limit >= self.bytes_bound or not spares:
            spares.append(limit - self.bytes_bound)
        for spare in spares:
            runs = _TreeWalk(self, limit, spare, linger=self.knobs.linger).all_stages()
            if runs is not None:
                return runs
        return None

    def barely(self) -> tuple[Pair, ...] | None:
        """List the re-runs when nothing lingers: mostly the fewest bytes, and by far the most re-runs.

        Returns:
            None where it takes too many runs.
        """
        return _TreeWalk(self, _NO_LIMIT, 0, linger=False).all_stages()

    def _sources(self, reads: Iterable[int], returns: tuple[bool, ...]) -> tuple[OpId, ...]:
        return tuple(dict.fromkeys(self.model.producer[s] for s in reads if returns[s]))

    def _fixed(self, wanted: tuple[StepIndex, ...], returns: tuple[bool, ...]) -> list[Bytes]:
        """Bytes at each op of storages that cannot be made again."""
        change = [0] * (len(self.model.need) + 2)
        for storage, op in enumerate(self.model.producer):
            until = min(wanted[storage], len(self.model.need))
            if op >= 0 and not returns[storage] and until > op:
                change[op + 1] += self.model.size[storage]
                change[until + 1] -= self.model.size[storage]
        fixed: list[Bytes] = []
        for delta in change[:-2]:
            fixed.append((fixed[-1] if fixed else 0) + delta)
        return fixed

    def _neighbours(self) -> list[set[int]]:
        neighbours: list[set[int]] = [set() for _ in self.model.need]
        for op, inputs in enumerate(self.inputs):
            for source in inputs:
                neighbours[op].add(source)
                neighbours[source].add(op)
        return neighbours

    def _bound(self) -> Bytes:
        """Add up, over the levels, a separator and the inputs of one of its members below it."""
        tree = self.separators
        need = [0] * len(tree.members)
        for number in reversed(range(len(tree.members))):
            own = sum(self.size[v] for v in tree.members[number])
            below = max((self._below(v, number) for v in tree.members[number]), default=0)
            run = max((self.model.again_need[v] for v in tree.members[number]), default=0)
            need[number] = own + below + max(need[number], run)
            if tree.parent[number] >= 0:
                need[tree.parent[number]] = max(need[tree.parent[number]], need[number])
        first = max(
            (
                self.fixed[op] + self.model.need[op] + sum(self.size[v] for v in self.first_inputs[op])
                for op in range(len(self.model.need))
            ),
            default=0,
        )
        inputs = max((sum(self.size[v] for v in sources) for sources in self.first_inputs), default=0)
        deepest = max((need[i] for i, parent in enumerate(tree.parent) if parent < 0), default=0)
        return max(first, inputs + deepest + max(self.fixed, default=0))

    def _below(self, op: OpId, number: int) -> Bytes:
        level = self.separators.level[number]
        of = self.separators.of
        return sum(self.size[v] for v in self.inputs[op] if self.separators.level[of[v]] > level)


class _TreeWalk:
    """One run of the recursion: what is held, what merely is still there, and the re-runs so far."""

    def __init__(self, recursion: Recursion, limit: Bytes, spare: Bytes, *, linger: bool) -> None:
        self.facts, self.model, self.tree = recursion, recursion.model, recursion.separators
        self.limit, self.spare, self.linger = limit, spare, linger
        self.found: set[OpId] = set()
        self.there: set[OpId] = set()
        self.bytes: Bytes = 0
        self.holds = [0] * len(self.model.need)
        self.runs: list[Pair] = []
        self.now: StepIndex = 0
        self.fits = True
        self.most = recursion.knobs.most_runs

    def all_stages(self) -> tuple[Pair, ...] | None:
        """Run all ops of the base order; None where bytes or runs did not suffice."""
        done = all(self.stage(stage) for stage in range(len(self.model.need)))
        return tuple(self.runs) if done else None

    def stage(self, stage: StepIndex) -> bool:
        """Run one op of the base order, and what it needs before; tell whether bytes and runs sufficed."""
        self.now = stage
        inputs = self.facts.first_inputs[stage]
        self._make(inputs, -1, [])
        self._room(self.model.need[stage])
        self._add(stage)
        self._release(inputs)
        for op in [v for v in self.there if not self.linger or self.facts.wanted[v] <= stage]:
            self._drop(op)
        return self.fits and len(self.runs) <= self.most

    def _make(self, wanted: Iterable[OpId], number: int, mine: list[OpId]) -> None:
        """Make and hold ops below a separator, part by part; -1 = all parts. Releases all of ``mine``."""
        parts: dict[int, list[OpId]] = {}
        for op in wanted:
            if op in self.there:
                self._hold(op)
            else:
                parts.setdefault(self._child(op, number), []).append(op)
        for position, (part, ops) in enumerate(parts.items()):
            last = position == len(parts) - 1
            self._part(ops, part, mine if last else [])
        if not parts:
            self._release(mine)

    def _part(self, wanted: list[OpId], number: int, mine: list[OpId]) -> None:
        """Make and hold ops of one part: its separator first, in base order, as far as it is wanted.

        ``mine`` lists ops with a hold that is this call's to release, as soon as nothing left reads them.
        """
        members = self._search(wanted, number, mine)
        for position, op in enumerate(members):
            if not self.fits or len(self.runs) > self.most:
                break
            self._member(op, number)
            mine.append(op)
            self._search([*members[position + 1 :], *wanted], number, mine)
        inside = [op for op in wanted if self.tree.of[op] == number]
        for op in inside:
            self._hold(op)
        self._make([op for op in wanted if self.tree.of[op] != number], number, mine)

    def _member(self, op: OpId, number: int) -> None:
        """Run and hold one member of a separator, unless it is there."""
        if op not in self.there:
            below = [v for v in self.facts.inputs[op] if self._is_below(v, number)]
            self._make(below, number, [])
            self._room(self.model.again_need[op])
            self.runs.append((self.now, op))
            self._add(op)
            self._release(below)
        self._hold(op)

    def _search(self, wanted: list[OpId], number: int, mine: list[OpId]) -> list[OpId]:
        """Find the members of a separator that must be run for ``wanted``, ascending.

        The search ends at what is held, and at what is there and may be held: then it is, as one of
        ``mine``. Those of ``mine`` that it does not come to are released, unless they are wanted.
        """
        members: list[OpId] = []
        reached: set[OpId] = set(wanted)
        waiting = [op for op in wanted if op not in self.there or not self.holds[op]]
        seen = set(waiting)
        while waiting:
            op = waiting.pop()
            if op in self.there and self._may_find(op):
                self._hold(op)
                mine.append(op)
                reached.add(op)
                continue
            if self.tree.of[op] == number:
                members.append(op)
            for source in self.facts.inputs[op]:
                if self.holds[source] and source in self.there:
                    reached.add(source)
                elif source not in seen:
                    seen.add(source)
                    waiting.append(source)
        self._release([op for op in mine if op not in reached])
        mine[:] = [op for op in mine if op in reached]
        return sorted(members)

    def _may_find(self, op: OpId) -> bool:
        """Hold what lingers, unless that would take bytes from the recursion."""
        if self.spare < self.facts.size[op]:
            return False
        self.spare -= self.facts.size[op]
        self.found.add(op)
        return True

    def _is_below(self, op: OpId, number: int) -> bool:
        return self.tree.level[self.tree.of[op]] > (self.tree.level[number] if number >= 0 else -1)

    def _child(self, op: OpId, number: int) -> int:
        """Find the part right below a separator in which an op lies."""
        part = self.tree.of[op]
        while self.tree.parent[part] != number:
            part = self.tree.parent[part]
        return part

    def _room(self, need: Bytes) -> None:
        over = self.bytes + self.facts.fixed[self.now] + need - self.limit
        if over <= 0:
            return
        idle = [v for v in self.there if not self.holds[v]]
        for op in sorted(idle, key=self._keep_worth):
            if over <= 0:
                return
            over -= self.facts.size[op]
            self._drop(op)
        self.fits = self.fits and over <= 0

    def _keep_worth(self, op: OpId) -> tuple[bool, int, int]:
        """Order what lingers: read by no more first runs, then deep below, then early in base order."""
        return self.facts.last_read[op] > self.now, -self.tree.level[self.tree.of[op]], op

    def _add(self, op: OpId) -> None:
        if self.facts.loose[op] and op not in self.there:
            self.there.add(op)
            self.bytes += self.facts.size[op]

    def _drop(self, op: OpId) -> None:
        self.there.discard(op)
        self.bytes -= self.facts.size[op]

    def _hold(self, op: OpId) -> None:
        self.holds[op] += 1

    def _release(self, ops: Iterable[OpId]) -> None:
        for op in ops:
            self.holds[op] -= 1
            if self.holds[op]:
                continue
            if op in self.found:
                self.found.discard(op)
                self.spare += self.facts.size[op]
            if not self.linger and op in self.there:
                self._drop(op)
