"""Plan under a budget: search, place, tighten, repeat.

Idea        A planner is asked for a schedule whose live bytes fit; its allocations are placed; where
            the arena is larger than what is left of the budget, the target is lowered by up
            to the overshoot and the planner is asked again; where a lower target fitted, half of the
            way back is tried. The fastest plan whose arena fits is kept.
Source      tighten-and-repeat around Checkmate-style planners; arena, not live bytes, is the budget
Guarantee   A returned plan takes at most the budget, placed. Effort is counted in moves, so equal
            calls give equal plans; ``seconds`` longer than that adds search, and can only improve the plan.
Complexity  at most six searches and placements per planner of the portfolio
Gaps        Placement does not steer the search except through the target.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from tightrope.core import Bytes, Graph, InfeasibleError, Limits, Machine, Plan, TightropeError, format_bytes
from tightrope.native.solver import available
from tightrope.plan.anneal import shrink
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.cache import PlanCache, with_budget
from tightrope.plan.model import Pair, pairs_of
from tightrope.plan.options import Options, Progress, Watch
from tightrope.plan.reasons import reasons
from tightrope.plan.registry import PLANNERS, stages
from tightrope.plan.schedule import expand, useful

_ROUNDS: Final = {"given": 1, "greedy": 3, "anneal": 6}
"""Searches and placements per planner: the greedy only has to bring a first plan early."""


class _Job:
    """One search: what was asked, and what is known.

    Attributes:
        best: fastest plan that fits, placed.
        unplaced: pairs whose live bytes fit the whole budget, though their arena may not.
        fits: largest target for which annealing gave a plan that fits, placed; 0 = none.
    """

    def __init__(self, graph: Graph, budget: Bytes, machine: Machine | None, options: Options) -> None:
        self.graph, self.budget, self.machine, self.options = graph, budget, machine, options
        self.watch = options.watch
        self.best: Plan | None = None
        self.unplaced: tuple[Pair, ...] = ()
        self.fits: Bytes = 0

    @property
    def done(self) -> bool:
        """Whether nothing can be gained: the plan is as fast as running every op once, or time is up."""
        return self.watch.over or (self.best is not None and self.best.certificate.proved)

    def consider(self, plan: Plan) -> None:
        """Keep a plan that fits and is faster, or equally fast and smaller."""
        rank = (plan.forecast.ns, plan.forecast.total)
        if plan.forecast.total > self.budget:
            return
        if self.best is None or rank < (self.best.forecast.ns, self.best.forecast.total):
            self.best = with_budget(plan, self.budget)
            self.watch.best_ns, self.watch.best_total = rank

    def rounds(self, planner: str, options: Options) -> None:
        """Ask one planner, place, and move its target until the arena fits closely."""
        low, misses = self.fits, self.budget + 1
        target = (low + self.budget) // 2 if low else self.budget
        options = replace(options, start=self.unplaced)
        for _ in range(_ROUNDS.get(planner, 6)):
            plan = self._attempt(planner, options, target)
            self.consider(plan)
            over = plan.forecast.total - self.budget
            unreached = over > 0 and plan.forecast.persistent + plan.forecast.peak > target
            if target == self.budget:
                self.unplaced = pairs_of(self.graph, plan.schedule)
                if unreached:
                    break
            if over <= 0 or unreached:
                low = max(low, target)
                self.fits = low if planner == "anneal" and over <= 0 else self.fits
            else:
                misses = min(misses, target)
            closed = misses > self.budget or misses - low <= self.budget // 500
            if self.done or closed or (planner == "greedy" and over <= 0):
                break
            start = self.unplaced if unreached else pairs_of(self.graph, plan.schedule)
            options = replace(options, start=start, seed=options.seed + 101, restarts=2)
            target = (
                (low + misses) // 2 if low else target - max(over if planner == "greedy" else over // 2, 64)
            )
            if target <= self.graph.persistent:
                break

    def _attempt(self, planner: str, options: Options, target: Bytes) -> Plan:
        limits = Limits(bytes=(target,))
        schedule = PLANNERS[planner](self.graph, self.machine, limits, options)
        return assemble(
            self.graph,
            schedule,
            budget=self.budget,
            machine=self.machine,
            planner=_label(planner, options),
            seed=self.options.seed,
        )

    def run(self, planner: str) -> None:
        """Run a planner or the portfolio, then search on with more effort while time is left."""
        options = self.options
        try:
            for name in stages(planner):
                if not self.done or self.best is None:
                    self.rounds(name, options)
            while self.watch.seconds is not None and not self.done and "anneal" in stages(planner):
                options = replace(options, effort=options.effort * 2, seed=options.seed + 7919)
                self.rounds("anneal", options)
        except KeyboardInterrupt:
            self.watch.interrupted = True
        if self.watch.interrupted and self.best is None:
            raise KeyboardInterrupt


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

    Returns:
        The fastest plan found.

    Raises:
        InfeasibleError: no plan was found; names the smallest budget found and a proved bound.
        TightropeError: no such planner, or the budget or seconds are not positive.

    Example:
        >>> from tightrope.core import Op, Storage
        >>> graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
        >>> solve(graph, budget=128).forecast.total
        128
    """
    stages(planner)
    if budget <= 0 or (seconds is not None and not 0 < seconds < math.inf):
        raise TightropeError(f"budget ({budget} bytes) and seconds ({seconds}) must be positive and finite.")
    known = cache.exact(graph, budget=budget, planner=planner) if cache is not None else None
    watch = Watch(seconds=seconds, budget=budget, progress=progress)
    job = _Job(graph, budget, machine, Options(seed=seed, watch=watch))
    if cache is not None and (plan := cache.best(graph, budget=budget)) is not None:
        job.consider(plan)
        job.unplaced = pairs_of(graph, plan.schedule)
    if lower_bound(graph)[0] <= budget and (known is None or seconds is not None):
        job.run(planner)
    if job.best is None and planner != "given":
        _rescue(job, cache, seconds=seconds, seed=seed)
    if job.best is None:
        raise _infeasible(graph, budget, None)
    return _finish(graph, job.best, cache, planner)


