"""Branch and bound over the staged problem, every node a linear program from a warm basis.

Idea        Solve the relaxation; add rows rounded by sizes that it splits; branch on the storage or the
            run that is most undecided; take the cheapest case next.
Source      mixed-integer rounding; best-first branch and bound
Guarantee   as of `tightrope.plan.bound.stages`
Complexity  at most ``work`` simplex iterations and cases; deterministic
Gaps        One solver for all nodes: rounded rows are kept globally.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import highspy
import numpy as np

from tightrope.core import Choice, Nanoseconds, StageCase, Stages, TightropeError
from tightrope.plan.bound.problem import Problem
from tightrope.plan.bound.stages import Constraint, Fact, StagedProblem

_SCALE_BITS: Final = 52
_WEIGHT_BITS: Final = 61
_ROUNDS: Final = 6
_DIVISORS: Final = 6
_BROKEN: Final = 1e-4
_BINDING: Final = 1e-12
_UNDECIDED: Final = 1e-6


@dataclass(slots=True)
class _Node:
    """One case: what is assumed, the bound, the weights by constraint, and what to branch on."""

    fixed: dict[int, int]
    value: float
    weights: dict[int, float]
    split: int = -1
    children: tuple["_Node", ...] = ()


class StagedSearch:
    """A staged problem in the solver.

    Attributes:
        work: columns of all linear programs solved so far.
    """

    def __init__(self, staged: StagedProblem, problem: Problem, upper: float) -> None:
        self.staged, self.unit, self.upper, self.work = staged, problem.unit, upper, 0
        self.facts: list[Fact] = sorted({fact for c in staged.constraints for fact, _ in c.terms})
        self.column = {fact: number for number, fact in enumerate(self.facts)}
        self.price = [staged.price.get(fact, 0) for fact in self.facts]
        self.mean = max(1.0, sum(self.price) / max(1, sum(price > 0 for price in self.price)))
        self.constraints: list[Constraint] = []
        self.factors: list[float] = []
        self.rounded: set[tuple[int, int]] = set()
        self.now: dict[int, int] = {}
        self.highs = _solver()
        count, none = len(self.facts), np.array([], np.int32)
        cost = np.array(self.price, np.float64) / self.mean
        self.highs.addCols(
            count, cost, np.zeros(count), np.ones(count), 0, none, none, np.array([], np.float64)
        )
        for constraint in staged.constraints:
            self._add(constraint)
        self.found: Any = None
        self.root = self._node({}, rounds=_ROUNDS)

    def run(self, work: int) -> None:
        """Split the cheapest case until it is dear enough, nothing is undecided, or the effort is spent."""
        heap = [(self.root.value, 0, self.root)]
        count = 0
        while heap and self.work < work:
            value, _, node = heapq.heappop(heap)
            if node.split < 0 or self._rounded_up(value) >= self.upper:
                break
            node.children = tuple(self._node({**node.fixed, node.split: bit}, rounds=2) for bit in (0, 1))
            for child in node.children:
                count += 1
                heapq.heappush(heap, (max(value, child.value), count, child))

    def _rounded_up(self, value: float) -> float:
        safe = value - 1e-6 * abs(value) - 1e-3
        return value if math.isinf(value) else math.ceil(safe / self.unit) * self.unit

    def _add(self, constraint: Constraint) -> None:
        where = np.array([self.column[fact] for fact, _ in constraint.terms], np.int32)
        values = np.array([factor for _, factor in constraint.terms], np.float64)
        factor = float(np.abs(values).max(initial=1.0))
        self.highs.addRow(constraint.least / factor, highspy.kHighsInf, len(where), where, values / factor)
        self.constraints.append(constraint)
        self.factors.append(factor)

    def _node(self, fixed: dict[int, int], *, rounds: int) -> _Node:
        for column in [*self.now, *fixed]:
            bit = fixed.get(column)
            self.highs.changeColBounds(column, float(bit or 0), 1.0 if bit is None else float(bit))
        self.now = fixed
        for number in range(rounds):
            self.highs.run()
            self.work += len(self.facts)
            status = self.highs.getModelStatus()
            if status == highspy.HighsModelStatus.kInfeasible:
                return _Node(fixed, math.inf, self._ray())
            if status != highspy.HighsModelStatus.kOptimal:
                raise TightropeError(f"HiGHS ended a bound with {self.highs.modelStatusToString(status)}.")
            self.found = self.highs.getSolution()
            if number + 1 == rounds or not self._round():
                break
        value = self.highs.getInfo().objective_function_value * self.mean
        duals = self.found.row_dual
        weights = {
            row: duals[row] * self.mean / self.factors[row]
            for row in range(len(duals))
            if duals[row] > _BINDING
        }
        return _Node(fixed, value, weights, self._branch(fixed))

    def _ray(self) -> dict[int, float]:
        """Weights that prove a case empty, as large as makes it dearer than everything."""
        _, has, ray = self.highs.getDualRay()
        if not has:
            return {}
        weights = {row: abs(y) / self.factors[row] for row, y in enumerate(ray) if abs(y) > _BINDING}
        lost = _value(self, self.now, {row: math.ceil(w * 2**40) for row, w in weights.items()}, 0)
        everything = 2.0 * sum(self.price) + 1.0
        return {row: w * everything * 2**40 / lost for row, w in weights.items()} if lost > 0 else {}

    def _branch(self, fixed: Mapping[int, int]) -> int:
        """Choose the undecided live storage with the most bytes; where there is none, a run."""
        values = np.array(self.found.col_value)
        part = np.minimum(values, 1.0 - values)
        part[list(fixed)] = 0.0
        best, choice = 0.0, -1
        for column in np.flatnonzero(part > _UNDECIDED):
            what, item, row = self.facts[column]
            size = (
                self.staged.idle[row].get(item, self.staged.dead[row].get(item, 0)) if what == "live" else 0
            )
            score = float(part[column]) * (1.0 + size)
            if score > best:
                best, choice = score, int(column)
        return choice

    def _round(self) -> int:
        """Add rounded rows that the solution breaks; return how many."""
        values, added = self.found.col_value, 0
        for row in range(len(self.staged.ops)):
            sizes = {
                size
                for storage, size in self.staged.idle[row].items()
                if _UNDECIDED < values[self.column["live", storage, row]] < 1 - _UNDECIDED
            }
            clip = self.staged.short[row] + max(self.staged.dead[row].values(), default=0) + 1
            for divisor in [*sorted(sizes, reverse=True)[:_DIVISORS], *([clip] if sizes else [])]:
                constraint = self.staged.rounded(row, divisor)
                if (row, divisor) in self.rounded or constraint is None:
                    continue
                held = sum(factor * values[self.column[fact]] for fact, factor in constraint.terms)
                size = max(abs(factor) for _, factor in constraint.terms)
                if held < constraint.least - _BROKEN * size:
                    self.rounded.add((row, divisor))
                    self._add(constraint)
                    added += 1
        return added

    def result(self) -> tuple[Nanoseconds, Stages]:
        """Write the tree down and evaluate it exactly."""
        nodes = _preorder(self.root)
        heaviest = max((w for node in nodes for w in node.weights.values()), default=1.0)
        bits = max(0, min(_SCALE_BITS, _WEIGHT_BITS - math.ceil(math.log2(max(heaviest, 1e-9)))))
        scale, least = 1 << bits, math.inf
        tree: list[Choice | StageCase] = []
        for node in nodes:
            if node.children:
                tree.append(Choice(*self.facts[node.split]))
                continue
            weights = {row: int(w * scale) for row, w in node.weights.items() if int(w * scale)}
            tree.append(self._case(weights))
            least = min(least, _value(self, node.fixed, weights, scale))
        unit = self.unit * scale
        extra = max(0, -(-int(least) // unit)) * self.unit
        return extra, Stages(self.staged.budget, scale, self.staged.ops, tuple(tree))

    def _case(self, weights: Mapping[int, int]) -> StageCase:
        kinds: dict[str, list[Any]] = {"row": [], "kept": [], "used": [], "fed": []}
        for number, weight in weights.items():
            kind, *name = self.constraints[number].key
            kinds[kind].append((*name[: 3 if kind == "fed" else 2], weight))
        return StageCase(*(tuple(kinds[kind]) for kind in ("row", "kept", "used", "fed")))


def _value(search: StagedSearch, fixed: Mapping[int, int], weights: Mapping[int, int], scale: int) -> int:
    """Evaluate weights exactly, in multiples of 1 / scale ns; with scale 0, without any price."""
    total, given = 0, dict[int, int]()
    for number, weight in weights.items():
        constraint = search.constraints[number]
        total += weight * constraint.least
        for fact, factor in constraint.terms:
            column = search.column[fact]
            given[column] = given.get(column, 0) + weight * factor
    for column in given.keys() | fixed.keys():
        rest = search.price[column] * scale - given.get(column, 0)
        total += rest * fixed[column] if column in fixed else min(0, rest)
    return total


def _preorder(root: _Node) -> list[_Node]:
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(reversed(node.children))
    return found


def _solver() -> Any:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("presolve", "off")
    highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
    return highs
