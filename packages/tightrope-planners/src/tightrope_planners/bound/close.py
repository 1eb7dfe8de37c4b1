"""Close the gap of a bound with more effort: more rows, and the bytes during re-runs.

Idea        Where few ops are short of bytes, every one of them and then its neighbours become rows of the
            staged problem. Elsewhere rows are added one by one: the op that lacks most bytes under the
            solution so far, first of the relaxation and then of the whole search; where that fits, the
            ops where it hardly does and that raise the relaxation most, or rows around barriers to what
            it runs again. The search often ends at the
            time of the plan in hand, which is so proved the fastest.
Source      Checkmate (MLSys 2020) restricted to the stages where memory is short
Guarantee   as of `tightrope_planners.bound.stages`; effort is counted, so equal calls give equal bounds
Complexity  at most `_MOST_ROWS` rows at once; about a second per million units of effort
Gaps        What is made between two rows for another re-run is not counted while that runs, but in a
            barrier.
"""

from typing import Final

import numpy as np

from tightrope.core import Bytes, Graph, Limits, Nanoseconds, OpId
from tightrope.plan.bound.cover import TimeBound
from tightrope.plan.bound.problem import Problem, problem
from tightrope.plan.engine import live_limit
from tightrope.plan.model import build
from tightrope_planners.bound.barriers import Barriers
from tightrope_planners.bound.program import Effort, Reals
from tightrope_planners.bound.rows import highest, lacking, realised
from tightrope_planners.bound.staged import StagedSearch
from tightrope_planners.bound.stages import Lineage, staged_problem

_MOST_ROWS: Final = 16
_MOST_OPS: Final = 160
"""Largest graph of which every short op may become a row."""
_REACHES: Final = (0, 1, 2)
"""How many neighbours of a short op become rows, tried in turn: more rows say more and take longer."""
_EFFORT: Final = 30_000_000
_CHOSEN_OPS: Final = 1_200
"""Largest graph of which rows are chosen one by one."""
_CANDIDATES: Final = 8
_APART: Final = 4
"""Candidates are further apart than so many ops: close ones say nearly the same."""
_CHOSEN_ROWS: Final = 9
_SOME_BYTES: Final = 0.5
_WORTH: Final = 1.0005
"""Factor by which a further row must raise the relaxation."""
_RUNS: Final = 0.3
"""How far a re-run must hold in a solution for barriers to it to be looked for."""
_EXPENSIVE: Final = 0.9
"""Share of the gap from which on the time of an op makes it expensive: one more run all but closes it."""
_FLOW: Final = 8
"""Effort per edge of a flow."""
_TRY: Final = 0.2
"""Share of the effort that one branch and bound, or one choice of rows, may take."""


def close_bound(
    graph: Graph, *, budget: Bytes, upper_ns: Nanoseconds, effort: int = _EFFORT
) -> TimeBound | None:
    """Bound the added time in base order, looking at more of the ops that are short of bytes.

    Args:
        graph: one training step, in base order.
        budget: total bytes.
        upper_ns: added time of a known schedule; the search ends there.
        effort: most units of work, of about a microsecond.

    Returns:
        The best bound found; None where nothing is short, or where too much is to be looked at.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> ops = (Op(0, "a", "a", (), (0,), ns=5), Op(1, "b", "b", (), (1,)), Op(2, "c", "c", (0,), (2,)))
        >>> chain = Graph(ops, (Storage(0, 64), Storage(1, 128), Storage(2, 64)))
        >>> found = close_bound(chain, budget=128, upper_ns=5)
        >>> found.extra_ns
        5
    """
    if len(graph.ops) > _CHOSEN_OPS:
        return None
    closing = _Closing(graph, problem(graph), budget, upper_ns, effort)
    if not (closing.short > 0).any() or (closing.problem.fixed > budget).any():
        return None
    if len(graph.ops) <= _MOST_OPS:
        closing.take_all()
    closing.take_best()
    return closing.best


