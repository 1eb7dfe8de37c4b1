"""The retention intervals of Moccasin as a constraint program, over all stages or a window of them.

slot      one run of one op; ascending by stage, then by op, the first run of the stage last
run       at slot s: the bytes of the op itself are taken in [s, s+1)
copy      from slot s to the end e of its last reader: the bytes of the storage in [s+1, e+1)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, OpId, StepIndex, StorageId
from tightrope.plan.model import Model, Pair
from tightrope.plan.options import Options
from tightrope_planners.peers.recovery import last_useful, recovery
from tightrope_shared.cp import ALWAYS, ConstraintProgram, Expression, Worker, constant


@dataclass(frozen=True, slots=True)
class Window:
    """Stages ``[first, last)`` in which runs are free, with at most ``extra`` re-runs of each op."""

    first: StepIndex
    last: StepIndex
    extra: int


@dataclass(frozen=True, slots=True)
class Found:
    """What CP-SAT says: pairs or None, whether that is proved best, and a bound on the objective."""

    pairs: tuple[Pair, ...] | None
    proved: bool
    bound: int


@dataclass(frozen=True, slots=True)
class _IntervalRun:
    """One run: its slot, the literal of its presence, and the pair of those that are fixed."""

    op: OpId
    slot: Expression
    present: int
    fixed: Pair | None


@dataclass(frozen=True, slots=True)
class _IntervalCopy:
    """One copy of a storage: where it is made, its last slot, and the literal of its presence."""

    slot: Expression
    end: Expression
    present: int


class Intervals:
    """One constraint program; ``fixed`` pairs happen, others only within the window.

    Args:
        model: tables of the graph.
        fixed: pairs outside the window.
        window: where runs are free.
        capacity: least and largest bytes; unequal where the peak is minimised.
        inside: pairs of the window that a hint will hold, so that their ops get enough runs.
    """

    def __init__(
        self,
        model: Model,
        fixed: Sequence[Pair],
        window: Window,
        *,
        capacity: tuple[Bytes, Bytes],
        inside: Sequence[Pair] = (),
    ) -> None:
        self.problem = ConstraintProgram()
        self.model, self.window, self.capacity = model, window, capacity
        self.wanted = recovery(model).wanted
        self.unit = math.gcd(*model.size, *model.need, *model.again_need) or 1
        self.slot: dict[Pair, int] = {}
        self.free: dict[OpId, list[int]] = {}
        self._slots(frozenset(fixed))
        self.pair_at = {slot: pair for pair, slot in self.slot.items()}
        self.runs = [self._runs_of(op, fixed, inside) for op in range(len(model.need))]
        self.copies = [self._copies_of(storage) for storage in range(len(model.producer))]
        self._cumulative()
        self._precedences()

    def least_time(
        self, worker: Worker, start: Sequence[Pair] | None, *, effort: float, options: Options
    ) -> Found:
        """Minimise the time of the re-runs, in ns."""
        terms = [(run.present, self.model.again_ns[run.op]) for run in self._optional()]
        unit = math.gcd(*(ns for _, ns in terms)) or 1
        self.problem.objective = [(present, ns // unit) for present, ns in terms]
        again = [run for runs in self.runs for run in runs[1:] if run.fixed is not None]
        fixed = sum(self.model.again_ns[run.op] for run in again)
        found = self._solve(worker, start, effort, options)
        return Found(found.pairs, found.proved, found.bound * unit + fixed)

    def least_peak(
        self, worker: Worker, start: Sequence[Pair] | None, *, effort: float, options: Options
    ) -> Found:
        """Minimise the peak down to the least capacity, in bytes."""
        self.problem.objective = [(self.peak, 1)]
        found = self._solve(worker, start, effort, options)
        return Found(found.pairs, found.proved, found.bound * self.unit)

    def _optional(self) -> list[_IntervalRun]:
        return [run for runs in self.runs for run in runs if run.fixed is None]

    def _slots(self, fixed: frozenset[Pair]) -> None:
        model = self.model
        until = [last_useful(model, op, self.wanted) for op in range(len(model.need))]
        for stage in range(len(model.need)):
            inside = self.window.first <= stage < self.window.last
            for op in range(stage):
                free = inside and stage <= until[op] and model.allowed((stage, op))
                if free or (stage, op) in fixed:
                    self.slot[stage, op] = len(self.slot)
                if free:
                    self.free.setdefault(op, []).append(self.slot[stage, op])
            self.slot[stage, stage] = len(self.slot)
        self.horizon = len(self.slot)

    def _runs_of(self, op: OpId, fixed: Sequence[Pair], inside: Sequence[Pair]) -> list[_IntervalRun]:
        """List the runs of an op: first run, fixed ones before the window, free ones, fixed ones after."""
        pairs = [(op, op), *sorted(pair for pair in fixed if pair[1] == op)]
        runs = [_IntervalRun(op, constant(self.slot[pair]), ALWAYS, pair) for pair in pairs]
        number = max(self.window.extra, sum(pair[1] == op for pair in inside)) if op in self.free else 0
        free: list[_IntervalRun] = []
        for _ in range(min(number, len(self.free.get(op, ())))):
            slot, present = self.problem.member(self.free[op]), self.problem.integer(0, 1)
            if free:
                self.problem.at_most((present, 0), (free[-1].present, 0))
                self.problem.at_most((free[-1].slot[0], 1), (slot, 0), present)
            free.append(_IntervalRun(op, (slot, 0), present, None))
        before = sum(pair[0] < self.window.first or pair[0] == op for pair in pairs)
        return [*runs[:before], *free, *runs[before:]]

    def _copies_of(self, storage: StorageId) -> list[_IntervalCopy]:
        """Add the copies of a storage; a copy ends before the next one begins."""
        op = self.model.producer[storage]
        if op < 0 or self.model.pinned[storage]:
            return []
        runs = self.runs[op] if storage in self.model.again_creates[op] else self.runs[op][:1]
        copies: list[_IntervalCopy] = []
        for number, run in enumerate(runs):
            end = (self.problem.integer(0, self.horizon - 1), 0)
            self.problem.at_most(run.slot, end)
            for later in runs[number + 1 :]:
                self.problem.at_most(end, later.slot, later.present)
            copies.append(_IntervalCopy(run.slot, end, run.present))
        return copies

    def _cumulative(self) -> None:
        model, problem, heights = self.model, self.problem, list[int]()
        for runs in self.runs:
            for number, run in enumerate(runs):
                need = model.need[run.op] if number == 0 else model.again_need[run.op]
                problem.interval(run.slot, constant(1), _later(run.slot), run.present)
                heights.append(need // self.unit)
        for storage, copies in enumerate(self.copies):
            for copy in copies:
                length = problem.integer(0, self.horizon)
                problem.interval(_later(copy.slot), (length, 0), _later(copy.end), copy.present)
                heights.append(model.size[storage] // self.unit)
        for storage, at_end in enumerate(model.at_end):
            if at_end and model.size[storage]:
                begin = self.slot[model.producer[storage], model.producer[storage]] + 1
                stay = constant(self.horizon - begin)
                problem.interval(constant(begin), stay, constant(self.horizon))
                heights.append(model.size[storage] // self.unit)
        low, high = self.capacity
        self.peak = problem.integer(low // self.unit, max(low, high) // self.unit)
        problem.cumulatives.append((list(range(len(heights))), heights, (self.peak, 0)))

    def _precedences(self) -> None:
        for runs in self.runs:
            for number, run in enumerate(runs):
                reads = self.model.reads[run.op] if number == 0 else self.model.again_reads[run.op]
                for storage in reads:
                    if self.copies[storage]:
                        self._covered(run, self.copies[storage])

    def _covered(self, reader: _IntervalRun, copies: list[_IntervalCopy]) -> None:
        """Demand that some copy covers the slot of the reader."""
        if len(copies) == 1:
            self.problem.at_most(reader.slot, copies[0].end, reader.present)
            return
        times, changes, literals = [reader.slot, _later(reader.slot)], [-1, 1], [reader.present] * 2
        for copy in copies:
            times += [_later(copy.slot), _later(copy.end)]
            changes += [1, -1]
            literals += [copy.present] * 2
        self.problem.reservoirs.append((times, changes, literals))

    def _solve(self, worker: Worker, start: Sequence[Pair] | None, effort: float, options: Options) -> Found:
        if start is not None:
            self._hint(start)
        watch = options.watch
        left = None if watch.seconds is None else watch.seconds - watch.elapsed
        outcome = worker.solve(self.problem, effort=effort, seed=options.seed, seconds=left)
        pairs = self._read(outcome.values) if outcome.values else None
        return Found(pairs, outcome.proved, math.ceil(outcome.bound - 1e-6))

    def _read(self, values: Sequence[int]) -> tuple[Pair, ...]:
        pairs = [run.fixed for runs in self.runs for run in runs[1:] if run.fixed is not None]
        free = (run for run in self._optional() if values[run.present])
        return tuple(sorted([*pairs, *(self.pair_at[values[run.slot[0]]] for run in free)]))

    def _hint(self, pairs: Sequence[Pair]) -> None:
        """Tell the solver of a plan: which runs happen, and in which slots."""
        for runs in self.runs:
            free = [run for run in runs if run.fixed is None]
            again = [p for p in sorted(pairs) if free and p[1] == free[0].op]
            inside = [p for p in again if self.window.first <= p[0] < self.window.last and p in self.slot]
            for number, run in enumerate(free):
                self.problem.hints.append((run.present, int(number < len(inside))))
                if number < len(inside):
                    self.problem.hints.append((run.slot[0], self.slot[inside[number]]))


def _later(expression: Expression) -> Expression:
    return expression[0], expression[1] + 1
