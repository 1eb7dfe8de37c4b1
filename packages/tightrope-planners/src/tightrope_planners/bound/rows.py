"""Where a solution of the staged problem takes too much: the next row to look at.

Idea        What is live at a row and at the next without being made again between is live all the while,
            and so is what a first run between them uses without its being made again. Added up at every
            op between the rows, that tells where the solution would not fit, or hardly: the op that
            lacks most is the row that cuts the solution off.
            Where that fits, the solution's re-runs are put as late as they can be, as a schedule would
            have them, and its bytes are added up.
Source      lazy constraints
Guarantee   None: it chooses rows; whether they prove anything is for the staged problem to say.
Complexity  O(gaps * rows + ops)
Gaps        The first way does not count what is made between two rows, nor bytes during re-runs.
"""

import math
from typing import Final

import numpy as np

from tightrope.core import Bytes, OpId
from tightrope.plan.bound.problem import Problem
from tightrope.plan.model import Model, made_by
from tightrope_planners.bound.program import Reals, StagedProgram
from tightrope_planners.bound.runs import Runs

_HOLDS: Final = 0.5
"""From where on a fact of a solution counts as so."""


def lacking(problem: Problem, program: StagedProgram, values: Reals, budget: Bytes) -> Reals:
    """Add up by how much a solution exceeds the budget at every op.

    Args:
        problem: of the graph.
        program: that has the solution.
        values: how far every fact holds, 0 to 1.
        budget: total bytes.

    Returns:
        Bytes, negative where it fits; minus infinity at the rows, where it fits anyway.
    """
    ops, num_ops = program.staged.ops, len(problem.fixed)
    change = np.zeros(num_ops + 1)
    ends = (*ops[1:], num_ops)

    def fact(what: str, item: int, row: int, otherwise: float) -> float:
        found = program.value_of(values, (what, item, row))  # type: ignore[arg-type]
        return otherwise if found is None else found

    for gap in range(problem.num_gaps):
        storage, producer = int(problem.storage[gap]), int(problem.producer[gap])
        since, until, size = int(problem.since[gap]), int(problem.until[gap]), int(problem.size[gap])
        for row, (first, last) in enumerate(zip((-1, *ops), (ops[0], *ends), strict=True), start=-1):
            low, high = max(since, first) + 1, min(until, last)
            if low >= high:
                continue
            before = 1.0 if since >= first or row < 0 else fact("live", storage, row, 1.0)
            after = 1.0 if until <= last or row + 1 >= len(ops) else fact("live", storage, row + 1, 1.0)
            ran = fact("run", producer, row, 0.0) if row >= 0 else 0.0
            held = max(0.0, before + after - 1.0 - ran) * size
            change[low] += held
            change[high] -= held
    found = problem.fixed + np.cumsum(change)[:-1] - float(budget)
    found[list(ops)] = -math.inf
    return found


def realised(model: Model, program: StagedProgram, values: Reals, limit: Bytes) -> Reals:
    """Add up by how much a solution's re-runs exceed a limit at every op, each as late as its readers let.

    Args:
        model: of the graph.
        program: that has the solution.
        values: how far every fact holds, 0 to 1; what holds by half counts.
        limit: bytes of the arena.

    Returns:
        Bytes at every op or the re-runs right before it, negative where they fit.
    """
    staged, num_ops = program.staged, len(model.need)
    made = made_by(model)
    stages: dict[tuple[int, OpId], OpId] = {}
    chosen = [program.facts[column] for column in np.flatnonzero(values > _HOLDS).tolist()]
    for _, op, row in sorted((fact for fact in chosen if fact[0] == "run"), key=lambda fact: -fact[1]):
        first = staged.ops[row]
        last = staged.ops[row + 1] if row + 1 < len(staged.ops) else num_ops - 1
        outputs = set(made[op])
        readers = [use for s in outputs for use in staged.lineage.uses[s] if first < use <= last]
        readers += [
            stage
            for (at, other), stage in stages.items()
            if at == row and outputs.intersection(staged.lineage.inputs[other])
        ]
        stages[row, op] = min(readers, default=last)
    runs = Runs(model, sorted((max(stage, op + 1), op) for (_, op), stage in stages.items()))
    excess, stage = np.full(num_ops, -np.inf), 0
    for position, (op, pair) in enumerate(zip(runs.ops, runs.again, strict=True)):
        excess[stage] = max(excess[stage], float(runs.profile[position]) - limit)
        stage = op + 1 if pair is None else stage
    return excess


def highest(amounts: Reals, *, apart: int, most: int) -> list[OpId]:
    """List ops with large amounts, the largest first, each so many ops away from the others.

    Example:
        >>> highest(np.array([5.0, 9.0, 8.0, 1.0, 7.0]), apart=1, most=3)
        [1, 4]
    """
    found = list[OpId]()
    for op in np.argsort(-amounts, kind="stable").tolist():
        if len(found) == most or math.isinf(amounts[op]):
            break
        if all(abs(op - other) > apart for other in found):
            found.append(op)
    return found
