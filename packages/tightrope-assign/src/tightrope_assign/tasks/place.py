"""The ladder: a plan at once, a better one by search, the best one where few tasks allow a proof."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from tightrope.core import Bytes, Nanoseconds, TightropeError
from tightrope.core.units import shown
from tightrope_assign.tasks.bound import lower_bound
from tightrope_assign.tasks.heft import heft
from tightrope_assign.tasks.problem import TaskProblem, task_problem
from tightrope_assign.tasks.search import better_start, improve
from tightrope_assign.tasks.simulate import in_sequence, makespan
from tightrope_assign.values.cluster import Cluster
from tightrope_assign.values.tasks import TaskGraph, TaskPlan, hosts_of

METHODS: Final = ("auto", "heft", "search", "exact", "policy")
MOST_EXACT: Final = 40
"""Tasks up to which ``auto`` lets CP-SAT try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Effort of the ladder.

    Attributes:
        method: ``heft``; ``search`` from it; ``exact``, CP-SAT from both; ``policy``, a trained one;
            ``auto``: search, and CP-SAT up to 40 tasks where OR-Tools is installed.
        moves: plans that the search tries; None = as many as fit 1.5 million visits of tasks.
        seconds: of CP-SAT, and the most that the search takes.
        policy: file of a trained policy; empty = the one that comes with the package.
        seed: of everything random.
    """

    method: str = "auto"
    moves: int | None = None
    seconds: float = 10.0
    policy: str = ""
    seed: int = 0


DEFAULT: Final = TaskOptions()


def place_tasks(
    graph: TaskGraph, cluster: Cluster, *, options: TaskOptions = DEFAULT, replaces: TaskPlan | None = None
) -> TaskPlan:
    """Decide where and when tasks run.

    Args:
        graph: tasks and what they send each other.
        cluster: devices with bytes, and links.
        options: method and effort.
        replaces: plan of a cluster that was: tasks stay where they can, and bytes that move are counted.

    Returns:
        A plan within the bytes of every device, with a lower bound.

    Raises:
        TightropeError: graph, cluster or an option cannot be; says which and where.
        InfeasibleError: no assignment within the bytes was found.

    Example:
        >>> from tightrope_assign.tasks import PlaceDevice, PlaceTask, TaskEdge
        >>> graph = TaskGraph((PlaceTask("a", 5), PlaceTask("b", 7)), (TaskEdge("a", "b"),))
        >>> place_tasks(graph, Cluster((PlaceDevice("cpu", rate=1e9),))).makespan
        12
    """
    _check_options(options)
    problem = task_problem(graph, cluster)
    if replaces is not None:
        hosts, starts = kept_start(problem, replaces)
        moved_from: TaskPlan | None = replaces
    else:
        (hosts, starts), moved_from = heft(problem), None
    planner, proved = "heft", False
    if options.method == "policy":
        from tightrope_assign.tasks.policy import load_policy, run_policy

        hosts, starts = run_policy(problem, load_policy(options.policy), hosts, seed=options.seed)
        planner = "policy"
    elif options.method != "heft":
        hosts, starts, planner, proved = _climb(problem, hosts, starts, options, replan=replaces is not None)
    if moved_from is not None:
        hosts, starts = settle(problem, moved_from, hosts, starts)
    bound, prices = lower_bound(problem)
    return TaskPlan(
        placed=problem.placed(hosts, starts),
        makespan=makespan(problem, hosts, starts),
        lower_bound=bound,
        prices=prices,
        planner=planner,
        proved=proved,
        moved_bytes=0 if moved_from is None else bytes_moved(problem, moved_from, hosts),
        seed=options.seed,
    )


def _check_options(options: TaskOptions) -> None:
    if options.method not in METHODS:
        raise TightropeError(f"method {shown(options.method)} is not known: take {', '.join(METHODS)}.")
    if not 0 < options.seconds <= 86_400:
        raise TightropeError(f"seconds={shown(options.seconds)}: give a number above 0, at most 86400.")
    if options.moves is not None and not 0 <= options.moves <= 10**8:
        raise TightropeError(f"moves={shown(options.moves)}: give a whole number from 0 to 10^8.")


def _climb(
    problem: TaskProblem,
    hosts: list[int],
    starts: list[Nanoseconds],
    options: TaskOptions,
    *,
    replan: bool,
) -> tuple[list[int], list[Nanoseconds], str, bool]:
    """Search, then prove where few tasks allow it."""
    deadline = time.monotonic() + options.seconds
    moves = options.moves if options.moves is not None else min(20_000, 1_500_000 // (problem.num_tasks + 10))
    if not replan:
        hosts, starts = better_start(problem, hosts, starts)
    hosts, starts = improve(problem, hosts, starts, moves=moves, seed=options.seed, seconds=options.seconds)
    small = problem.num_tasks <= MOST_EXACT and not replan and find_spec("ortools") is not None
    if options.method == "search" or (options.method == "auto" and not small):
        return hosts, starts, "search", False
    from tightrope_assign.tasks.exact import solve_exactly

    left = max(0.5, deadline - time.monotonic())
    hosts, starts, proved = solve_exactly(problem, hosts, starts, seconds=left, seed=options.seed)
    return hosts, starts, "exact", proved


def kept_start(problem: TaskProblem, plan: TaskPlan) -> tuple[list[int], list[Nanoseconds]]:
    """Keep tasks where they were, and give those whose device is lost the device where they end earliest."""
    where = hosts_of(problem.graph, problem.cluster, plan.placed)
    hosts = [where.get(task.name, -1) for task in problem.graph.tasks]
    hosts = [host if host in problem.options[at] else -1 for at, host in enumerate(hosts)]
    if min(problem.free(hosts)) < 0:
        return heft(problem)
    return heft(problem, hosts)


def settle(
    problem: TaskProblem, plan: TaskPlan, hosts: Sequence[int], starts: Sequence[Nanoseconds]
) -> tuple[list[int], list[Nanoseconds]]:
    """Bring tasks back to their devices of a plan, the most bytes first, where the makespan stays."""
    where = hosts_of(problem.graph, problem.cluster, plan.placed)
    home = [where.get(task.name, -1) for task in problem.graph.tasks]
    place = {task: at for at, task in enumerate(problem.order)}
    sequence = sorted(place, key=lambda task: (starts[task], place[task]))
    now, times = list(hosts), in_sequence(problem, hosts, sequence)
    span = makespan(problem, now, times)
    for task in sorted(place, key=lambda task: -problem.size[task]):
        if home[task] == now[task] or home[task] not in problem.options[task]:
            continue
        trial = [*now[:task], home[task], *now[task + 1 :]]
        begun = in_sequence(problem, trial, sequence)
        if min(problem.free(trial)) >= 0 and makespan(problem, trial, begun) <= span:
            now, times = trial, begun
    return now, times


def bytes_moved(problem: TaskProblem, plan: TaskPlan, hosts: Sequence[int]) -> Bytes:
    """Add up the bytes of tasks that are on another device than in a plan."""
    before = {one.task: one.device for one in plan.placed}
    return sum(
        size
        for task, size, host in zip(problem.graph.tasks, problem.size, hosts, strict=True)
        if before.get(task.name) != problem.cluster.names[host]
    )