def smallest(
    graph: Graph, *, seconds: float | None = None, seed: int = 0, machine: Machine | None = None
) -> Plan:
    """Find the plan with the smallest total budget that the search reaches.

    Args:
        graph: one training step.
        seconds: None = effort by the size of the graph; else at most about this long.
        seed: of all random choices.
        machine: named in the plan.

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
    plan = _smallest(graph, machine, Options(seed=seed, watch=watch))
    return _finish(graph, plan, None, "auto")


def _smallest(graph: Graph, machine: Machine | None, options: Options) -> Plan:
    plans: list[Plan] = []
    for pairs in ((), *shrink(graph, options)):
        name = _label("anneal" if pairs else "given", options)
        schedule = expand(graph, useful(graph, pairs))
        plans.append(assemble(graph, schedule, budget=None, machine=machine, planner=name, seed=options.seed))
    best = min(plans, key=lambda plan: (plan.forecast.total, plan.forecast.ns))
    job = _Job(graph, best.forecast.total, machine, options)
    job.consider(best)
    if not job.done:
        job.rounds("anneal", options)
    assert job.best is not None
    return with_budget(job.best, job.best.forecast.total)


def _rescue(job: _Job, cache: PlanCache | None, *, seconds: float | None, seed: int) -> None:
    """Take the smallest plan where it fits; else refuse with its figures."""
    watch = Watch(seconds=seconds, budget=job.budget, progress=job.watch.progress)
    least = _smallest(job.graph, job.machine, Options(seed=seed, watch=watch))
    if cache is not None:
        cache.store(job.graph, least, planner="smallest")
    job.consider(least)
    if job.best is None:
        raise _infeasible(job.graph, job.budget, least)


def _finish(graph: Graph, plan: Plan, cache: PlanCache | None, planner: str) -> Plan:
    plan = msgspec.structs.replace(plan, reasons=reasons(graph, plan))
    if cache is not None:
        cache.store(graph, plan, planner=planner)
    return plan


def _infeasible(graph: Graph, budget: Bytes, least: Plan | None) -> InfeasibleError:
    bound, witness = lower_bound(graph)
    who = graph.ops[witness].describe() if witness >= 0 else "the caller's own storages"
    found = None if least is None else least.forecast.total
    possible = (
        "without recomputation it does not fit"
        if found is None
        else f"smallest feasible found {format_bytes(found)}"
    )
    advice = 'Try planner="auto"' if found is None else f"Ask for {found} bytes or more, try more seconds"
    return InfeasibleError(
        f"asked {format_bytes(budget)}; {possible} (proved >= {format_bytes(bound)} in the base order); "
        f"largest step: {who}. {advice}, or a smaller batch.",
        asked=budget,
        smallest_found=found,
        lower_bound=bound,
        op=who,
    )


def _label(planner: str, options: Options) -> str:
    if planner == "given" or (options.native and available()):
        return planner
    return "greedy in Python (no C++ compiler)"
