"""The best plan by costs that are added up, by integer programming: an oracle, and a peer of the search.

Source      CP-SAT of OR-Tools, one literal per part and device
Guarantee   ``proved`` says that no assignment of these parts has a smaller largest sum.
Complexity  Exponential; 20 parts on 4 devices take about a second.
Gaps        Sets cost less or more than sums, and exchanges are left out.
"""

from collections.abc import Sequence
from contextlib import nullcontext

from tightrope.core import Nanoseconds
from tightrope_assign.fit import FittingItems, assign
from tightrope_assign.tables.problem import Part, TableProblem
from tightrope_shared.cp import ConstraintProgram, Worker


def additive(problem: TableProblem, parts: Sequence[Part]) -> list[list[Nanoseconds]]:
    """Price each part alone on each device."""
    return [[round(alone * slow) for slow in problem.slow] for alone in problem.alone(parts)]


def largest_sum(cost: Sequence[Sequence[Nanoseconds]], hosts: Sequence[int]) -> Nanoseconds:
    """Add up costs by device, and take the largest sum."""
    loads = [0] * len(cost[0])
    for row, host in zip(cost, hosts, strict=True):
        loads[host] += row[host]
    return max(loads)


def solve_additive(
    problem: TableProblem,
    parts: Sequence[Part],
    hosts: Sequence[int],
    *,
    seconds: float,
    worker: Worker | None = None,
) -> tuple[list[int], bool]:
    """Minimise the largest sum of single costs; the hosts of a known plan are a hint.

    Returns:
        The device of every part, and whether the plan is proved best.

    Raises:
        TightropeError: OR-Tools is not installed.
    """
    size, cost = [problem.size(part) for part in parts], additive(problem, parts)
    options = [[d for d, room in enumerate(problem.room) if one <= room] for one in size]
    program = ConstraintProgram()
    chosen = assign(program, FittingItems(options, size, problem.room.tolist()), hosts)
    last = program.integer(0, largest_sum(cost, hosts))
    for device in range(problem.num_devices):
        terms = [(row[device], cost[at][device]) for at, row in enumerate(chosen) if device in row]
        program.rows.append(([*terms, (last, -1)], -(2**62), 0, -1))
    program.objective.append((last, 1))
    with nullcontext(worker) if worker is not None else Worker() as solver:
        outcome = solver.solve(program, effort=1e6, seed=0, seconds=seconds)
    if not outcome.values:
        return list(hosts), False
    return [next(d for d, one in row.items() if outcome.values[one]) for row in chosen], outcome.proved
