"""POET: optimal joint recomputation and paging as a mixed-integer program.

Idea        Stage t ends with the first run of op t. R[t,u] = op u runs again in stage t; In[t,s] =
            storage s is paged in in stage t, right before the first op there that may read it;
            Out[s] = s is paged out, once; K[t,s] = s is held in tier 0 from stage t-1 into stage t;
            FREE[t,s,k] = s is released right after op k. U follows the bytes through each stage.
Source      Patil et al., POET (ICML 2022), on Checkmate's program (MLSys 2020). Changed: paged-in
            bytes are charged from the moment of the page-in and not a stage later; paging takes time;
            one Out per storage instead of one per stage, because a copy stays valid once it is made.
Guarantee   The least energy (or time) of all sets of re-runs and page-ins within the limits, when
            HiGHS closes the program; the best set known otherwise, with a bound.
Complexity  O(n^2 + n m) columns and rows; practical up to about 100 ops
Gaps        The processor copies by itself (no copy engine). A page-in that the chosen ops would
            allow later in its stage is charged from the first op that might have read it; the slower
            tier is charged as if every copy stayed from the first op to the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tightrope.core import Graph, Limits, Machine, OpId, Schedule, StepIndex, StorageId, TightropeError
from tightrope.native.solvers.paging import PagingGoal, PagingTables
from tightrope.plan.assemble import assemble
from tightrope.plan.engine import live_limit
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.paging.model import PagedSet, need_slower_tier, tables, tier_limit
from tightrope.plan.paging.schedule import Page
from tightrope.plan.paging.search import Objective, paged_schedule
from tightrope_planners.peers.milp import MixedIntegerProgram
from tightrope_planners.peers.recovery import last_useful, recovery

_SCALE = 10_000.0
"""Limits in units of the program: HiGHS' tolerance of 1e-6 is then one part in 10^10."""
At: TypeAlias = dict[tuple[StepIndex, StorageId], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoetKnobs:
    """Knobs of the program.

    Attributes:
        objective: what is minimised.
        seconds: of the solver; None = until the node limit.
        nodes: of the branch-and-bound tree.
        max_columns: above it the program is refused.
        recompute: whether ops may run again.
        paging: whether storages may be paged.
        below: only sets with at most this objective (joules, or ns) are asked for, which is often far
            quicker to refute than an optimum is to prove; None = all.
        given: storages that are in the slower tier before the step, each made by an op that stands for
            its first read: they are paged in wherever they are read, and never out.
        in_place: op -> the input over which it may write its result where that ends there, which POET's
            program does not know: gives a bound alone, without a set.
    """

    objective: Objective = "joules"
    seconds: float | None = None
    nodes: int = 20_000
    max_columns: int = 250_000
    recompute: bool = True
    paging: bool = True
    below: float | None = None
    given: frozenset[StorageId] = frozenset()
    in_place: Mapping[OpId, StorageId] | None = None


@dataclass(frozen=True, slots=True)
class PoetAnswer:
    """What the program says.

    Attributes:
        chosen: the best set, None where none is known.
        proved: whether ``chosen`` is optimal, or, without one, that no set fits (below what was asked).
        bound: no set has a smaller objective (joules, or ns), infinite where no set fits.
    """

    chosen: PagedSet | None
    proved: bool
    bound: float


def poet(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Solve POET's program for energy where the machine tells its power, else for time.

    Returns:
        The cheapest schedule; the base schedule where none fits.

    Raises:
        TightropeError: no slower tier, copy engines, a graph too large, or HiGHS failed.
    """
    machine = need_slower_tier(machine)
    watch = options.watch
    knobs = PoetKnobs(
        objective="joules" if machine.watts else "seconds",
        seconds=None if watch.seconds is None else max(0.1, watch.seconds - watch.elapsed),
        nodes=max(1, int(20_000 * options.effort)),
    )
    answer = solve_poet(graph, machine, limits, knobs=knobs, options=options)
    return paged_schedule(graph, machine, answer.chosen or PagedSet())


def solve_poet(
    graph: Graph,
    machine: Machine,
    limits: Limits,
    *,
    knobs: PoetKnobs | None = None,
    options: Options | None = None,
) -> PoetAnswer:
    """Find the cheapest set of re-runs and page-ins whose live bytes fit.

    Args:
        graph: one training step.
        machine: whose processor makes the copies itself (``engines = 0``).
        limits: bytes per tier (everything, as in a budget), seconds, joules.
        knobs: objective, effort, switches.
        options: seed.

    Raises:
        TightropeError: no slower tier, copy engines, a graph too large, or HiGHS failed.
    """
    knobs, options = knobs or PoetKnobs(), options or Options()
    if need_slower_tier(machine).tiers[1].engines:
        raise TightropeError(
            f"POET's program has no copy engines, and machine {machine.name!r} has "
            f'{machine.tiers[1].engines}: use planner="paging".'
        )
    facts = tables(graph, machine)
    goal = PagingGoal(
        live_limit(graph, limits),
        tier_limit(machine, limits.bytes),
        None if limits.seconds is None else int(limits.seconds * 1e9),
        limits.joules,
        knobs.objective == "joules",
        knobs.recompute,
        knobs.paging,
    )
    asked = goal
    while True:
        program = _PoetStages(build(graph), facts, asked, knobs)
        answer = program.program.solve(seconds=knobs.seconds, nodes=knobs.nodes, seed=options.seed)
        bound = program.fixed + answer.bound * program.unit
        if not answer.values or knobs.in_place is not None:
            return PoetAnswer(None, answer.status in ("infeasible", "optimal"), bound)
        chosen = program.chosen(answer.values)
        schedule = paged_schedule(graph, machine, chosen)
        over = (
            assemble(graph, schedule, budget=None, machine=machine, placed=False).forecast.arena - goal.limit
        )
        if over <= 0:
            return PoetAnswer(chosen, answer.status == "optimal", bound)
        asked = replace(asked, limit=asked.limit - over)  # what the solver's tolerance passed over


class _PoetStages:
    """The program of one graph and goal, and where its columns are.

    Attributes:
        fixed: objective of running every op once.
        unit: objective per unit of the program.
    """

    def __init__(self, model: Model, facts: PagingTables, goal: PagingGoal, knobs: PoetKnobs) -> None:
        self.model, self.facts, self.goal, self.knobs = model, facts, goal, knobs
        self.program = MixedIntegerProgram()
        self.wanted = recovery(model).wanted
        self.byte = _SCALE / max(goal.limit, 1)
        per_ns = facts.watts * 1e-9 if goal.by_joules else 1.0
        self.fixed = per_ns * sum(op[2] for op in facts.ops)
        self.unit = max(self.fixed / _SCALE, 1e-30)
        self.run: dict[Pair, int] = {}
        self.keep: At = {}
        self.page: At = {}
        self.out: dict[StorageId, int] = {}
        self.readers: list[list[OpId]] = [[] for _ in model.producer]
        for op, reads in enumerate(model.again_reads):
            for storage in reads:
                self.readers[storage].append(op)
        self._columns(per_ns)
        for stage in range(len(model.need)):
            self._dependencies(stage)
            self._memory(stage)
        self._limits()

    def chosen(self, values: Sequence[float]) -> PagedSet:
        pairs = tuple(pair for pair, column in self.run.items() if values[column] > 0.5)
        return PagedSet(pairs, tuple(Page(*at) for at, column in self.page.items() if values[column] > 0.5))

    def _columns(self, per_ns: float) -> None:
        model, facts, add = self.model, self.facts, self.program.column
        for op in range(len(model.need) if self.knobs.recompute else 0):
            for stage in range(model.window[op][0], last_useful(model, op, self.wanted) + 1):
                if not model.allowed((stage, op)):
                    continue
                self.run[stage, op] = add(per_ns * model.again_ns[op] / self.unit, upper=1, integer=True)
        for storage, op in enumerate(model.producer):
            if op < 0 or model.pinned[storage]:
                continue
            given, can_page = storage in self.knobs.given, bool(facts.storages[storage][7])
            (out_ns, in_ns), joules = self._copies(storage)
            out, into = joules if self.goal.by_joules else (out_ns, in_ns)
            can_page = given or (can_page and self.knobs.paging)
            if can_page:
                self.out[storage] = add(out / self.unit, upper=1, integer=True)
            for stage in range(op + 1, min(self.wanted[storage], len(model.need) - 1) + 1):
                self.keep[stage, storage] = add(upper=0 if given and stage == op + 1 else 1, integer=True)
                if can_page:
                    self.page[stage, storage] = add(into / self.unit, upper=1, integer=True)
        frees = sum(len(self.readers[storage]) + 1 for _, storage in self.keep)
        if self.program.num_columns + frees > self.knobs.max_columns:
            raise TightropeError(
                f"POET's program would have about {self.program.num_columns + frees} columns for these "
                f'{len(model.need)} ops; the limit is {self.knobs.max_columns}. Use planner="paging".'
            )

    def _copies(self, storage: StorageId) -> tuple[tuple[float, float], tuple[float, float]]:
        """Look up what a page-out and a page-in take, in ns and in joules."""
        _, _, out_ns, in_ns, *_ = self.facts.storages[storage]
        out, into = self.facts.joules[storage]
        paid = storage not in self.knobs.given
        return (float(out_ns * paid), float(in_ns)), (out * paid, into)

    def _candidates(self, stage: StepIndex) -> list[OpId]:
        return [op for op in range(stage) if (stage, op) in self.run]

    def _sources(self, stage: StepIndex, storage: StorageId) -> list[tuple[int, float]]:
        """List the columns, with -1, of which one must be 1 for a storage to be there in a stage."""
        found = [at[stage, storage] for at in (self.keep, self.page) if (stage, storage) in at]
        op = self.model.producer[storage]
        if (stage, op) in self.run and storage in self.model.again_creates[op]:
            found.append(self.run[stage, op])
        return [(column, -1.0) for column in found]

    def _dependencies(self, stage: StepIndex) -> None:
        """What is read, or held on, has a source; no source is used beside another."""
        model, row = self.model, self.program.row
        for op in self._candidates(stage):
            for storage in model.again_reads[op]:
                if not model.pinned[storage]:
                    row([(self.run[stage, op], 1), *self._sources(stage, storage)], upper=0)
        for storage in model.reads[stage]:
            if not model.pinned[storage]:
                row(self._sources(stage, storage), upper=-1)
        for (when, storage), column in self.keep.items():
            if when != stage:
                continue
            if stage > model.producer[storage] + 1:
                row([(column, 1), *self._sources(stage - 1, storage)], upper=0)
            row([(source, 1) for source, _ in self._sources(stage, storage)], upper=1)
            if (stage, storage) in self.page:
                row([(self.page[stage, storage], 1), (self.out[storage], -1)], upper=0)

    def _memory(self, stage: StepIndex) -> None:
        """Follow the bytes held through the ops of a stage."""
        model, program = self.model, self.program
        room = _SCALE - model.lasting(stage) * self.byte
        held = program.column()
        start = [(c, -model.size[s] * self.byte) for (t, s), c in self.keep.items() if t == stage]
        program.row([(held, 1), *start], lower=0, upper=0)
        candidates = self._candidates(stage)
        arriving = {s for t, s in self.page if t == stage}
        for op in candidates:
            held = self._arrive(stage, held, arriving.intersection(model.again_reads[op]))
            arriving.difference_update(model.again_reads[op])
            run = self.run[stage, op]
            frees = self._frees(stage, op, candidates)
            over = [
                (free, -size) for storage, free, size in frees if storage == self._over(model.again_over[op])
            ]
            program.row([(held, 1), (run, model.again_need[op] * self.byte), *over], upper=room)
            after = program.column()
            made = sum(model.size[s] for s in model.again_creates[op]) * self.byte
            given_back = [(free, size) for _, free, size in frees]
            program.row([(after, 1.0), (held, -1.0), (run, -made), *given_back], lower=0, upper=0)
            held = after
        held = self._arrive(stage, held, arriving)
        need = [(held, 1.0), *self._written(stage)]
        program.row(need, upper=room - model.need[stage] * self.byte)

    def _over(self, op: OpId) -> StorageId:
        """The input over which an op may write its result, -1 for none."""
        return (self.knobs.in_place or {}).get(op, -1)

    def _written(self, stage: StepIndex) -> list[tuple[int, float]]:
        """Add the column that says that a first run writes over an input, which then does not go on."""
        storage = self._over(stage)
        if storage < 0:
            return []
        over = self.program.column(upper=1, integer=True)
        if (stage + 1, storage) in self.keep:
            self.program.row([(over, 1), (self.keep[stage + 1, storage], 1)], upper=1)
        return [(over, -self.model.size[storage] * self.byte)]

    def _arrive(self, stage: StepIndex, held: int, storages: set[StorageId]) -> int:
        """Add the bytes of what may be paged in here; the page-in itself must fit, too, and so does."""
        if not storages:
            return held
        after = self.program.column()
        terms = [(self.page[stage, s], -self.model.size[s] * self.byte) for s in sorted(storages)]
        self.program.row([(after, 1.0), (held, -1.0), *terms], lower=0, upper=0)
        return after

    def _frees(
        self, stage: StepIndex, op: OpId, candidates: list[OpId]
    ) -> list[tuple[StorageId, int, float]]:
        """Add the columns FREE of one op of a stage, with the bytes that each gives back."""
        model, row = self.model, self.program.row
        terms = []
        for storage in (*(s for s in model.again_reads[op] if not model.pinned[s]), *model.again_creates[op]):
            if model.size[storage] == 0 or storage in model.reads[stage]:
                continue
            free = self.program.column(upper=1, integer=True)
            row([(free, 1), (self.run[stage, op], -1)], upper=0)
            hazards = [self.run[stage, k] for k in candidates if k > op and k in self.readers[storage]]
            if (stage + 1, storage) in self.keep:
                hazards.append(self.keep[stage + 1, storage])
            for hazard in hazards:
                row([(free, 1), (hazard, 1)], upper=1)
            terms.append((storage, free, model.size[storage] * self.byte))
        return terms

    def _limits(self) -> None:
        """Time, energy and the slower tier."""
        facts, goal = self.facts, self.goal
        rows = [row[1] for row in facts.storages]
        held = [(column, float(rows[s])) for s, column in self.out.items()]
        self._most(held, float(goal.tier_limit))
        ns = [(column, float(facts.ops[op][3])) for (_, op), column in self.run.items()]
        ns += [(column, float(facts.storages[s][3])) for (_, s), column in self.page.items()]
        ns += [(column, self._copies(s)[0][0]) for s, column in self.out.items()]
        once = sum(op[2] for op in facts.ops)
        if goal.ns is not None:
            self._most(ns, float(goal.ns - once))
        watts = facts.watts * 1e-9
        joules = [(column, watts * facts.ops[op][3]) for (_, op), column in self.run.items()]
        joules += [(column, facts.joules[s][1]) for (_, s), column in self.page.items()]
        joules += [(column, self._copies(s)[1][0]) for s, column in self.out.items()]
        if goal.joules is not None:
            self._most(joules, goal.joules - watts * once)
        if self.knobs.below is not None:
            self._most(joules if goal.by_joules else ns, self.knobs.below - self.fixed)

    def _most(self, terms: list[tuple[int, float]], limit: float) -> None:
        """Add ``sum <= limit`` unless it holds anyway, scaled to the limit."""
        if sum(value for _, value in terms) <= limit:
            return
        unit = _SCALE / max(abs(limit), 1e-12) if limit else 1.0
        self.program.row([(column, value * unit) for column, value in terms], upper=limit * unit)
