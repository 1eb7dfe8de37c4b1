"""The staged problem as a linear program that is solved again and again under other assumptions.

Idea        One solver for all cases. Facts are columns between 0 and 1; constraints are rows, and so is
            the number of facts that hold in each group of facts that are alike (same row, same bytes or
            same time): layers that repeat make many such, and deciding how many of them hold says
            more than deciding one.
Source      orbits of like columns, branched on as sums
Guarantee   Weights returned are feasible dual multipliers up to the solver's tolerance; whoever
            evaluates them exactly gets a valid bound, whatever they are.
Complexity  One dual simplex per solution, from the last basis; counted, so equal calls do equal work.
Gaps        Constraints that were added are never taken out again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import highspy
import numpy as np
import numpy.typing as npt

from tightrope.core import TightropeError
from tightrope_planners.bound.stages import Constraint, Fact, StagedProblem

_BINDING: Final = 1e-12
Reals = npt.NDArray[np.float64]


@dataclass(slots=True)
class Effort:
    """Work allowed and done, in units of about a microsecond; counted, so equal calls do equal work."""

    most: int
    spent: int = 0

    def left(self, share: float = 1.0) -> bool:
        """Tell whether less than a share of what is allowed was spent."""
        return self.spent < share * self.most


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a case assumes: columns decided, and least and most facts that hold, by group."""

    fixed: dict[int, int] = field(default_factory=dict)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A solved program.

    Attributes:
        value: added time, ns, up to the solver's tolerance; inf = nothing satisfies the assumptions.
        weights: multiplier of every constraint that binds, ns.
        groups: of every group whose number binds; positive where the least does, negative the most.
        values: how far every fact holds; empty where there is no solution.
        costs: reduced cost of every fact, ns.
    """

    value: float
    weights: dict[int, float]
    groups: dict[int, float]
    values: Reals
    costs: Reals


class StagedProgram:
    """A staged problem in the solver.

    Attributes:
        facts: of the columns.
        column: of every fact.
        price: of every column, ns.
        constraints: in the order they were added.
        groups: columns that are alike.
    """

    def __init__(self, staged: StagedProblem, effort: Effort) -> None:
        self.staged, self.effort = staged, effort
        self.facts: list[Fact] = sorted({fact for c in staged.constraints for fact, _ in c.terms})
        self.column = {fact: number for number, fact in enumerate(self.facts)}
        self.price = [staged.price.get(fact, 0) for fact in self.facts]
        self.mean = max(1.0, sum(self.price) / max(1, sum(price > 0 for price in self.price)))
        self.constraints: list[Constraint] = []
        self.groups = self._alike()
        self._factors: list[float] = []
        self._now = Assumed()
        self._highs = _solver()
        count, none = len(self.facts), np.array([], np.int32)
        cost = np.array(self.price, np.float64) / self.mean
        self._highs.addCols(
            count, cost, np.zeros(count), np.ones(count), 0, none, none, np.array([], np.float64)
        )
        self._add([(dict.fromkeys(group, 1.0), -highspy.kHighsInf) for group in self.groups])
        self.add(staged.constraints)
        effort.spent += 12 * len(staged.constraints)

    def _alike(self) -> list[tuple[int, ...]]:
        """Group facts of a row that have the same bytes, or the same time."""
        groups: dict[tuple[str, int, float, float], list[int]] = {}
        producer = self.staged.lineage.producer
        for column, (what, item, row) in enumerate(self.facts):
            if what == "run":
                groups.setdefault((what, row, self.price[column], 0), []).append(column)
            elif what == "live":
                size = self.size(column)
                again = self.staged.price.get(("run", producer[item], row))
                groups.setdefault((what, row, size, -1), []).append(column)
                if again is not None:
                    groups.setdefault((what, row, size, again), []).append(column)
        return sorted({tuple(group) for group in groups.values() if len(group) > 1})

    def size(self, column: int) -> int:
        """Bytes of the storage of a ``live`` fact, negative where it is not used later."""
        _, item, row = self.facts[column]
        idle = self.staged.idle[row].get(item)
        return -self.staged.dead[row].get(item, 0) if idle is None else idle

    def value_of(self, values: Reals, fact: Fact) -> float | None:
        """Look up how far a fact holds; None where it is no column."""
        column = self.column.get(fact)
        return None if column is None else float(values[column])

    def add(self, constraints: Sequence[Constraint]) -> None:
        """Add constraints, each divided by its largest factor."""
        rows = []
        for constraint in constraints:
            factor = float(max((abs(factor) for _, factor in constraint.terms), default=1))
            terms: dict[int, float] = {}
            for fact, value in constraint.terms:
                terms[self.column[fact]] = terms.get(self.column[fact], 0.0) + value / factor
            rows.append((terms, constraint.least / factor))
            self._factors.append(factor)
        self.constraints += constraints
        self._add(rows)

    def _add(self, rows: Sequence[tuple[Mapping[int, float], float]]) -> None:
        where = [column for terms, _ in rows for column in terms]
        values = [value for terms, _ in rows for value in terms.values()]
        starts = np.cumsum([0, *(len(terms) for terms, _ in rows)])[:-1]
        self._highs.addRows(
            len(rows), np.array([least for _, least in rows]), np.full(len(rows), highspy.kHighsInf),
            len(where), starts.astype(np.int32), np.array(where, np.int32), np.array(values),
        )  # fmt: skip

    def solve(self, assumed: Assumed) -> Answer:
        """Solve under assumptions.

        Raises:
            TightropeError: the solver neither finds a solution nor proves that there is none.
        """
        if not self.facts:
            return Answer(0.0, {}, {}, np.array([]), np.array([]))
        self._assume(assumed)
        optimal, empty = highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible
        status = self._run()
        if status not in (optimal, empty):
            self._highs.clearSolver()
            status = self._run()
        if status == empty:
            return self._ray(assumed)
        if status != optimal:
            raise TightropeError(f"HiGHS ended a bound with {self._highs.modelStatusToString(status)}.")
        found, first = self._highs.getSolution(), len(self.groups)
        duals = np.array(found.row_dual).tolist()
        binding = [row for row, dual in enumerate(duals) if abs(dual) > _BINDING]
        weights = {
            row - first: duals[row] * self.mean / self._factors[row - first]
            for row in binding
            if row >= first and duals[row] > 0
        }
        return Answer(
            self._highs.getInfo().objective_function_value * self.mean,
            weights,
            {row: duals[row] * self.mean for row in binding if row < first},
            np.array(found.col_value),
            np.array(found.col_dual) * self.mean,
        )

    def _run(self) -> Any:
        self._highs.run()
        steps, rows = self._highs.getInfo().simplex_iteration_count, len(self.constraints)
        self.effort.spent += 3 * rows + steps * rows // 80
        return self._highs.getModelStatus()

    def _assume(self, assumed: Assumed) -> None:
        """Change the bounds of columns and groups that the last case had otherwise."""
        before, none = self._now, highspy.kHighsInf
        for column in before.fixed.keys() | assumed.fixed.keys():
            bit = assumed.fixed.get(column)
            if bit != before.fixed.get(column):
                self._highs.changeColBounds(column, float(bit or 0), 1.0 if bit is None else float(bit))
        for group in before.counts.keys() | assumed.counts.keys():
            least, most = assumed.counts.get(group, (-none, none))
            if assumed.counts.get(group) != before.counts.get(group):
                self._highs.changeRowBounds(group, float(least), float(most))
        self._now = Assumed(dict(assumed.fixed), dict(assumed.counts))

    def _ray(self, assumed: Assumed) -> Answer:
        """Weights that prove a case empty, as large as makes it more expensive than everything."""
        nothing = Answer(math.inf, {}, {}, np.array([]), np.array([]))
        _, has, ray = self._highs.getDualRay()
        if not has:
            return nothing
        first, everything = len(self.groups), 2.0 * sum(self.price) + 1.0
        for sign in (1.0, -1.0):
            duals = [sign * float(y) for y in ray]
            binding = [row for row, dual in enumerate(duals) if abs(dual) > _BINDING]
            weights = {
                row - first: duals[row] / self._factors[row - first]
                for row in binding
                if row >= first and duals[row] > 0
            }
            groups = {row: duals[row] for row in binding if row < first}
            lost = self._lost(weights, groups, assumed)
            if lost > _BINDING:
                factor = everything / lost
                return Answer(
                    math.inf,
                    {row: weight * factor for row, weight in weights.items()},
                    {group: weight * factor for group, weight in groups.items()},
                    nothing.values,
                    nothing.costs,
                )
        return nothing

    def _lost(self, weights: Mapping[int, float], groups: Mapping[int, float], assumed: Assumed) -> float:
        """Evaluate weights without any price: more than 0 where nothing satisfies the assumptions."""
        total, given = 0.0, dict[int, float]()
        for number, weight in weights.items():
            constraint = self.constraints[number]
            total += weight * constraint.least
            for fact, factor in constraint.terms:
                column = self.column[fact]
                given[column] = given.get(column, 0.0) + weight * factor
        for group, weight in groups.items():
            least, most = assumed.counts.get(group, (0, len(self.groups[group])))
            total += weight * (least if weight > 0 else most)
            for column in self.groups[group]:
                given[column] = given.get(column, 0.0) + weight
        for column, gives in given.items():
            bit = assumed.fixed.get(column)
            total -= max(0.0, gives) if bit is None else gives * bit
        return total


def _solver() -> Any:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("presolve", "off")
    highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
    return highs
