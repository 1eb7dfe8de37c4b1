"""Branch and bound over the staged problem, every case a linear program from a warm basis.

Idea        Solve the relaxation; add input paths, and rows rounded by sizes that it splits, which it
            breaks; fix facts whose other value would be as expensive as the plan in hand; branch on how many
            facts of a group hold, or on one fact, whichever raises both cases most when tried; take the
            cheapest case next.
Source      mixed-integer rounding; reduced-cost fixing; strong branching; best-first search
Guarantee   as of `tightrope_planners.bound.stages`
Complexity  a fixed effort, counted in constraints and simplex steps; deterministic
Gaps        Constraints found in one case are kept in all others.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tightrope.core import Bytes, Graph, Nanoseconds, OpId, Stages
from tightrope.plan.bound.problem import Problem
from tightrope_planners.bound.cases import Node, Taken, written
from tightrope_planners.bound.paths import Paths
from tightrope_planners.bound.program import Answer, Assumed, Effort, Reals, StagedProgram
from tightrope_planners.bound.stages import Constraint, Lineage, StagedProblem, staged_problem

_ROUNDS: Final = 25
_LATER_ROUNDS: Final = 6
_ROUNDED: Final = 4
"""Times at the root that rounded rows are looked for, once no path is broken."""
_STEP: Final = 4
"""Effort per storage looked at for a path."""
_DIVISORS: Final = 6
_TRIED: Final = 8
"""Choices tried before one is taken."""
_BROKEN: Final = 1e-4
_UNDECIDED: Final = 1e-6
_WORTH: Final = 1.002
"""Factor by which a further row must raise the bound."""
_CHOOSING_ONE, _CHOOSING_MORE = 0.3, 0.6
"""Shares of the effort after which no more rows are tried, alone and together."""


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
    lineage = Lineage.of(graph, problem)

    def search(rows: Sequence[OpId]) -> StagedSearch:
        staged = staged_problem(graph, problem, sorted(rows), budget, lineage=lineage)
        return StagedSearch(staged, problem, upper, effort)

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


class StagedSearch:
    """Branch and bound over a staged problem, its root solved at once.

    Args:
        staged: what to bound.
        problem: of the graph.
        upper: added time of a known schedule, inf = none; the search ends there.
        effort: allowed for the root and for `run`.
    """

    def __init__(self, staged: StagedProblem, problem: Problem, upper: float, effort: Effort) -> None:
        self.staged, self.unit, self.upper, self.effort = staged, problem.unit, upper, effort
        self.program = StagedProgram(staged, effort)
        self.paths = Paths(staged)
        self.rounded: set[tuple[int, int]] = set()
        sizes = [size for row in staged.idle for size in row.values()]
        self._usual = max(1.0, sum(sizes) / max(1, len(sizes)))
        self.root = self._node((), Assumed(), rounds=_ROUNDS, rounded=_ROUNDED)

    def run(self) -> None:
        """Split the cheapest case until it costs enough, nothing is undecided, or the effort is spent."""
        heap = [(self.root.value, 0, self.root)]
        count = 0
        while heap and self.effort.left():
            value, _, node = heapq.heappop(heap)
            if self._rounded_up(value) >= self.upper:
                break
            choice = self._choice(node)
            if choice is None:
                break
            node.children = tuple(
                self._node((*node.taken, side), self._under(node.assumed, side), rounds=_LATER_ROUNDS)
                for side in (choice, choice._replace(more=True))
            )
            for child in node.children:
                count += 1
                heapq.heappush(heap, (max(value, child.value), count, child))

    def cheapest(self) -> Node:
        """Find the open case with the least value."""
        open_cases, waiting = list[Node](), [self.root]
        while waiting:
            node = waiting.pop()
            waiting += node.children
            open_cases += [] if node.children else [node]
        return min(open_cases, key=lambda node: node.value)

    def _rounded_up(self, value: float) -> float:
        safe = value - 1e-6 * abs(value) - 1e-3
        return value if math.isinf(value) else math.ceil(safe / self.unit) * self.unit

    def _node(self, taken: tuple[Taken, ...], assumed: Assumed, *, rounds: int, rounded: int = 0) -> Node:
        """Solve a case: add what its solution breaks, then fix what would be too expensive."""
        node = Node(taken, assumed, self._tightened(assumed, rounds, rounded))
        fixed = self._fixed(node)
        if fixed:
            node.fixings.append(node.answer)
            node.assumed = Assumed({**assumed.fixed, **fixed}, assumed.counts)
            node.answer = self._tightened(node.assumed, rounds, 0)
        return node

    def _tightened(self, assumed: Assumed, rounds: int, rounded: int) -> Answer:
        answer = self.program.solve(assumed)
        for _ in range(rounds):
            if answer.value >= self.upper:
                break
            values, steps = answer.values, self.paths.steps
            new = self.paths.broken(lambda fact, now=values: self.program.value_of(now, fact))  # type: ignore[misc]
            self.effort.spent += _STEP * (self.paths.steps - steps)
            if not new and rounded:
                rounded -= 1
                new = self._rounded_rows(values)
            if not new:
                break
            self.program.add(new)
            answer = self.program.solve(assumed)
        return answer

    def _fixed(self, node: Node) -> dict[int, int]:
        """Decide columns whose other value would make a case as expensive as the known schedule."""
        room = self.upper - node.value
        if not 0 < room < math.inf:
            return {}
        named = {
            self.program.column[fact]
            for number in node.answer.weights
            for fact, _ in self.program.constraints[number].terms
        }
        expensive = np.flatnonzero(np.abs(node.answer.costs) > room + 1e-6 * self.upper + 1.0).tolist()
        costs, known = node.answer.costs, node.assumed.fixed
        free = [column for column in expensive if column in named and column not in known]
        return {column: int(costs[column] < 0) for column in free}

    def _under(self, assumed: Assumed, side: Taken) -> Assumed:
        if side.group < 0:
            return Assumed({**assumed.fixed, side.columns[0]: int(side.more)}, assumed.counts)
        least, most = assumed.counts.get(side.group, (0, len(side.columns)))
        counts = (side.most + 1, most) if side.more else (least, side.most)
        return Assumed(assumed.fixed, {**assumed.counts, side.group: counts})

    def _choice(self, node: Node) -> Taken | None:
        """Choose what raises both cases most, of the choices that look best; None = nothing is undecided."""
        scored = sorted(self._undecided(node), key=lambda entry: -entry[0])[:_TRIED]
        best: tuple[float, Taken] | None = None
        for _, low in scored:
            gains = [self._gain(node, side) for side in (low, low._replace(more=True))]
            score = math.prod(gains)
            if best is None or score > best[0]:
                best = score, low
            if min(gains) >= self.upper - node.value:
                break
        return best and best[1]

    def _gain(self, node: Node, side: Taken) -> float:
        value = min(self.program.solve(self._under(node.assumed, side)).value, self.upper)
        most = value - node.value if math.isfinite(value) else 1e18
        return max(most, 0.0) + 1e-6 * self.program.mean

    def _undecided(self, node: Node) -> list[tuple[float, Taken]]:
        """List the choices open in a solution, with how undecided each is, weighted by bytes or time."""
        values, found = node.answer.values, list[tuple[float, Taken]]()
        if not len(values):
            return found
        for group, columns in enumerate(self.program.groups):
            total = float(values[list(columns)].sum())
            part = total - math.floor(total + _UNDECIDED)
            if part > 10 * _UNDECIDED:
                score = min(part, 1 - part) * self._weight(columns[0])
                found.append((score, Taken(columns, group, math.floor(total + _UNDECIDED), more=False)))
        parts = np.minimum(values, 1.0 - values)
        for column in np.flatnonzero(parts > _UNDECIDED).tolist():
            if self.program.facts[column][0] != "held":  # it follows from what is live and runs
                score = float(parts[column]) * self._weight(column) / 2
                found.append((score, Taken((column,), -1, 0, more=False)))
        return found

    def _weight(self, column: int) -> float:
        """Weigh a fact by its bytes or its time, as shares of what is usual."""
        if self.program.facts[column][0] == "run":
            return 1.0 + self.program.price[column] / self.program.mean
        return 1.0 + abs(self.program.size(column)) / self._usual

    def _rounded_rows(self, values: Reals) -> list[Constraint]:
        """List rounded rows that the solution breaks."""
        column, new = self.program.column, list[Constraint]()
        for row in range(len(self.staged.ops)):
            sizes = {
                size
                for storage, size in self.staged.idle[row].items()
                if _UNDECIDED < values[column["live", storage, row]] < 1 - _UNDECIDED
            }
            clip = self.staged.short[row] + max(self.staged.dead[row].values(), default=0) + 1
            for divisor in [*sorted(sizes, reverse=True)[:_DIVISORS], *([clip] if sizes else [])]:
                constraint = self.staged.rounded(row, divisor)
                if (row, divisor) in self.rounded or constraint is None:
                    continue
                held = sum(factor * values[column[fact]] for fact, factor in constraint.terms)
                size = max(abs(factor) for _, factor in constraint.terms)
                if held < constraint.least - _BROKEN * size:
                    self.rounded.add((row, divisor))
                    new.append(constraint)
        return new

    def result(self) -> tuple[Nanoseconds, Stages]:
        """Write the tree down and evaluate it exactly."""
        target = 0 if math.isinf(self.upper) else int(self.upper)
        return written(self.root, self.program, self.paths.found, unit=self.unit, target=target)
