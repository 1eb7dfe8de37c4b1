"""The best plan of few tasks, by constraint programming.

Idea        A literal per task and device, an interval per literal; intervals of a device do not overlap;
            bytes per device are a sum of literals. A message between two devices delays its reader where
            both are chosen. The best plan that is known is a hint.
Source      CP-SAT of OR-Tools
Guarantee   ``proved`` says that no plan ends earlier. Equal inputs without a clock give equal plans.
Complexity  Exponential; 25 tasks on 20 devices take seconds where each has few options.
Gaps        Above about 40 tasks it seldom improves on the search in the same time.
"""

from collections.abc import Sequence
from contextlib import nullcontext

from tightrope.core import Nanoseconds
from tightrope_assign.fit import assign
from tightrope_assign.tasks.problem import TaskProblem
from tightrope_assign.tasks.simulate import makespan
from tightrope_shared.cp import ConstraintProgram, Worker, constant


def solve_exactly(
    problem: TaskProblem,
    hosts: Sequence[int],
    starts: Sequence[Nanoseconds],
    *,
    seconds: float,
    seed: int = 0,
    worker: Worker | None = None,
) -> tuple[list[int], list[Nanoseconds], bool]:
    """Improve a plan until it is proved best or time is over.

    Args:
        problem: tasks and devices.
        hosts: of a plan that is known.
        starts: of the same plan.
        seconds: of solving, by the clock.
        seed: of CP-SAT.
        worker: a process of CP-SAT that runs; None = one is started, which takes half a second.

    Returns:
        Hosts, starts, and whether they are proved best.

    Raises:
        TightropeError: OR-Tools is not installed.
    """
    known = makespan(problem, hosts, starts)
    program = ConstraintProgram()
    chosen = assign(program, problem, hosts)
    begin = [program.integer(0, known) for _ in range(problem.num_tasks)]
    end = [program.integer(0, known) for _ in range(problem.num_tasks)]
    program.hints += [(begin[task], start) for task, start in enumerate(starts)]
    busy: list[list[int]] = [[] for _ in range(problem.num_devices)]
    for task, row in enumerate(chosen):
        for device, literal in row.items():
            takes = problem.cost[task][device]
            interval = program.interval((begin[task], 0), constant(takes), (end[task], 0), literal)
            if takes:
                busy[device].append(interval)
    for used in busy:
        if len(used) > 1:
            program.cumulatives.append((used, [1] * len(used), constant(1)))
    for task, rows in enumerate(problem.parents):
        for parent, edge in rows:
            _delay(program, problem, (chosen[parent], end[parent]), (chosen[task], begin[task]), edge)
    last = program.integer(0, known)
    for one in end:
        program.at_most((one, 0), (last, 0))
    program.objective.append((last, 1))
    with nullcontext(worker) if worker is not None else Worker() as solver:
        outcome = solver.solve(program, effort=1e6, seed=seed, seconds=seconds)
    if not outcome.values:
        return list(hosts), list(starts), False
    found = [next(d for d, one in row.items() if outcome.values[one]) for row in chosen]
    times = [outcome.values[one] for one in begin]
    if makespan(problem, found, times) >= known:
        return list(hosts), list(starts), outcome.proved
    return found, times, outcome.proved


def _delay(
    program: ConstraintProgram,
    problem: TaskProblem,
    source: tuple[dict[int, int], int],
    target: tuple[dict[int, int], int],
    edge: int,
) -> None:
    """Let a reader start behind its message: ``end[u] + travel <= start[v]`` where both are chosen."""
    (senders, ends), (readers, begins) = source, target
    travel = problem.travel[edge]
    program.at_most((ends, 0), (begins, 0))
    for a, sends in senders.items():
        delays = {problem.link[b][a] for b in readers}
        for kind in delays:
            if not travel[kind]:
                continue
            alike = [one for b, one in readers.items() if problem.link[b][a] == kind]
            for reads in alike:
                both = program.integer(0, 1)
                program.rows.append(([(both, 1), (sends, -1), (reads, -1)], -1, 1, -1))
                program.at_most((ends, travel[kind]), (begins, 0), both)
