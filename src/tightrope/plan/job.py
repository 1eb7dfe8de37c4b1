"""One search: ask a planner, place, move its target until the arena fits closely."""

from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from tightrope.core import Bytes, Graph, Limits, Machine, Plan, Step
from tightrope.core.plugins import absent, installed, loaded
from tightrope.plan.anneal import shrink
from tightrope.plan.assemble import assemble
from tightrope.plan.bound import lower_bound
from tightrope.plan.bound.certify import certify, closer
from tightrope.plan.bound.cover import TimeBound, time_bound
from tightrope.plan.cache import with_budget
from tightrope.plan.cut import cut
from tightrope.plan.engine import live_limit, made_by
from tightrope.plan.model import Pair, pairs_of
from tightrope.plan.options import Options, Ordering, Watch
from tightrope.plan.reasons import reasons
from tightrope.plan.registry import PLANNERS, members
from tightrope.plan.schedule import expand, restore, useful

_ROUNDS: Final = {"given": 1, "greedy": 3, "anneal": 6}
"""Searches and placements per planner: the greedy only has to bring a first plan early."""

_PATIENT_ROUNDS: Final = 8
"""In a graph of more ops than a few: lower targets cost less than the plan with the fewest bytes."""

_THOROUGH: Final = 4.0
"""Times the effort of a placement, for the addresses of a plan that uses the whole budget and just misses."""
_CLOSE: Final = 40
"""Only where less than this part of the arena is missing: no larger miss was made up."""

_OTHERS: Final = 2
"""Searches with other seeds for a plan that is known to exist, but whose addresses do not fit."""
_CUTS: Final = 3
"""Plans asked for with room left where the addresses of a faster plan missed."""

_MANY_OPS: Final = 400
"""Larger graphs are searched in full once, and from there when the target moves."""
_FEW_OPS: Final = 200
_PLACED_OPS: Final = 2_000
"""Of a graph of more ops, only the set with the smallest peak gets addresses."""
_ROUGH_OPS: Final = 300
"""A placed graph of more ops is searched roughly until it is known which bytes its addresses take."""
_ROUGH, _POLISH, _CAPPED_OPS = 40, 100, 1_500
"""Share of the moves of a rough search and of the last one, times ops; beyond so many ops it stays."""
_POLISHES: Final = 2
_LEAST_GAIN: Final = 300
"""A search for less than this part of the time of a step of more ops than that is not worth its own."""


