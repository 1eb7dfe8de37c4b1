"""The linear relaxation of a covering problem under fixed gaps, solved with rows made as needed.

Idea        Start from the rows given. Solve; look for rows, and rows divided by a size and rounded up,
            that the solution breaks; add the worst; repeat until none is left or no progress is made.
Source      Chvatal-Gomory rounding; coefficients clipped to what the row lacks
Guarantee   The weights returned are feasible dual multipliers up to the solver's tolerance; whoever
            evaluates them exactly gets a valid bound, whatever they are.
Complexity  One dual simplex per round, from the last basis.
Gaps        Divisors are sizes that occur in the row; other roundings are not tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import highspy
import numpy as np
import numpy.typing as npt

from tightrope.core import Bytes, OpId, TightropeError
from tightrope.plan.bound.problem import Integers, Problem

Reals: TypeAlias = npt.NDArray[np.float64]
RowKey: TypeAlias = tuple[OpId, Bytes]
"""Op of a row, and its divisor (0 = as it is)."""

_ROUNDS: Final = 60
_ADDED: Final = 40
"""Rows added per round at most."""
_RUN_WORK: Final = 30
_DIVISORS: Final = 6
_BINDING: Final = 1e-12
_BROKEN: Final = (1e-8, 1e-4)
"""Share of its right side by which a row must be broken to be added: as it is, and rounded."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solved relaxation.

    Attributes:
        value: lower bound on the added time, ns, up to the solver's tolerance; inf = infeasible.
        absent: for every gap, how far it is absent.
        weights: dual multiplier of every row used, ns per unit of its right side.
        shares: for gaps of producers with several storages, what they charge, ns.
    """

    value: float
    absent: Reals
    weights: dict[RowKey, float]
    shares: dict[int, float]


class Relaxation:
    """A covering problem at a budget, ready to be solved under fixed gaps.

    Attributes:
        short: for every op, bytes that the gaps around it must free.
        work: rows written down so far, and `_RUN_WORK` per linear program: about 20 us each.
    """

    def __init__(self, problem: Problem, budget: Bytes) -> None:
        self.problem, self.budget = problem, budget
        self.short = problem.fixed + problem.idle() - budget
        self._members: dict[OpId, Integers] = {}
        self.work = 0

    def members(self, op: OpId) -> Integers:
        """List the gaps around an op."""
        if op not in self._members:
            self._members[op] = self.problem.members(op)
        return self._members[op]

    def shortage(self, fixed: Mapping[int, bool]) -> Integers:
        """Bytes that undecided gaps must free, for every op."""
        short = self.short.copy()
        for gap in (gap for gap, absent in fixed.items() if absent):
            if self.problem.inside is not None:
                short -= self.problem.size[gap] * self.problem.inside[gap]
            else:
                since, until = self.problem.since[gap], self.problem.until[gap]
                short[since + 1 : until] -= self.problem.size[gap]
        return short

    def row(
        self, key: RowKey, short: Bytes, decided: npt.NDArray[np.bool_]
    ) -> tuple[Integers, Integers, int]:
        """List the undecided gaps of a row, their coefficients, and its right side."""
        self.work += 1
        members = self.members(key[0])
        members = members[~decided[members]]
        sizes = np.minimum(self.problem.size[members], short)
        rest = short % key[1] if key[1] else 0
        if rest:
            return (
                members,
                sizes // key[1] * rest + np.minimum(sizes % key[1], rest),
                -(-short // key[1]) * rest,
            )
        return members, sizes, short

    @cached_property
    def largest(self) -> Integers:
        """Size of the largest gap around every op."""
        return np.array([self.problem.size[self.members(op)].max(initial=0) for op in range(len(self.short))])

    @cached_property
    def lone(self) -> dict[int, int]:
        """Price of every gap whose producer makes nothing else."""
        prices = ((gap, self.problem.single(gap)) for gap in range(self.problem.num_gaps))
        return {gap: price for gap, price in prices if price is not None}

    def solve(self, fixed: Mapping[int, bool], start: Sequence[RowKey], *, rounds: int = _ROUNDS) -> Solution:
        """Solve the relaxation with some gaps fixed (True = absent), beginning with the rows ``start``."""
        program = _Program(self, fixed)
        program.add(key for key in start if program.short[key[0]] > 0)
        if not start:
            program.add((int(op), 0) for op in peaks(program.short))
        for _ in range(rounds):
            if not program.run() or not program.add(program.broken()):
                break
        return program.solution()

    def one_row(self) -> Solution:
        """Solve the row of the op that lacks most alone, which takes a sort: a program of all takes minutes.

        The gaps that are cheapest per byte fill it; the first one that is too much sets its multiplier. Gaps
        of producers that make several storages may be absent for nothing.
        """
        op = int(self.short.argmax())
        members, sizes, short = self.row(
            (op, 0), int(self.short[op]), np.zeros(self.problem.num_gaps, np.bool_)
        )
        prices = np.array([self.lone.get(gap, 0) for gap in members.tolist()], np.float64)
        rates = prices / sizes
        order = np.argsort(rates, kind="stable")
        filled = np.cumsum(sizes[order])
        last = int(np.searchsorted(filled, short))
        absent = np.zeros(self.problem.num_gaps)
        if last == len(order):
            return Solution(float("inf"), absent, {(op, 0): float("inf")}, {})
        absent[members[order[:last]]] = 1.0
        rate = float(rates[order[last]])
        value = rate * short + float(np.minimum(0.0, prices - rate * sizes).sum())
        return Solution(value, absent, {(op, 0): rate}, {})


class _Program:
    """One linear program: columns for gaps and runs, rows as they come."""

    def __init__(self, relaxation: Relaxation, fixed: Mapping[int, bool]) -> None:
        self.relaxation, self.problem, self.fixed = relaxation, relaxation.problem, fixed
        self.short = relaxation.shortage(fixed)
        self.decided = np.zeros(self.problem.num_gaps, np.bool_)
        self.decided[list(fixed)] = True
        self.keys: dict[RowKey, tuple[int, float]] = {}
        self.links: dict[int, int] = {}
        self.feasible = True
        self.absent = np.zeros(self.problem.num_gaps)
        self.value = 0.0
        self.duals: Any = ()
        self.unit = max(1.0, float(np.mean([*relaxation.lone.values()] or [1])))
        self.highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("presolve", "off")
        self.highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
        self.highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
        self._columns()

    def _columns(self) -> None:
        count = self.problem.num_gaps
        cost, low, high = np.zeros(count), np.zeros(count), np.ones(count)
        for gap, price in self.relaxation.lone.items():
            cost[gap] = price / self.unit
        for gap, absent in self.fixed.items():
            low[gap] = high[gap] = float(absent)
        none = np.array([], np.int32)
        self.highs.addCols(count, cost, low, high, 0, none, none, np.array([], np.float64))
        self.num_rows = 0
        shared: dict[OpId, list[int]] = {}
        for gap in range(count):
            if gap not in self.relaxation.lone:
                shared.setdefault(int(self.problem.producer[gap]), []).append(gap)
        for producer, gaps in shared.items():
            self._runs(producer, gaps)

    def _runs(self, producer: OpId, gaps: list[int]) -> None:
        """Add a column for every way and stretch in which a producer may run, and link its gaps to them."""
        cuts = sorted({int(self.problem.since[g]) for g in gaps})
        filled: dict[int, list[int]] = {gap: [] for gap in gaps}
        for way in self.problem.runs[producer]:
            for cut in cuts:
                serves = [
                    g
                    for g in gaps
                    if int(self.problem.storage[g]) in way.creates
                    and self.problem.since[g] <= cut
                    and (self.problem.inside is not None or cut < self.problem.until[g])
                ]
                if serves:
                    column = self.highs.getNumCol()
                    self.highs.addVar(0.0, highspy.kHighsInf)
                    self.highs.changeColCost(column, way.ns / self.unit)
                    for gap in serves:
                        filled[gap].append(column)
        for gap, columns in filled.items():
            self.links[gap] = self._add_row(0.0, [*columns, gap], [1.0] * len(columns) + [-1.0])

    def _add_row(self, least: float, columns: npt.ArrayLike, values: npt.ArrayLike) -> int:
        where, factors = np.asarray(columns, np.int32), np.asarray(values, np.float64)
        self.highs.addRow(least, highspy.kHighsInf, len(where), where, factors)
        self.num_rows += 1
        return self.num_rows - 1

    def add(self, keys: Any) -> int:
        """Add rows that are not there yet; return how many."""
        before = len(self.keys)
        for key in keys:
            if key not in self.keys:
                members, factors, least = self.relaxation.row(key, int(self.short[key[0]]), self.decided)
                self.keys[key] = (self._add_row(1.0, members, factors / least), float(least))
        return len(self.keys) - before

    def run(self) -> bool:
        """Solve; tell whether there is a solution."""
        self.relaxation.work += _RUN_WORK
        self.highs.run()
        status = self.highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            self.feasible = False
            return False
        if status != highspy.HighsModelStatus.kOptimal:
            raise TightropeError(f"HiGHS ended a bound with {self.highs.modelStatusToString(status)}.")
        found = self.highs.getSolution()
        self.absent = np.clip(np.array(found.col_value[: self.problem.num_gaps]), 0.0, 1.0)
        self.duals = found.row_dual
        self.value = self.highs.getInfo().objective_function_value * self.unit
        return True

    def broken(self) -> list[RowKey]:
        """Find the rows that the solution breaks most, plain and rounded."""
        found: list[tuple[float, RowKey]] = []
        for op in map(int, self._suspects()):
            self._test((op, 0), found)
        found.sort(reverse=True)
        if len(found) < _ADDED // 2:
            binding = {key[0] for key, (row, _) in self.keys.items() if self.duals[row] > _BINDING}
            for op in sorted(binding):
                for divisor in self._divisors(op):
                    self._test((op, divisor), found)
            found.sort(reverse=True)
        return [key for _, key in found[:_ADDED]]

    def _suspects(self) -> Integers:
        """List the ops whose row may be broken: too few bytes absent, or some of them more than it lacks."""
        sizes = np.where(self.decided, 0.0, self.absent * self.problem.size)
        absent = self.problem.around(sizes)
        doubtful = (absent < self.short) | (self.relaxation.largest > self.short)
        return np.flatnonzero((self.short > 0) & doubtful)

    def _test(self, key: RowKey, found: list[tuple[float, RowKey]]) -> None:
        if key in self.keys:
            return
        members, factors, least = self.relaxation.row(key, int(self.short[key[0]]), self.decided)
        lacks = 1.0 - float(factors @ self.absent[members]) / least
        if lacks > _BROKEN[key[1] > 0]:
            found.append((lacks, key))

    def _divisors(self, op: OpId) -> list[Bytes]:
        members = self.relaxation.members(op)
        members = members[~self.decided[members]]
        part = self.absent[members]
        sizes = np.unique(self.problem.size[members][(part > 1e-6) & (part < 1 - 1e-6)])
        return [int(size) for size in sizes[::-1][:_DIVISORS] if self.short[op] % size]

    def solution(self) -> Solution:
        """Report the last solution; without one, weights that prove there is none."""
        if not self.feasible:
            return Solution(float("inf"), self.absent, self._ray(), {})
        weights = {
            key: self.duals[row] * self.unit / least
            for key, (row, least) in self.keys.items()
            if self.duals[row] > _BINDING
        }
        shares = {gap: max(0.0, self.duals[row] * self.unit) for gap, row in self.links.items()}
        return Solution(self.value, self.absent, weights, shares)

    def _ray(self) -> dict[RowKey, float]:
        """Weight one row that even all undecided gaps cannot fill; empty where none alone shows it."""
        for op, _ in self.keys:
            _, factors, least = self.relaxation.row((op, 0), int(self.short[op]), self.decided)
            if int(factors.sum()) < least:
                return {(op, 0): float("inf")}
        return {}


def peaks(short: Integers) -> Integers:
    """List the ops that lack most among their neighbours."""
    left = np.concatenate(([0], short[:-1]))
    right = np.concatenate((short[1:], [0]))
    return np.flatnonzero((short > 0) & (short >= left) & (short >= right))
