"""Derive a lower bound on added time again, from weights on what happens at and between a few ops.

Idea        Pick some ops of the base order, the rows. At each, certain storages are live, and others
            may be; together they fit the budget. Between a row and the next, certain ops run again.
            What is live at the next row was live at this one or made between; what a first run or a
            re-run between them reads was live at this row or made after it. Weights on these facts
            bound the time of the re-runs from below. Facts whose other value alone would make a
            schedule as expensive as the target are fixed; a case may split on how many of some facts hold.
            Where chains of what is needed later leave an op no room to run again, it does not, unless
            an op runs again that a chain ends at.
Source      the stages of Checkmate (MLSys 2020), with rows only where memory is short; weak duality;
            reduced-cost fixing
Guarantee   Holds for every schedule without paging that keeps the base order and the budget, whatever
            the weights are. All arithmetic is on integers.
Complexity  O(nodes of the tree * weights), and O(rows * storages) to read the graph.
Gaps        Memory is looked at during the first runs of the rows, and during re-runs between rows.

    row 0          row 1                  row 2
    --+--------------+----------------------+---> op        live(s, 1), run(u, 1): after row 1's first
      |   run(u, 0)  |      run(u, 1)       |               run, before row 2's
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NoReturn, TypeAlias

from tightrope.core import (
    Barrier,
    Bytes,
    Choice,
    Fixing,
    Graph,
    JudgeError,
    Nanoseconds,
    Op,
    OpId,
    StageCase,
    Stages,
    StorageId,
)
from tightrope.judge.cover import Needs, rerun_unit, reruns, uses_of
from tightrope.judge.needs import inside

Fact: TypeAlias = tuple[str, int, int]
"""``live``, ``run`` or ``held``, a storage or an op, and a row: 1 when it is so, else 0."""
Terms: TypeAlias = dict[Fact, int]


def staged_time(graph: Graph, stages: Stages) -> Nanoseconds:
    """Derive the time that staged weights prove every schedule within their budget to add.

    Raises:
        JudgeError: they name what the graph does not have, leave a case open, or have a negative number.
    """
    if stages.scale < 1:
        _fail(f"the scale {stages.scale}, which is less than 1")
    facts = _StageFacts(graph, stages)
    unit = rerun_unit(graph) * stages.scale
    least = min(_values(stages, facts))
    if any(isinstance(node, Fixing) for node in stages.tree):
        least = min(least, stages.target * stages.scale)
    return max(0, -(-least // unit)) * (unit // stages.scale)


@dataclass(frozen=True, slots=True)
class _Branch:
    """What a case assumes: facts that are decided, and the choices above it with the side taken."""

    fixed: dict[Fact, int] = field(default_factory=dict)
    choices: tuple[tuple[Choice, bool], ...] = ()


def _values(stages: Stages, facts: "_StageFacts") -> Iterator[int]:
    """Evaluate every case, in multiples of 1 / scale ns."""
    waiting = [_Branch()]
    for node in stages.tree:
        if not waiting:
            _fail("more cases than its choices open")
        branch = waiting.pop()
        match node:
            case StageCase():
                yield facts.value(node, branch)
            case Fixing(case):
                waiting.append(_Branch(facts.fixed(case, branch, stages.target), branch.choices))
            case Choice():
                waiting += [_taken(node, facts, branch, more) for more in (True, False)]
    if waiting:
        _fail(f"{len(waiting)} cases left open")


def _taken(choice: Choice, facts: "_StageFacts", branch: _Branch, more: bool) -> _Branch:
    """Enter a case: more than ``most`` of the facts hold, or at most so many."""
    named = [(choice.what, item, choice.row) for item in choice.items]
    if not named or len(set(named)) < len(named) or not all(facts.known(fact) for fact in named):
        _fail(f"a choice on {choice.what} {choice.items} at row {choice.row}, which is not open")
    fixed = branch.fixed
    if len(named) == 1 and choice.most == 0:
        fixed = fixed | {named[0]: int(more)}
    return _Branch(fixed, (*branch.choices, (choice, more)))


class _StageFacts:
    """What may be so at and between the rows, and what is certain."""

    def __init__(self, graph: Graph, stages: Stages) -> None:
        self.graph, self.ops, self.scale, self.budget = graph, stages.ops, stages.scale, stages.budget
        self.paths, self.barriers, self.sound = stages.paths, stages.barriers, set[int]()
        if not self.ops or not all(0 <= op < len(graph.ops) for op in self.ops):
            _fail("rows that are not ops")
        if any(before >= after for before, after in pairwise(self.ops)):
            _fail("rows out of order")
        self.needs = Needs(graph, stages.budget, free_order=False)
        self.maker: dict[StorageId, Op] = {}
        self.uses: dict[StorageId, list[OpId]] = {}
        self._last: dict[StorageId, OpId] = {}  # of those that are not resident at the end
        for storage, op, uses in uses_of(graph):
            self.maker[storage], self.uses[storage] = op, uses
            if not graph.storages[storage].resident_at_end:
                self._last[storage] = max(op.id, *uses, -1)
        self.around = [self._around(row) for row in self.ops]

    def _around(self, row: OpId) -> dict[StorageId, bool]:
        """List the storages that may be live or not at a row, and whether they are used later."""
        idle = {name[0] for name, gap in self.needs.gaps.items() if gap.around(row)}
        dead = [storage for storage, last in self._last.items() if last < row]
        return dict.fromkeys(dead, False) | dict.fromkeys(idle, True)

    def known(self, fact: Fact) -> bool:
        """Tell whether a fact is open: neither certain nor impossible."""
        what, item, row = fact
        if not 0 <= row < len(self.ops):
            return False
        if what == "live":
            return item in self.around[row]
        return (
            0 <= item < self.end(row)
            and item < len(self.graph.ops)
            and bool(reruns(self.graph, self.graph.ops[item]))
        )

    def end(self, row: int) -> OpId:
        """First op whose first run comes after the stretch that follows a row."""
        return self.ops[row + 1] if row + 1 < len(self.ops) else len(self.graph.ops)

    def value(self, case: StageCase, branch: _Branch) -> int:
        """Evaluate one case, in multiples of 1 / scale ns."""
        terms, total = self._summed(case, branch)
        return total + self._least(terms, branch.fixed)

    def fixed(self, case: StageCase, branch: _Branch, target: Nanoseconds) -> dict[Fact, int]:
        """Decide the facts that any schedule adding less than the target has one way."""
        terms, total = self._summed(case, branch)
        total += self._least(terms, branch.fixed)
        decided = dict(branch.fixed)
        for fact in terms.keys() - branch.fixed.keys():
            rest = self._price(fact) * self.scale - terms[fact]
            if total + abs(rest) >= target * self.scale:
                decided[fact] = int(rest < 0)
        return decided

    def _summed(self, case: StageCase, branch: _Branch) -> tuple[Terms, int]:
        """Add up the weighted constraints of a case: what every fact gives, and the rest."""
        weights = chain.from_iterable(getattr(case, name) for name in case.__struct_fields__)
        if any(number < 0 for number in chain.from_iterable(weights)):
            _fail("a negative number in a case")
        total, terms = 0, Terms()
        for at, divisor, weight in case.rows:
            total += self._bytes(at, divisor, weight, terms)
        for storage, at, weight in case.kept:
            self._check_row(at + 1)
            if storage not in self.around[at + 1]:
                _fail(f"storage {storage} kept to row {at + 1}, where it is certain")
            total += self._supply(storage, at, weight, terms)
            terms["live", storage, at + 1] = terms.get(("live", storage, at + 1), 0) - weight
        for storage, at, weight in case.used:
            self._check_row(at)
            last = self.end(at) if at + 1 < len(self.ops) else len(self.graph.ops) - 1
            if not any(self.ops[at] < use <= last for use in self.uses.get(storage, ())):
                _fail(f"storage {storage} used after row {at}, which it is not")
            total += weight + self._supply(storage, at, weight, terms)
        for op, storage, at, weight in case.fed:
            if not self.known(("run", op, at)) or not self._always_reads(op, storage):
                _fail(f"op {op} fed with storage {storage} after row {at}")
            total += self._supply(storage, at, weight, terms)
            terms["run", op, at] = terms.get(("run", op, at), 0) - weight
        total += sum(self._held(storage, at, weight, terms) for storage, at, weight in case.held)
        total += sum(self._during(op, at, weight, terms) for op, at, weight in case.during)
        total += sum(self._path(position, weight, terms) for position, weight in case.paths)
        for position, weight in case.barriers:
            self._barrier(position, weight, terms)
        total += sum(_counted(branch, position, weight, terms) for position, weight in case.choices)
        return terms, total

    def _path(self, position: int, weight: int, terms: Terms) -> int:
        """Add ``a storage of the path is live at its row, or the last one's producer runs after it``."""
        if not 0 <= position < len(self.paths):
            _fail(f"a path {position}; there are {len(self.paths)}")
        path = self.paths[position]
        self._check_row(path.row)
        self._check_row(path.last)
        last = self.end(path.last) if path.last + 1 < len(self.ops) else len(self.graph.ops) - 1
        here = self.ops[path.row]
        if not path.storages or not all(
            s in self.around[path.row] and self.maker[s].id < here for s in path.storages
        ):
            _fail(f"path {position} through what is certain at row {path.row}")
        if not any(here < use <= last for use in self.uses[path.storages[0]]):
            _fail(f"path {position} to storage {path.storages[0]}, which nothing uses there")
        for made, read in pairwise(path.storages):
            if not self._always_reads(self.maker[made].id, read):
                _fail(f"path {position} from storage {read} to {made}, which is made without it")
        for storage in path.storages:
            terms["live", storage, path.row] = terms.get(("live", storage, path.row), 0) + weight
        maker = self.maker[path.storages[-1]]
        if any(path.storages[-1] in run.creates for run in reruns(self.graph, maker)):
            for row in range(path.row, path.last + 1):
                terms["run", maker.id, row] = terms.get(("run", maker.id, row), 0) + weight
        return weight

    def _barrier(self, position: int, weight: int, terms: Terms) -> None:
        """Add ``one of the others runs again after the row, or the op does not before the next``."""
        if not 0 <= position < len(self.barriers):
            _fail(f"a barrier {position}; there are {len(self.barriers)}")
        barrier = self.barriers[position]
        if position not in self.sound:
            self._check_barrier(position, barrier)
            self.sound.add(position)
        run: Fact = ("run", barrier.op, barrier.row)
        terms[run] = terms.get(run, 0) - weight
        for other in barrier.others:
            for row in range(barrier.row, len(self.ops)):
                if self.known(("run", other, row)):
                    terms["run", other, row] = terms.get(("run", other, row), 0) + weight

    def _check_barrier(self, position: int, barrier: Barrier) -> None:
        """Refuse a barrier whose chains leave room for the op right before some base op of its stretch."""
        row, others = barrier.row, set(barrier.others)
        open_run = row + 1 < len(self.ops) and self.known(("run", barrier.op, row))
        if not open_run or len(others) < len(barrier.others):
            _fail(f"barrier {position} to op {barrier.op} after row {row}, which is not open")
        stages = range(self.ops[row] + 1, self.ops[row + 1] + 1)
        if len(barrier.chains) != len(stages):
            _fail(f"barrier {position} with chains at {len(barrier.chains)} of {len(stages)} ops")
        ways = list(reruns(self.graph, self.graph.ops[barrier.op]))
        read = {s for s in ways[0].reads if s in self.maker and self._always_reads(barrier.op, s)}
        need = min(inside(self.graph, way).need for way in ways)
        need += sum(self.graph.storages[s].size for s in read)
        counted = read.union(*(way.creates for way in ways))
        for stage, chains in zip(stages, barrier.chains, strict=True):
            given = dict[StorageId, Bytes]()
            for amount, storages in chains:
                if amount < 0 or not self._is_chain(storages, stage, others):
                    _fail(f"barrier {position} with a chain {storages} that is not one before op {stage}")
                for storage in storages:
                    given[storage] = given.get(storage, 0) + amount
                    if storage in counted or given[storage] > self.graph.storages[storage].size:
                        _fail(f"barrier {position} with too many bytes of storage {storage}")
            taken = self.graph.persistent + need + sum(amount for amount, _ in chains)
            if taken <= self.budget:
                _fail(f"barrier {position} with room for op {barrier.op} before op {stage}")

    def _is_chain(self, storages: tuple[StorageId, ...], stage: OpId, others: set[OpId]) -> bool:
        """Tell whether one of a chain of storages is live until a base op, if no other op runs again."""
        if not storages or not all(s in self.maker and self.maker[s].id < stage for s in storages):
            return False  # a replay may read what is made later: that is live neither now nor before
        first, last = storages[0], storages[-1]
        kept = self.graph.storages[first].resident_at_end or any(use >= stage for use in self.uses[first])
        fed = all(self._always_reads(self.maker[made].id, read) for made, read in pairwise(storages))
        maker, stays = self.maker[last], self.graph.storages[last].resident_at_end
        again = not stays and any(last in run.creates for run in reruns(self.graph, maker))
        return kept and fed and (not again or maker.id in others)

    def _held(self, storage: StorageId, at: int, weight: int, terms: Terms) -> int:
        """Add ``held = live at the row and at the next, unless its maker runs between``."""
        if not self._may_be_held(storage, at):
            _fail(f"storage {storage} held from row {at} to the next")
        total = weight
        terms["held", storage, at] = terms.get(("held", storage, at), 0) + weight
        for end in (at, at + 1):
            if storage in self.around[end]:
                terms["live", storage, end] = terms.get(("live", storage, end), 0) - weight
                total -= weight
        maker = self.maker[storage]
        if any(storage in run.creates for run in reruns(self.graph, maker)):
            terms["run", maker.id, at] = terms.get(("run", maker.id, at), 0) + weight
        return total

    def _may_be_held(self, storage: StorageId, at: int) -> bool:
        """Tell whether a storage is made by the first run of a row at the latest, and the row has a next."""
        known = 0 <= at < len(self.ops) - 1 and storage in self.maker
        return known and self.maker[storage].id <= self.ops[at]

    def _during(self, op: OpId, at: int, weight: int, terms: Terms) -> int:
        """Add the bytes while an op runs again between a row and the next."""
        if not self.known(("run", op, at)) or at + 1 >= len(self.ops):
            _fail(f"bytes of a re-run of op {op} between row {at} and the next")
        ways = list(reruns(self.graph, self.graph.ops[op]))
        read = {s for s in ways[0].reads if s in self.maker and self._always_reads(op, s)}
        need = min(inside(self.graph, way).need for way in ways)
        need += sum(self.graph.storages[s].size for s in read)
        terms["run", op, at] = terms.get(("run", op, at), 0) - weight * need
        for storage in self.maker.keys() - read:
            if self._may_be_held(storage, at):
                size = self.graph.storages[storage].size
                terms["held", storage, at] = terms.get(("held", storage, at), 0) - weight * size
        return weight * (self.graph.persistent - self.budget)

    def _least(self, terms: Terms, fixed: dict[Fact, int]) -> int:
        """Choose every open fact as is cheapest, given what it costs and what its terms give back."""
        total = 0
        for fact in terms.keys() | fixed.keys():
            rest = self._price(fact) * self.scale - terms.get(fact, 0)
            total += rest * fixed[fact] if fact in fixed else min(0, rest)
        return total

    def _price(self, fact: Fact) -> Nanoseconds:
        if fact[0] != "run":
            return 0
        return min(run.ns for run in reruns(self.graph, self.graph.ops[fact[1]]))

    def _bytes(self, at: int, divisor: Bytes, weight: int, terms: Terms) -> int:
        """Add the bytes of a row: plain, or with absent storages counted in rounded units."""
        self._check_row(at)
        size = {storage: self.graph.storages[storage].size for storage in self.around[at]}
        fixed = self.needs.fixed[self.ops[at]]
        short = fixed + sum(size[s] for s, later in self.around[at].items() if later) - self.budget
        rest = short % divisor if divisor else 0
        if not rest:
            for storage in size:
                terms["live", storage, at] = terms.get(("live", storage, at), 0) - weight * size[storage]
            return weight * (fixed - self.budget)
        if short <= 0:
            return 0
        total = weight * -(-short // divisor) * rest
        for storage, later in self.around[at].items():
            signed = size[storage] if later else -size[storage]
            factor = weight * (signed // divisor * rest + min(signed % divisor, rest))
            if later:
                total -= factor
            terms["live", storage, at] = terms.get(("live", storage, at), 0) + (-factor if later else factor)
        return total

    def _supply(self, storage: StorageId, at: int, weight: int, terms: Terms) -> int:
        """Add ``live at the row, or made after it``; return minus the weight where that is certain."""
        if storage not in self.maker:
            _fail(f"storage {storage}, which no op makes")
        self._check_row(at)
        maker = self.maker[storage]
        if maker.id >= self.ops[at] or storage not in self.around[at]:
            return -weight
        terms["live", storage, at] = terms.get(("live", storage, at), 0) + weight
        if any(storage in run.creates for run in reruns(self.graph, maker)):
            terms["run", maker.id, at] = terms.get(("run", maker.id, at), 0) + weight
        return 0

    def _always_reads(self, op: OpId, storage: StorageId) -> bool:
        return all(storage in run.reads for run in reruns(self.graph, self.graph.ops[op]))

    def _check_row(self, at: int) -> None:
        if not 0 <= at < len(self.ops):
            _fail(f"a row {at}; there are {len(self.ops)}")


def _counted(branch: _Branch, position: int, weight: int, terms: Terms) -> int:
    """Add what a choice above a case says about how many of its facts hold."""
    if not 0 <= position < len(branch.choices):
        _fail(f"a choice {position} above a case; there are {len(branch.choices)}")
    choice, more = branch.choices[position]
    sign = 1 if more else -1
    for item in choice.items:
        fact = (choice.what, item, choice.row)
        terms[fact] = terms.get(fact, 0) + sign * weight
    return sign * weight * (choice.most + more)


def _fail(what: str) -> NoReturn:
    raise JudgeError(f"certificate: the stages have {what}.")
