"""Lower a plan and have it judged: nothing else is run, drawn or forecast."""

from typing import NamedTuple

from tightrope.core import Executable, Graph, JudgeError, Machine, Plan, Schedule, TightropeError, fitted
from tightrope.judge import Verdict, Walk, judge, walk_executable
from tightrope.lower.lowering import lower


class Lowered(NamedTuple):
    """What runs, and what the judge says of it."""

    executable: Executable
    verdict: Verdict


def lowered(graph: Graph, plan: Plan, machine: Machine | None = None) -> Lowered:
    """Lower a plan, and judge the executable and the plan's claims.

    Args:
        graph: that the plan was made for.
        plan: any.
        machine: the profile that it was made for; needed by a plan that pages.

    Raises:
        JudgeError: the first check that failed; `problems` lists all.
        TightropeError: the plan cannot be lowered.
    """
    made = lower(graph, plan, machine)
    verdict = judge(graph, made, plan, machine)
    if verdict.problems:
        raise JudgeError(verdict.problems[0])
    return Lowered(made, verdict)


def problems(graph: Graph, plan: Plan, machine: Machine | None = None) -> list[str]:
    """List everything that is wrong with a plan, empty when nothing is."""
    try:
        made = lower(graph, plan, machine)
    except TightropeError as error:
        return [str(error)]
    return list(judge(graph, made, plan, machine).problems)


def walked(graph: Graph, schedule: Schedule, machine: Machine | None = None) -> Walk:
    """Lower a schedule and let the judge walk it; return the memory that it takes and its time.

    Raises:
        JudgeError: the schedule breaks a rule.
        TightropeError: it cannot be lowered.
    """
    fit = graph if machine is None else fitted(graph, machine.tiers[0].alignment)
    return walk_executable(fit, lower(graph, schedule, machine), machine)
