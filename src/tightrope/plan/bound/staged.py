"""Branch and bound over the staged problem, every node a linear program from a warm basis.

Idea        Solve the relaxation; add rows rounded by sizes that it splits; branch on the storage or the
            run that is most undecided; take the cheapest case next.
Source      mixed-integer rounding; best-first branch and bound
Guarantee   as of `tightrope.plan.bound.stages`
Complexity  a fixed effort, counted in constraints and simplex steps; deterministic
Gaps        One solver for all nodes: rounded rows are kept globally.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import highspy
import numpy as np

from tightrope.core import Bytes, Choice, Graph, Nanoseconds, OpId, StageCase, Stages, TightropeError
from tightrope.plan.bound.problem import Problem
from tightrope.plan.bound.stages import Constraint, Fact, StagedProblem, staged_problem
from tightrope.plan.bound.tree import preorder

_SCALE_BITS: Final = 52
_WEIGHT_BITS: Final = 61
_ROUNDS: Final = 6
_DIVISORS: Final = 6
_BROKEN: Final = 1e-4
_BINDING: Final = 1e-12
_UNDECIDED: Final = 1e-6
_WORTH: Final = 1.002
"""Factor by which a further row must raise the bound."""
_KINDS: Final = ("row", "kept", "used", "fed", "held", "during")
_CHOOSING_ONE, _CHOOSING_MORE = 0.3, 0.6
"""Shares of the effort after which no more rows are tried, alone and together."""


@dataclass(slots=True)
class Effort:
    """Work allowed and done, in units of about a microsecond; counted, so equal calls do equal work."""

    most: int
    spent: int = 0

    def left(self, share: float = 1.0) -> bool:
        """Tell whether less than a share of what is allowed was spent."""
        return self.spent < share * self.most


def best_rows(
    graph: Graph,
    problem: Problem,
    budget: Bytes,
    candidates: Sequence[OpId],
    *,
    effort: Effort,
    upper: float,
) -> "StagedSearch | None":
    """Choose rows: the best one alone, then others in order of their worth, while they raise the bound.

    Args:
        graph: in base order.
        problem: of the graph.
        budget: total bytes.
        candidates: ops whose first runs are short of bytes, most promising first.
        effort: part of it is spent on choosing, the rest is for `StagedSearch.run`.
        upper: added time of a known schedule; where it is reached, no row is added.

    Returns:
        The search with its first relaxation solved; None without candidates.
    """

    def search(rows: Sequence[OpId]) -> StagedSearch:
        return StagedSearch(staged_problem(graph, problem, sorted(rows), budget), problem, upper, effort)

    alone: list[tuple[float, OpId, StagedSearch]] = []
    for op in candidates:
        if not alone or effort.left(_CHOOSING_ONE):
            found = search([op])
            alone.append((-found.root.value, op, found))
    if not alone:
        return None
    alone.sort(key=lambda entry: entry[:2])
    best, rows = alone[0][2], [alone[0][1]]
    for _, op, _ in alone[1:]:
        if best.root.value >= upper or not effort.left(_CHOOSING_MORE):
            break
        wider = search([*rows, op])
        if wider.root.value > best.root.value * _WORTH:
            best, rows = wider, [*rows, op]
    return best


@dataclass(slots=True)
class _Node:
    """One case: what is assumed, the bound, the weights by constraint, and what to branch on."""

    fixed: dict[int, int]
    value: float
    weights: dict[int, float]
    split: int = -1
    children: tuple["_Node", ...] = ()


class StagedSearch:
    """A staged problem in the solver."""

    def __init__(self, staged: StagedProblem, problem: Problem, upper: float, effort: Effort) -> None:
        self.staged, self.unit, self.upper, self.effort = staged, problem.unit, upper, effort
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
        self._add(staged.constraints)
        effort.spent += 12 * len(staged.constraints)
        self.found: Any = None
        self.root = self._node({}, rounds=_ROUNDS)

    def run(self) -> None:
        """Split the cheapest case until it is dear enough, nothing is undecided, or the effort is spent."""
        heap = [(self.root.value, 0, self.root)]
        count = 0
        while heap and self.effort.left():
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

    def _add(self, constraints: Sequence[Constraint]) -> None:
        """Add rows to the program, each divided by its largest factor."""
        starts, where, values, least = [0], list[int](), list[float](), list[float]()
        for constraint in constraints:
            factor = float(max((abs(factor) for _, factor in constraint.terms), default=1))
            where += [self.column[fact] for fact, _ in constraint.terms]
            values += [value / factor for _, value in constraint.terms]
            least.append(constraint.least / factor)
            starts.append(len(where))
            self.factors.append(factor)
        self.constraints += constraints
        count, none = len(constraints), highspy.kHighsInf
        self.highs.addRows(
            count, np.array(least), np.full(count, none), len(where), np.array(starts[:-1], np.int32),
            np.array(where, np.int32), np.array(values),
        )  # fmt: skip

    def _node(self, fixed: dict[int, int], *, rounds: int) -> _Node:
        for column in [*self.now, *fixed]:
            bit = fixed.get(column)
            self.highs.changeColBounds(column, float(bit or 0), 1.0 if bit is None else float(bit))
        self.now = fixed
        for number in range(rounds):
            self.highs.run()
            steps = self.highs.getInfo().simplex_iteration_count
            self.effort.spent += 2 * len(self.constraints) + steps * len(self.constraints) // 80
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
            if what == "held":
                continue  # it follows from what is live and run
            size = (
                self.staged.idle[row].get(item, self.staged.dead[row].get(item, 0)) if what == "live" else 0
            )
            score = float(part[column]) * (1.0 + size)
            if score > best:
                best, choice = score, int(column)
        return choice

    def _round(self) -> int:
        """Add rounded rows that the solution breaks; return how many."""
        values, new = self.found.col_value, list[Constraint]()
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
                    new.append(constraint)
        self._add(new)
        return len(new)

    def result(self) -> tuple[Nanoseconds, Stages]:
        """Write the tree down and evaluate it exactly."""
        nodes = preorder(self.root, lambda node: node.children)
        heaviest = max((w for node in nodes for w in node.weights.values()), default=1.0)
        bits = max(0, min(_SCALE_BITS, _WEIGHT_BITS - math.ceil(math.log2(max(heaviest, 1e-9)))))
        scale, least = 1 << bits, math.inf
        tree: list[Choice | StageCase] = []
        for node in nodes:
            if node.children:
                what, item, row = self.facts[node.split]
                assert what != "held"
                tree.append(Choice(what, item, row))
                continue
            weights = {row: int(w * scale) for row, w in node.weights.items() if int(w * scale)}
            tree.append(self._case(weights))
            least = min(least, _value(self, node.fixed, weights, scale))
        unit = self.unit * scale
        extra = max(0, -(-int(least) // unit)) * self.unit
        return extra, Stages(self.staged.budget, scale, self.staged.ops, tuple(tree))

    def _case(self, weights: Mapping[int, int]) -> StageCase:
        kinds: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        for number, weight in weights.items():
            kind, *name = self.constraints[number].key
            kinds[kind].append((*name[: 3 if kind == "fed" else 2], weight))
        return StageCase(*map(tuple, kinds.values()))


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


def _solver() -> Any:
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("presolve", "off")
    highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-9)
    return highs
