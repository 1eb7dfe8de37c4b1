"""Joint search over recomputation and paging, for seconds or joules.

Idea        Anneal sets of re-runs and page-ins in C++. Recomputation alone and paging alone are
            searched first; the joint search starts from the better of both and from nothing. Without
            copies both time and energy are the sum of the re-runs' times, so the search over pairs,
            whose moves cost microseconds, does the first part.
Source      POET (ICML 2022) for the problem; the moves are those of the search over pairs, with
            page-ins as re-runs that read nothing
Guarantee   The set returned fits the limits whenever one was found; without a deadline it is never
            more expensive than what recomputation alone and paging alone find with the same options
            and starts, nor than a start that fits.
Complexity  moves x runs of the schedule
Gaps        Tier 1 only. A first page-in alone decides how long the fast copy stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec

from tightrope.core import (
    Bytes,
    Graph,
    InfeasibleError,
    Limits,
    Machine,
    Plan,
    Schedule,
    TightropeError,
    fitted,
    format_bytes,
)
from tightrope.native.solvers.paging import PagingGoal, PagingSolver, PagingState
from tightrope.plan.anneal import anneal_pairs
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Pair, build
from tightrope.plan.options import Options, Watch
from tightrope.plan.paging.model import PagedSet, need_slower_tier, tables, tier_limit
from tightrope.plan.paging.schedule import expand_paged, useful_paged
from tightrope.plan.reasons import reasons

Objective: TypeAlias = Literal["seconds", "joules"]
_Rank: TypeAlias = tuple[float, Bytes]
_MANY_OPS: Final = 150
"""From this number on, moves are tried in proportion to 1 / ops, so that a run takes no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingKnobs:
    """Knobs of the search.

    Attributes:
        objective: what is minimised.
        moves: tried per annealing run, fewer on graphs of more than 150 ops, where each costs more; a run
            of 100,000 takes 0.2 to 1 CPU-seconds for 100 ops.
        heat: first temperature, in mean prices of a re-run; the last is 10^-4 of it.
        recompute: whether ops may run again.
        paging: whether storages may be paged.
    """

    objective: Objective = "seconds"
    moves: int = 100_000
    heat: float = 1.0
    recompute: bool = True
    paging: bool = True