class Job:
    """One search: what was asked, and what is known.

    Attributes:
        best: fastest plan that fits, placed.
        unplaced: pairs whose live bytes fit the whole budget, though their arena may not.
        fits: largest target for which annealing gave a plan that fits, placed; 0 = none.
        least: the plan with the fewest bytes, once it was looked for.
        placed: whether allocations get addresses; without, the budget counts live bytes.
        bound: on the time of every plan within the budget, once it was derived.
        asked: the graph asked for; ``graph`` holds its ops in the order that is planned in.
        ordering: op of ``asked`` at each position of ``graph``, None = the base order.
    """

    def __init__(
        self,
        graph: Graph,
        budget: Bytes,
        machine: Machine | None,
        options: Options,
        *,
        placed: bool = True,
    ) -> None:
        self.graph, self.budget, self.machine, self.options = graph, budget, machine, options
        self.placed = placed
        self.asked = graph
        self.ordering: Ordering | None = None
        self.bound: TimeBound | None = None
        self.watch = options.watch
        self.best: Plan | None = None
        self.unplaced: tuple[Pair, ...] = ()
        self.fits: Bytes = 0
        self.least: Plan | None = None
        self._assembled: dict[tuple[Ordering | None, tuple[Step, ...]], Plan] = {}

    @property
    def done(self) -> bool:
        """Whether nothing is to be gained: the plan is as fast as can be, or fast enough, or time is up."""
        extra = self.bound.extra_ns if self.bound is not None else 0
        least = self.graph.base_ns + max(extra, self.options.enough_ns)
        return self.watch.over or (self.best is not None and self.best.forecast.ns <= least)

    def prove(self) -> None:
        """Derive the bound on time, so that a plan that reaches it ends the search."""
        if self.options.bound and self.bound is None and not self.done:
            free, most = self.options.order == "free", None if self.options.bound is True else 0
            upper = None if self.best is None else self.best.forecast.ns - self.graph.base_ns
            self.bound = time_bound(
                self.asked, budget=self.budget, free_order=free, nodes=most, upper_ns=upper
            )

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
        num_ops, asked, annealing = len(self.graph.ops), options, planner == "anneal"
        patient, rough = (self.placed and annealing and num_ops > least for least in (_FEW_OPS, _ROUGH_OPS))
        if rough:
            options = replace(options, effort=options.effort * _share(_ROUGH, num_ops), restarts=1)
        missed: Plan | None = None
        for _ in range(_PATIENT_ROUNDS if patient else _ROUNDS.get(planner, 6)):
            plan = self._attempt(planner, options, target)
            self.consider(plan)
            missed = plan if self._faster(plan) and (missed is None or _quicker(plan, missed)) else missed
            over = plan.forecast.total - self.budget
            unreached = over > 0 and _live(plan) > target
            if target == self.budget and (planner == "anneal" or not self.unplaced):
                self.unplaced = pairs_of(self.graph, plan.schedule)
                nothing = self.best is None and not patient
                if annealing and over > 0 and (nothing or self.least is not None):
                    low = self._fall_back()
                if unreached:
                    start = self._near(target, plan)
                    if not low or start == options.start:
                        break
                    self.unplaced, options = start, replace(options, start=start)
                    continue
            if over <= 0 or unreached:
                low = max(low, target)
                self.fits = low if planner == "anneal" and over <= 0 else self.fits
            else:
                misses = min(misses, target)
            closed = misses > self.budget or misses - low <= self.budget // 500
            if missed is not None and len(self.graph.ops) > _FEW_OPS:
                closed = closed or not self._faster(missed)
            if self.done or closed or (planner == "greedy" and over <= 0):
                break
            lower = over if patient or planner == "greedy" else over // 2
            target = (low + misses) // 2 if low else target - max(lower, 64)
            start = self._near(target, plan)
            options = replace(_later(options, len(self.graph.ops)), start=start, seed=options.seed + 101)
            if self.least is not None:  # annealing from nothing costs as much again and gained 0 to 6 %
                options = replace(options, fresh=False)
            if target <= self.graph.persistent:
                break
        if planner == "anneal" and missed is not None and self._faster(missed) and not self.done:
            options = _later(options, len(self.graph.ops))
            self._cut(options, missed)
            self._other_seeds(options, missed)
        if rough:
            self._polish(asked)

    def _polish(self, options: Options) -> None:
        """Search longer from the best plan, at the bytes that it holds: its addresses leave little room."""
        effort = options.effort * _share(_POLISH, len(self.graph.ops))
        near = replace(options, layers=False, fresh=False, effort=effort, restarts=1)
        for number in range(_POLISHES):
            if self.best is not None and not self.done:
                start = pairs_of(self.graph, self.best.schedule)
                near = replace(near, start=start, seed=options.seed + 307 * (number + 1))
                self.consider(self._attempt("anneal", near, max(_live(self.best), self.fits)))

    def _attempt(self, planner: str, options: Options, target: Bytes, graph: Graph | None = None) -> Plan:
        limits = Limits(bytes=(target,))
        schedule = PLANNERS[planner](
            graph or self.graph, self.machine, limits, replace(options, order="given")
        )
        key = self.ordering, schedule.steps
        if key not in self._assembled:
            assembled = partial(
                assemble,
                self.graph,
                schedule,
                budget=self.budget,
                machine=self.machine,
                planner=made_by(planner),
                seed=self.options.seed,
                placed=self.placed,
            )
            plan = assembled()
            close = plan.forecast.total - self.budget <= plan.forecast.arena // _CLOSE
            if target == self.budget and graph is None and close and self._faster(plan):
                plan = min(plan, assembled(effort=_THOROUGH), key=lambda plan: plan.forecast.total)
            self._assembled[key] = plan
        return self._assembled[key]

    def lowest(self, graph: Graph | None = None) -> Plan:
        """Search for the plan with the fewest bytes, in as much time as was given for all."""
        watch = Watch(seconds=self.watch.seconds, budget=self.budget, progress=self.watch.progress)
        options = Options(seed=self.options.seed, watch=watch)
        return smallest_plan(graph or self.graph, self.machine, options, placed=self.placed)

    def _fall_back(self) -> Bytes:
        """Take the plan with the fewest bytes where it fits; returns what it holds at once, 0 = too much."""
        self.least = self.least or self.lowest()
        self.consider(self.least)
        return _live(self.least) if self.least.forecast.total <= self.budget else 0

    def _near(self, target: Bytes, plan: Plan) -> tuple[Pair, ...]:
        """Find pairs to begin from: those of the fastest plan known that holds at most the target."""
        known = [p for p in (plan, self.best, self.least) if p is not None and _live(p) <= target]
        return pairs_of(self.graph, min(known, key=lambda p: p.forecast.ns, default=plan).schedule)

    def _faster(self, plan: Plan) -> bool:
        """Whether live bytes fit and addresses do not, in a plan that is worth making fit."""
        over = plan.forecast.total > self.budget >= _live(plan)
        if self.best is None or not over:
            return over
        gain = self.best.forecast.ns - plan.forecast.ns
        return gain > (self.best.forecast.ns // _LEAST_GAIN if len(self.graph.ops) > _FEW_OPS else 0)

    def _cut(self, options: Options, plan: Plan) -> None:
        """Ask again near a plan whose addresses miss, with room left where they do."""
        reserved: Graph = self.graph
        for _ in range(_CUTS):
            spare = self.budget - plan.forecast.total + plan.forecast.arena
            found = cut(self.graph, plan.schedule, capacity=spare, reserved=reserved)
            if found is None or self.done:
                break
            reserved = found
            near = replace(options, start=pairs_of(self.graph, plan.schedule), seed=options.seed + 101)
            before, plan = plan, self._attempt("anneal", near, self.budget, reserved)
            self.consider(plan)
            if not self._faster(plan) or plan.forecast.total >= before.forecast.total:
                break

    def _other_seeds(self, options: Options, missed: Plan) -> None:
        """Where nothing fits, look for plans of about the same time: another search holds other storages."""
        if self.best is not None or len(self.graph.ops) > _MANY_OPS:
            return
        for number in range(_OTHERS):
            if self.done or not self._faster(missed):
                break
            seed = options.seed + 211 * (number + 1)
            self.consider(
                self._attempt("anneal", replace(options, start=(), seed=seed, fresh=True), self.budget)
            )

    def run(self, planner: str) -> None:
        """Run a planner or the portfolio, then search on with more effort while time is left."""
        options = self.options
        try:
            for name in members(planner):
                if name == "anneal":
                    self.prove()
                if not self.done or self.best is None:
                    self.rounds(name, options)
            while self.watch.seconds is not None and not self.done and "anneal" in members(planner):
                options = replace(options, effort=options.effort * 2, seed=options.seed + 7919)
                self.rounds("anneal", options)
            self.watch.tell("searched", last=True)
        except KeyboardInterrupt:
            self.watch.interrupted = True
        if self.watch.interrupted and self.best is None:
            raise KeyboardInterrupt

    def free_order(self) -> None:
        """Find the order of first runs to plan in, with recomputations to begin from.

        An entry point ``free`` of the group ``tightrope.orders`` is given the graph, the limit on live bytes
        and the options. It returns a reordered ``graph``, its ``ordering``, ``pairs`` and their ``state``.

        Raises:
            TightropeError: nothing is installed that searches orders.
        """
        entries = installed("tightrope.orders").get("free", ())
        if not entries:
            raise absent("order='free'", "planners")
        limit = live_limit(self.asked, Limits(bytes=(self.budget,)))
        choice = loaded("the search of orders", entries)(self.asked, limit, self.options)
        self.graph, self.ordering = choice.graph, choice.ordering
        self.unplaced = choice.pairs if choice.state.excess == 0 else ()

    def proved(self) -> Plan:
        """Give the best plan its reasons and its certificate, in terms of the graph asked for."""
        assert self.best is not None
        plan = msgspec.structs.replace(self.best, reasons=reasons(self.graph, self.best, self.machine))
        if self.ordering is not None:
            plan = _restored(self.asked, plan, self.ordering)
        if not self.options.bound or (self.options.bound == "quick" and self.bound is None):
            return plan
        if self.options.bound is True and self.bound is not None and not self.watch.interrupted:
            self.bound = closer(self.asked, plan, self.bound, order=self.options.order)
        return certify(self.asked, plan, order=self.options.order, bound=self.bound)


def smallest_plan(graph: Graph, machine: Machine | None, options: Options, *, placed: bool = True) -> Plan:
    """Find the plan with the fewest bytes that the search reaches; its budget is its own total."""
    plans: list[Plan] = []
    sets = ((), *shrink(graph, options))
    for pairs in sets[-1:] if len(graph.ops) > _PLACED_OPS else sets:
        name = made_by("anneal" if pairs else "given")
        schedule = expand(graph, useful(graph, pairs))
        plans.append(
            assemble(
                graph,
                schedule,
                budget=None,
                machine=machine,
                planner=name,
                seed=options.seed,
                placed=placed,
            )
        )
    best = min(plans, key=lambda plan: (plan.forecast.total, plan.forecast.ns))
    if len(graph.ops) <= _FEW_OPS:
        job = Job(graph, best.forecast.total, machine, options, placed=placed)
        job.consider(best)
        if not job.done:
            job.rounds("anneal", options)
        assert job.best is not None
        best = job.best
    return with_budget(best, best.forecast.total)


def _live(plan: Plan) -> Bytes:
    """Bytes that a plan holds at once; addresses may take more."""
    return plan.forecast.persistent + plan.forecast.peak


def _quicker(plan: Plan, other: Plan) -> bool:
    return plan.forecast.ns < other.forecast.ns


def _share(per_op: int, num_ops: int) -> float:
    return min(1.0, per_op / min(num_ops, _CAPPED_OPS))


def _later(options: Options, num_ops: int) -> Options:
    """Search less at the next target: the start is close to an answer, and the more so in large graphs."""
    if not options.layers:
        return options
    share = min(1.0, _MANY_OPS / num_ops)
    fresh = options.fresh and share == 1.0
    return replace(
        options, layers=False, fresh=fresh, restarts=min(2, options.restarts), effort=options.effort * share
    )


def _restored(graph: Graph, plan: Plan, ordering: Ordering) -> Plan:
    """Name the ops of a plan in another order as ``graph`` does; its byte bound then holds in any order."""
    least, witness = lower_bound(graph, free_order=True)
    certificate = msgspec.structs.replace(plan.certificate, lower_bound=least, witness=witness, order="free")
    return msgspec.structs.replace(
        plan,
        fingerprint=graph.fingerprint,
        schedule=restore(plan.schedule, ordering),
        certificate=certificate,
    )