class _Closing:
    """Attempts at one bound, under one allowance of effort."""

    def __init__(
        self, graph: Graph, problem: Problem, budget: Bytes, upper_ns: Nanoseconds, effort: int
    ) -> None:
        self.graph, self.problem, self.budget, self.upper = graph, problem, budget, upper_ns
        self.lineage = Lineage.of(graph, problem)
        self.short = problem.fixed + problem.idle() - budget
        self.work = Effort(effort)
        self.barriers = Barriers(graph, problem, self.lineage, budget)
        self.best: TimeBound | None = None

    @property
    def closed(self) -> bool:
        """Whether the bound has reached the schedule in hand."""
        return self.best is not None and self.best.extra_ns >= self.upper

    def take_all(self) -> None:
        """Make every short op a row, where they are few, and then their neighbours."""
        for reach in _REACHES:
            rows = _around(np.flatnonzero(self.short > 0).tolist(), reach, len(self.graph.ops))
            if not 0 < len(rows) <= _MOST_ROWS or not self.work.left() or self.closed:
                break
            self._search(rows, self.work, during=True)

    def take_best(self) -> None:
        """Add the row that lacks most under the solution so far, or those that hardly fit."""
        rows = [int(np.argmax(self.short))]
        search: StagedSearch | None = None
        while self.work.left() and not self.closed:
            wider = self._wider(rows, self._staged(rows, self.work, during=False))
            if wider == rows:
                search = self._search(rows, self._some(), during=False)
                wider = self._wider(rows, search)
                if wider == rows:
                    wider = self._more_expensive(rows, search)
                if wider == rows and (around := self._barred(rows, search)):
                    rows = sorted({*rows, *around})
                    continue
                if wider == rows:
                    wider = self._late(rows, search)
            if wider == rows or len(wider) > _CHOSEN_ROWS:
                break
            rows = wider
        if self.work.left() and not self.closed:
            self._search(rows, self.work, during=search is None or search.effort.left())

    def _excess(self, search: StagedSearch) -> Reals:
        """Add up by how many bytes the cheapest case so far exceeds the budget, at every op."""
        values = search.cheapest().answer.values
        return lacking(self.problem, search.program, values, self.budget) if len(values) else np.array([-1.0])

    def _wider(self, rows: list[OpId], search: StagedSearch) -> list[OpId]:
        """Add the op that lacks bytes most where the cheapest case so far is realised."""
        excess = self._excess(search)
        return sorted([*rows, int(np.argmax(excess))]) if excess.max() > _SOME_BYTES else rows

    def _late(self, rows: list[OpId], search: StagedSearch) -> list[OpId]:
        """Add the op that lacks bytes most where the cheapest case's re-runs come as late as they can."""
        values = search.cheapest().answer.values
        if not len(values):
            return rows
        limit = live_limit(self.graph, Limits(bytes=(self.budget,)))
        excess = realised(build(self.graph), search.program, values, limit)
        excess[rows] = -np.inf
        return sorted([*rows, int(np.argmax(excess))]) if excess.max() > _SOME_BYTES else rows

    def _pruned(self, rows: list[OpId], value: float, allowed: Effort, *, keep: OpId) -> list[OpId]:
        """Take out rows that a relaxation does not need."""
        for row in [row for row in rows if row != keep]:
            rest = [other for other in rows if other != row]
            if rest and allowed.left() and self._relaxed(rest, allowed) * _WORTH > value:
                rows = rest
        return rows

    def _barred(self, rows: list[OpId], search: StagedSearch) -> list[OpId]:
        """Look for a new barrier to what the cheapest case so far runs again; list the rows around it."""
        if self.best is None or len(rows) >= _CHOSEN_ROWS:
            return []
        program, values, ways = search.program, search.cheapest().answer.values, self.problem.runs
        facts = [program.facts[column] for column in np.flatnonzero(values > _RUNS).tolist()]
        runs = [(op, row) for what, op, row in facts if what == "run"]
        room = _EXPENSIVE * (self.upper - self.best.extra_ns)
        expensive = {op for op in self.lineage.inputs if min(way.ns for way in ways[op]) >= room}
        expensive -= {op for op, _ in runs}
        runs.sort(key=lambda run: (-min(way.need for way in ways[run[0]]), run))
        before = self.barriers.work
        for op, row in runs if expensive else []:
            if row + 1 < len(rows):
                around = self.barriers.look(op, rows[row], rows[row + 1], frozenset(expensive))
                self.work.spent += _FLOW * (self.barriers.work - before)
                before = self.barriers.work
                if around:
                    return around
        return []

    def _more_expensive(self, rows: list[OpId], search: StagedSearch) -> list[OpId]:
        """Add ops that hardly fit, the most expensive first; take out rows that nothing needs."""
        allowed = self._some()
        candidates = highest(self._excess(search), apart=_APART, most=_CANDIDATES)
        value = self._relaxed(rows, allowed)
        while len(rows) < _CHOSEN_ROWS and allowed.left():
            values = {op: self._relaxed(sorted([*rows, op]), allowed) for op in candidates if op not in rows}
            row = max(values, key=lambda op: (values[op], -op), default=None)
            if row is None or values[row] <= value * _WORTH:
                break
            rows, value = self._pruned(sorted([*rows, row]), values[row], allowed, keep=row), values[row]
        self.work.spent += allowed.spent
        return rows

    def _relaxed(self, rows: list[OpId], work: Effort) -> float:
        return self._staged(rows, work, during=False).root.value

    def _some(self) -> Effort:
        return Effort(min(self.work.most - self.work.spent, int(_TRY * self.work.most)))

    def _search(self, rows: list[OpId], work: Effort, *, during: bool) -> StagedSearch:
        search = self._staged(rows, work, during=during)
        search.run()
        extra, numbers = search.result()
        if work is not self.work:
            self.work.spent += work.spent
        if self.best is None or extra > self.best.extra_ns:
            self.best = TimeBound(extra, None, numbers if extra else None)
        return search

    def _staged(self, rows: list[OpId], work: Effort, *, during: bool) -> StagedSearch:
        staged = staged_problem(
            self.graph, self.problem, rows, self.budget, during=during, lineage=self.lineage,
            barriers=self.barriers.between(rows),
        )  # fmt: skip
        return StagedSearch(staged, self.problem, self.upper, work)


def _around(ops: list[OpId], reach: int, num_ops: int) -> list[OpId]:
    near = {at for op in ops for at in range(op - reach, op + reach + 1)}
    return sorted(at for at in near if 0 <= at < num_ops)