def paging(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Plan recomputation and paging for the least time under limits of bytes, seconds and joules.

    Raises:
        TightropeError: the machine has no slower tier.
    """
    machine = need_slower_tier(machine)
    found = search_paged(graph, machine, limits, options=options)
    return paged_schedule(graph, machine, found or PagedSet())


def paged_schedule(graph: Graph, machine: Machine, chosen: PagedSet) -> Schedule:
    """Turn a set into a schedule; copies run beside the processor where the tier has an engine."""
    beside = need_slower_tier(machine).tiers[1].engines > 0
    return expand_paged(graph, *useful_paged(graph, chosen.pairs, chosen.pages), beside=beside)


def search_paged(
    graph: Graph,
    machine: Machine,
    limits: Limits,
    *,
    knobs: PagingKnobs | None = None,
    options: Options | None = None,
    start: Sequence[PagedSet] = (),
    can: Sequence[bool] | None = None,
) -> PagedSet | None:
    """Find the cheapest set whose live bytes fit, None when no set that fits was found.

    Args:
        graph: one training step.
        machine: with a slower tier.
        limits: bytes per tier (everything, as in a budget), seconds, joules.
        knobs: objective, effort, switches.
        options: seed, restarts, effort, clock.
        start: sets to begin from besides those found here.
        can: which storages may be paged; None = all of which pages can be made.

    Raises:
        TightropeError: the machine has no slower tier.
        NativeError: there is no compiler and no built solver.
    """
    knobs, options = knobs or PagingKnobs(), options or Options()
    goal = PagingGoal(
        limit=live_limit(graph, limits),
        tier_limit=tier_limit(need_slower_tier(machine), limits.bytes),
        ns=None if limits.seconds is None else int(limits.seconds * 1e9),
        joules=limits.joules,
        by_joules=knobs.objective == "joules",
        rerun=knobs.recompute,
        page=knobs.paging,
    )
    run = _Anneal(PagingSolver(tables(graph, machine, can)), len(graph.ops), knobs, options)
    again = [PagedSet(pairs=given.pairs) for given in start if given.pairs]
    paged = [PagedSet(pages=given.pages) for given in start if given.pages]
    if knobs.recompute:
        searched = PagedSet(_recomputation(graph, goal, options))
        fits = [run.consider(goal, found) for found in (*again, searched)]
        if not any(fits):
            run.sequence(replace(goal, page=False), again, "recompute only")
    if knobs.paging:
        run.sequence(replace(goal, rerun=False), paged, "paging only")
    if knobs.recompute and knobs.paging:
        known = () if run.best is None else (run.best,)
        run.sequence(goal, (*start, *known), "joint")
    return run.best


def _recomputation(graph: Graph, goal: PagingGoal, options: Options) -> tuple[Pair, ...]:
    """Find the cheapest re-runs where nothing is paged; in a third of the time if paging is to follow."""
    model, watch = build(graph), options.watch
    if watch.seconds is not None and goal.page:
        rest = max(0.0, watch.seconds - watch.elapsed) / 3
        watch = Watch(seconds=rest, budget=watch.budget, progress=watch.progress)
    searched = replace(options, start=(), restarts=max(1, options.restarts), watch=watch)
    found = anneal_pairs(open_solver(model), model, goal.limit, searched)
    options.watch.interrupted = options.watch.interrupted or watch.interrupted
    return found


class _Anneal:
    """Annealing runs one after the other, and the best set of all."""

    def __init__(self, search: PagingSolver, num_ops: int, knobs: PagingKnobs, options: Options) -> None:
        self.search, self.num_ops, self.knobs, self.options = search, num_ops, knobs, options
        self.best: PagedSet | None = None
        self.rank: _Rank | None = None

    def sequence(self, goal: PagingGoal, starts: Sequence[PagedSet], label: str) -> None:
        """Anneal from every start and from nothing, then go on from the best of these.

        What it finds depends on its arguments alone, not on what was found before.
        """
        found: tuple[_Rank, PagedSet] | None = None
        for number in range(len(starts) + 1 + self.options.restarts):
            begin = starts[number] if number < len(starts) else PagedSet()
            if number > len(starts) and found is not None:
                begin = found[1]
            got = self._run(goal, begin, number, label)
            found = got if found is None or (got is not None and got[0] < found[0]) else found
        if found is not None:
            self._keep(*found)

    def consider(self, goal: PagingGoal, chosen: PagedSet) -> bool:
        """Keep a set if it is the best that fits; return whether it fits."""
        self.search.load(chosen.decisions())
        state = self.search.state(goal.limit, goal.tier_limit)
        late = goal.ns is not None and state.ns > goal.ns
        hot = goal.joules is not None and state.joules > goal.joules
        if state.excess or state.tier_excess or late or hot:
            return False
        self._keep(_rank(goal, state), chosen)
        return True

    def _keep(self, rank: _Rank, chosen: PagedSet) -> None:
        if self.rank is None or rank < self.rank:
            self.rank, self.best = rank, chosen

    def _run(
        self, goal: PagingGoal, start: PagedSet, number: int, label: str
    ) -> tuple[_Rank, PagedSet] | None:
        if self.options.watch.over:
            return None
        self.search.load(start.decisions())
        share = min(1.0, _MANY_OPS / max(1, self.num_ops))
        moves = max(1, int(self.knobs.moves * self.options.effort * share))
        seed, heat = self.options.seed * 1009 + number, self.knobs.heat * 0.5 ** ((number + 1) % 3)
        self.search.begin(goal, seed=seed, iterations=moves, heat=heat)
        while self.search.run(5_000) > 0 and not self.options.watch.over:
            self.options.watch.tell(f"recomputation and paging: {label}")
        decisions = self.search.best()
        if decisions is None:
            return None
        self.search.load(decisions)
        return _rank(goal, self.search.state(goal.limit, goal.tier_limit)), PagedSet.of(decisions)


def _rank(goal: PagingGoal, state: PagingState) -> _Rank:
    return (state.joules if goal.by_joules else state.ns), state.peak


def plan_paging(
    graph: Graph,
    *,
    machine: Machine,
    budget: Bytes,
    seconds: float | None = None,
    joules: float | None = None,
    tier_bytes: Bytes | None = None,
    knobs: PagingKnobs | None = None,
    options: Options | None = None,
    start: PagedSet | None = None,
    can: Sequence[bool] | None = None,
) -> Plan:
    """Plan a step under a budget of bytes in tier 0, recomputing and paging.

    Guarantees: the plan's total is at most ``budget``, placed; its slower tier, time and energy keep
    their limits. Equal arguments give equal plans unless the options have a clock.

    Args:
        graph: one training step.
        machine: with a slower tier.
        budget: total bytes in tier 0.
        seconds: largest time of the step.
        joules: largest energy of the step.
        tier_bytes: largest number of bytes in the slower tier, None = its capacity.
        knobs: objective, effort, switches.
        options: seed, restarts, clock.
        start: to begin from.
        can: which storages may be paged; None = all of which pages can be made.

    Raises:
        InfeasibleError: no set of re-runs and page-ins that fits was found.
        TightropeError: the machine has no slower tier.

    Example:
        >>> from tightrope.core import Op, Storage, Tier
        >>> first, second = Op(0, "a", "a", creates=(0,), ns=90), Op(1, "b", "b", creates=(1, 2), ns=10)
        >>> last = Op(2, "c", "c", reads=(0, 2), ns=10)
        >>> graph = Graph((first, second, last), (Storage(0, 640), Storage(1, 640), Storage(2, 64)))
        >>> board = Machine("board", (Tier("ram", 2**20), Tier("flash", 2**20, write=64e9, read=64e9)))
        >>> plan = plan_paging(graph, machine=board, budget=704)
        >>> plan.forecast.ns, plan.forecast.tiers
        (130, (640,))
    """
    need_slower_tier(machine)
    graph = fitted(graph, machine.tiers[0].alignment)
    knobs, options = knobs or PagingKnobs(), options or Options()
    slower = (tier_limit(machine) if tier_bytes is None else tier_bytes,)
    if budget <= 0 or slower[0] < 0:
        raise TightropeError(
            f"budget ({budget} bytes) must be positive, tier_bytes ({slower[0]}) not below 0."
        )
    limits = Limits((budget, *slower), seconds, joules)
    target, room, found, least = budget, slower[0], start or PagedSet(), None
    for _ in range(6):
        tight = msgspec.structs.replace(limits, bytes=(target, room))
        chosen = search_paged(graph, machine, tight, knobs=knobs, options=options, start=(found,), can=can)
        if chosen is None:
            break
        found = chosen
        plan = assemble(
            graph, paged_schedule(graph, machine, found), budget=budget, machine=machine, planner="paging",
            seed=options.seed,
        )  # fmt: skip
        over = sum(plan.forecast.tiers) - slower[0]
        if plan.forecast.total <= budget and over <= 0:
            plan = msgspec.structs.replace(plan, limits=limits)
            return msgspec.structs.replace(plan, reasons=reasons(graph, plan, machine))
        room -= max(over, 0)
        if plan.forecast.total > budget:
            least = min(least or plan.forecast.total, plan.forecast.total)
            target -= max(64, (plan.forecast.total - budget + 1) // 2)
    raise _infeasible(graph, limits, least)


def _infeasible(graph: Graph, limits: Limits, least: Bytes | None) -> InfeasibleError:
    bound, witness = lower_bound(graph)
    who = graph.ops[witness].describe() if witness >= 0 else "the caller's own storages"
    within = [f"{limits.bytes[1]} bytes of the slower tier"]
    within += [f"{limits.seconds} seconds"] if limits.seconds is not None else []
    within += [f"{limits.joules} joules"] if limits.joules is not None else []
    found = "nothing that fits was found" if least is None else f"smallest found {format_bytes(least)}"
    return InfeasibleError(
        f"asked {format_bytes(limits.bytes[0])} within {', '.join(within)}; {found} (proved >= "
        f"{format_bytes(bound)} in the base order, whatever is paged); largest step: {who}. "
        "Ask for more bytes, time or energy, or give options=Options(effort=10).",
        asked=limits.bytes[0],
        smallest_found=least,
        lower_bound=bound,
        op=who,
    )
