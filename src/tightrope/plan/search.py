"""Plan under a budget: search, place, tighten, repeat.

Idea        A planner is asked for a schedule whose live bytes fit; its allocations are placed; where
            the arena is larger than what is left of the budget, the target is lowered by up
            to the overshoot and the planner is asked again; where a lower target fitted, half of the
            way back is tried. Where nothing fits yet, the plan with the fewest bytes is looked for, and
            targets lie between its bytes and the budget. The fastest plan whose arena fits is kept.
Source      tighten-and-repeat around Checkmate-style planners; arena, not live bytes, is the budget
Guarantee   A returned plan takes at most the budget, placed. Effort is counted in moves, so equal
            calls give equal plans; ``seconds`` longer than that adds search, and can only improve the plan.
Complexity  at most six searches and placements per planner of the portfolio
Gaps        Placement does not steer the search except through the target.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import msgspec

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, Plan, TightropeError, format_bytes
from tightrope.core.arguments import check_search
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.cache import SMALLEST, PlanCache
from tightrope.plan.job import Job, smallest_plan
from tightrope.plan.model import pairs_of
from tightrope.plan.options import Options, Progress, Watch
from tightrope.plan.reasons import reasons
from tightrope.plan.registry import members
from tightrope.plan.schedule import expand, useful

_WAITED_OPS: Final = 400
"""A loop waits for the moves of so many ops at most: on 1,635 ops all of them found nothing faster."""


def _waited_for(options: Options, graph: Graph, enough: float) -> Options:
    """Search no longer than a loop would wait, if one does."""
    if not enough:
        return options
    effort = min(1.0, _WAITED_OPS / max(len(graph.ops), 1))
    return replace(options, effort=effort, enough_ns=int(enough * graph.base_ns))


def solve(
    graph: Graph,
    *,
    budget: Bytes,
    machine: Machine | None = None,
    planner: str = "auto",
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    cache: PlanCache | None = None,
    order: Literal["given", "free"] = "given",
    placed: bool = True,
    bound: bool | None = None,
    start: Plan | None = None,
    enough: float = 0.0,
) -> Plan:
    """Plan a step so that everything it holds at once takes at most ``budget`` bytes.

    Guarantees: the plan's total (what the caller holds + arena + what lives outside the arena) is at
    most ``budget``; every allocation has an address; with a cache, time never rises with the budget.
    Equal arguments without ``seconds`` give equal plans. Ctrl-C keeps the best plan so far.

    Args:
        graph: one training step.
        budget: total bytes.
        machine: named in the plan; its bytes are not consulted.
        planner: ``auto``, or a name of `PLANNERS`.
        seconds: None = effort by the size of the graph; else search that long, unless the plan is
            proved to be the fastest before.
        seed: of all random choices.
        progress: called at most about ten times a second.
        cache: plans known already, and where to keep this one.
        order: of first runs: ``given`` = the base order, ``free`` = any that gives the same values (with
            tightrope-planners).
        placed: whether allocations get addresses; without, the budget counts live bytes, as the
            literature does.
        bound: prove a bound on the time; None = only as far as it costs next to nothing.
        start: a plan of a graph with the same ops for other sizes, to begin from.
        enough: a loop waits: a plan that adds at most this share of the time of all ops ends the search.

    Returns:
        The fastest plan found.

    Raises:
        InfeasibleError: no plan was found; names the smallest budget found and a proved bound.
        TightropeError: no such planner, or the budget, the seed or the seconds are no such numbers.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
        >>> solve(graph, budget=128).forecast.total
        128
    """
    members(planner)
    check_search(seed=seed, seconds=seconds)
    _check(budget, cache, order)
    known = cache.exact(graph, budget=budget, planner=planner, placed=placed) if cache is not None else None
    least = cache.least(graph, placed=placed) if cache is not None and seconds is None else None
    if least is not None and budget < least.forecast.total and planner == "auto":
        raise _infeasible(graph, budget, least, order)
    watch = Watch(seconds=seconds, budget=budget, progress=progress)
    options = Options(seed=seed, watch=watch, order=order, bound="quick" if bound is None else bound)
    job = Job(graph, budget, machine, _waited_for(options, graph, enough), placed=placed)
    if cache is not None and (plan := cache.best(graph, budget=budget, placed=placed)) is not None:
        job.consider(plan)
        job.unplaced = pairs_of(graph, plan.schedule)
    job.least = least
    if start is not None and order == "given":
        _begin_from(job, start)
    if lower_bound(graph, free_order=order == "free")[0] <= budget and (known is None or seconds is not None):
        if order == "free":
            job.free_order()
        job.run(planner)
    if job.best is None and planner != "given":
        _rescue(job)
    if cache is not None and least is None and job.least is not None:
        cache.store(graph, job.least, planner=SMALLEST)
    if job.best is None:
        raise _infeasible(job.graph, budget, job.least, order)
    return _stored(graph, job.proved(), cache, planner)


def smallest(
    graph: Graph,
    *,
    seconds: float | None = None,
    seed: int = 0,
    machine: Machine | None = None,
    effort: float = 1.0,
) -> Plan:
    """Find the plan with the smallest total budget that the search reaches; `solve` makes it faster.

    Args:
        graph: one training step.
        seconds: None = effort by the size of the graph; else at most about this long.
        seed: of all random choices.
        machine: named in the plan.
        effort: factor on the moves of the search; the greedy rules that come before are tried in any case.

    Returns:
        A plan whose budget is its own total; `solve` finds a plan for that budget too.

    Raises:
        NativeError: the search was built but does not load.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> smallest(Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))).budget
        128
    """
    watch = Watch(seconds=seconds)
    plan = smallest_plan(graph, machine, Options(seed=seed, watch=watch, effort=effort))
    return msgspec.structs.replace(plan, reasons=reasons(graph, plan, machine))


def _check(budget: Bytes, cache: PlanCache | None, order: Literal["given", "free"]) -> None:
    if budget <= 0:
        raise TightropeError(f"budget={budget}: give a number of bytes above 0.")
    if cache is not None and order != "given":
        raise TightropeError("a cache keeps plans in base order: leave it out, or ask for that order.")


def _begin_from(job: Job, start: Plan) -> None:
    """Try the recomputations of a plan for other sizes; search from them where their live bytes fit."""
    pairs = useful(job.graph, pairs_of(job.graph, start.schedule))
    plan = assemble(
        job.graph, expand(job.graph, pairs), budget=job.budget, machine=job.machine, planner=start.planner,
        seed=job.options.seed, placed=job.placed,
    )  # fmt: skip
    job.consider(plan)
    if plan.forecast.persistent + plan.forecast.peak <= job.budget:
        job.unplaced = job.unplaced or pairs


def _rescue(job: Job) -> None:
    """Take the smallest plan where it fits; else refuse with its figures."""
    searched = job.least is not None
    job.least = job.least or job.lowest()
    if job.ordering is not None and job.least.forecast.total > job.budget:
        given = job.lowest(job.asked)
        if given.forecast.total < job.least.forecast.total:
            job.graph, job.ordering, job.least, searched = job.asked, None, given, False
    job.consider(job.least)
    if job.best is not None and not searched and not job.done:
        job.unplaced = pairs_of(job.graph, job.least.schedule)
        job.rounds("anneal", job.options)


def _stored(graph: Graph, plan: Plan, cache: PlanCache | None, planner: str) -> Plan:
    if cache is not None:
        cache.store(graph, plan, planner=planner)
    return plan


def _infeasible(
    graph: Graph, budget: Bytes, least: Plan | None, order: Literal["given", "free"]
) -> InfeasibleError:
    bound, witness = lower_bound(graph, free_order=order == "free")
    who = graph.ops[witness].describe() if witness >= 0 else "the caller's own storages"
    found = None if least is None else least.forecast.total
    possible = (
        "without recomputation it does not fit"
        if found is None
        else f"smallest feasible found {format_bytes(found)}"
    )
    advice = 'Try planner="auto"' if found is None else f"Ask for {found} bytes or more"
    if found is not None and found > bound:  # else it is proved that no search finds less
        advice += ", try more seconds"
    where = "in the base order" if order == "given" else "in any order"
    verdict = "no plan exists" if bound > budget else "a plan is not ruled out"
    return InfeasibleError(
        f"asked {format_bytes(budget)}; {possible} (proved >= {format_bytes(bound)} {where}: {verdict}); "
        f"largest step: {who}. {advice}, or a smaller batch.",
        asked=budget,
        smallest_found=found,
        lower_bound=bound,
        op=who,
    )
