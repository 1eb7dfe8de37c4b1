"""Checkmate: optimal rematerialization as a mixed-integer program, and its LP rounding.

Idea        Stage t ends with the first run of op t. R[t,u] = op u runs again in stage t; S[t,s] =
            storage s is held from stage t-1 into stage t; FREE[t,s,k] = s is released right after op k.
            U follows the bytes held through the ops of a stage; at no op may they exceed the limit.
            The rounding solves the relaxation, keeps where S > 1/2, and runs what is missing.
Source      Jain et al., Checkmate (MLSys 2020), sections 4 and 5; R per op and S per storage so that
            ops may make several storages, and the bytes of an op include its temporaries
Guarantee   `checkmate`: the least time of all sets of pairs when HiGHS closes the program; the best
            set known otherwise. `checkmate_lp`: none; bytes may exceed the limit.
Complexity  O(n^2 + n m) columns and rows; practical up to about 100 ops.
Gaps        A search ended by its node limit returns what it has, without a statement of its gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tightrope.core import Bytes, Graph, Limits, Machine, OpId, Schedule, StepIndex, StorageId, TightropeError
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options, Watch
from tightrope.plan.schedule import expand, useful
from tightrope_planners.peers.milp import MixedIntegerProgram
from tightrope_planners.peers.recovery import last_useful, recovery

_SCALE = 10_000.0
"""The limit in units of the program: HiGHS' tolerance of 1e-6 is then one part in 10^10."""


@dataclass(frozen=True, slots=True)
class CheckmateKnobs:
    """Knobs of the program.

    Attributes:
        tight: one inequality per hazard of a FREE, instead of the paper's sum of hazards; the same
            integer points, a smaller relaxation.
        nodes: of the branch-and-bound tree.
        max_columns: above it the program is refused.
        allowance: share of the limit that the rounding leaves free, as in the paper.
    """

    tight: bool = True
    nodes: int = 20_000
    max_columns: int = 150_000
    allowance: float = 0.1


@dataclass(frozen=True, slots=True)
class CheckmateAnswer:
    """Pairs, whether they are proved to be the cheapest that fit, and a bound on the time of the re-runs."""

    pairs: tuple[Pair, ...]
    proved: bool
    ns_bound: float


def checkmate(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Solve Checkmate's program; return the cheapest schedule, the base schedule where none fits.

    Raises:
        TightropeError: the graph is too large for the program, or HiGHS failed.
    """
    del machine
    model = build(graph)
    knobs = CheckmateKnobs()
    knobs = replace(knobs, nodes=max(1, int(knobs.nodes * options.effort)))
    answer = checkmate_pairs(model, live_limit(graph, limits), knobs=knobs, options=options)
    return expand(graph, useful(graph, answer.pairs))


def checkmate_lp(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Round the relaxation of Checkmate's program; the schedule may exceed the limit.

    Raises:
        TightropeError: the graph is too large for the program, or HiGHS failed.
    """
    del machine
    model = build(graph)
    pairs = rounded_pairs(model, live_limit(graph, limits), options=options)
    return expand(graph, useful(graph, pairs))


def checkmate_pairs(
    model: Model, limit: Bytes, *, knobs: CheckmateKnobs | None = None, options: Options | None = None
) -> CheckmateAnswer:
    """Find the cheapest set of pairs whose live bytes fit ``limit``.

    Returns:
        No pairs and an infinite bound where no set fits (proved).

    Raises:
        TightropeError: the graph is too large for the program, or HiGHS failed.
    """
    knobs, options = knobs or CheckmateKnobs(), options or Options()
    solver = open_solver(model)
    asked = limit
    while True:
        stages = _CheckmateStages(model, asked, knobs)
        answer = stages.program.solve(seconds=_left(options.watch), nodes=knobs.nodes, seed=options.seed)
        pairs = stages.pairs(answer.values) if answer.values else ()
        solver.load(pairs)
        over = solver.state(limit).peak - limit
        if not answer.values or over <= 0:
            return CheckmateAnswer(pairs, answer.status != "limit", answer.bound * stages.ns_unit)
        asked -= over  # within the tolerance of the solver; ask again for what it passed over


def rounded_pairs(
    model: Model, limit: Bytes, *, knobs: CheckmateKnobs | None = None, options: Options | None = None
) -> tuple[Pair, ...]:
    """Round the relaxation to a set of pairs, which may exceed ``limit``."""
    knobs, options = knobs or CheckmateKnobs(), options or Options()
    for allowance in (knobs.allowance, 0.0):
        stages = _CheckmateStages(model, int(limit * (1 - allowance)), knobs)
        answer = stages.program.solve(relax=True, seconds=_left(options.watch), seed=options.seed)
        if answer.values:
            return stages.rounded(answer.values)
    return ()


def _left(watch: Watch) -> float | None:
    return None if watch.seconds is None else max(0.1, watch.seconds - watch.elapsed)


class _CheckmateStages:
    """The program of one model and limit, and where its columns are."""

    def __init__(self, model: Model, limit: Bytes, knobs: CheckmateKnobs) -> None:
        self.model, self.knobs, self.program = model, knobs, MixedIntegerProgram()
        self.wanted = recovery(model).wanted
        self.byte = _SCALE / max(limit, 1)
        self.ns_unit = max(1.0, sum(model.again_ns) / _SCALE)
        self.run: dict[Pair, int] = {}
        self.keep: dict[tuple[StepIndex, StorageId], int] = {}
        self.again: list[list[OpId]] = [[] for _ in model.need]
        self.held: list[list[StorageId]] = [[] for _ in (*model.need, None)]
        self.readers: list[list[OpId]] = [[] for _ in model.producer]
        for op, reads in enumerate(model.again_reads):
            for storage in reads:
                self.readers[storage].append(op)
        self._columns()
        for stage in range(len(model.need)):
            self._dependencies(stage)
            self._memory(stage)

    def pairs(self, values: Sequence[float]) -> tuple[Pair, ...]:
        return tuple(pair for pair, column in self.run.items() if values[column] > 0.5)

    def rounded(self, values: Sequence[float]) -> tuple[Pair, ...]:
        """Keep where S > 1/2; run what a kept storage or a run then misses, last op first."""
        kept = {key for key, column in self.keep.items() if values[column] > 0.5}
        runs: set[Pair] = set()
        for stage in range(len(self.model.need)):
            missing = {s for s in self.model.reads[stage] if (stage, s) not in kept}
            ahead = {s for s in self.held[stage + 1] if (stage + 1, s) in kept}
            missing |= {s for s in ahead if (stage, s) not in kept}
            for op in reversed(self.again[stage]):
                if missing.intersection(self.model.again_creates[op]):
                    runs.add((stage, op))
                    missing |= {s for s in self.model.again_reads[op] if (stage, s) not in kept}
        return tuple(sorted(runs))

    def _columns(self) -> None:
        model = self.model
        for op in range(len(model.need)):
            for stage in range(model.window[op][0], last_useful(model, op, self.wanted) + 1):
                if not model.allowed((stage, op)):
                    continue
                cost = model.again_ns[op] / self.ns_unit
                self.run[stage, op] = self.program.column(cost, upper=1, integer=True)
                self.again[stage].append(op)
        for storage, op in enumerate(model.producer):
            if op >= 0 and not model.pinned[storage]:
                for stage in range(op + 1, min(self.wanted[storage], len(model.need) - 1) + 1):
                    self.keep[stage, storage] = self.program.column(upper=1, integer=True)
                    self.held[stage].append(storage)
        self._refuse_if_large()

    def _refuse_if_large(self) -> None:
        frees = sum(len(self.readers[storage]) + 1 for _, storage in self.keep)
        total = self.program.num_columns + frees
        if total > self.knobs.max_columns:
            raise TightropeError(
                f"Checkmate's program would have about {total} columns for {len(self.model.need)} ops; the "
                f'limit is {self.knobs.max_columns}. Use planner="auto", or CheckmateKnobs(max_columns=...).'
            )

    def _dependencies(self, stage: StepIndex) -> None:
        """A run needs its inputs from before the stage or from the stage; what is held was there before."""
        model, program = self.model, self.program
        for op in self.again[stage]:
            for storage in model.again_reads[op]:
                if not model.pinned[storage]:
                    program.row([(self.run[stage, op], 1), *self._sources(stage, storage)], upper=0)
            for storage in model.again_creates[op]:
                if (stage, storage) in self.keep:
                    program.row([(self.run[stage, op], 1), (self.keep[stage, storage], 1)], upper=1)
        for storage in model.reads[stage]:
            if not model.pinned[storage]:
                program.row(self._sources(stage, storage), upper=-1)
        for storage in self.held[stage]:
            if stage > model.producer[storage] + 1:
                program.row([(self.keep[stage, storage], 1), *self._sources(stage - 1, storage)], upper=0)

    def _sources(self, stage: StepIndex, storage: StorageId) -> list[tuple[int, float]]:
        """List the columns, with -1, of which one must be 1 for a storage to be there in a stage."""
        terms = [(self.keep[stage, storage], -1.0)] if (stage, storage) in self.keep else []
        op = self.model.producer[storage]
        if (stage, op) in self.run and storage in self.model.again_creates[op]:
            terms.append((self.run[stage, op], -1.0))
        return terms

    def _memory(self, stage: StepIndex) -> None:
        """Follow the bytes held through the ops of a stage."""
        model, program = self.model, self.program
        room = _SCALE - model.lasting(stage) * self.byte
        held = program.column()
        start = [(self.keep[stage, s], -model.size[s] * self.byte) for s in self.held[stage]]
        program.row([(held, 1), *start], lower=0, upper=0)
        for op in self.again[stage]:
            run = self.run[stage, op]
            program.row([(held, 1), (run, model.again_need[op] * self.byte)], upper=room)
            after = program.column()
            made = sum(model.size[s] for s in model.again_creates[op]) * self.byte
            terms = [(after, 1.0), (held, -1.0), (run, -made), *self._frees(stage, op)]
            program.row(terms, lower=0, upper=0)
            held = after
        program.row([(held, 1)], upper=room - model.need[stage] * self.byte)

    def _frees(self, stage: StepIndex, op: OpId) -> list[tuple[int, float]]:
        """Add the columns FREE of one op of a stage, with the bytes that each gives back."""
        model = self.model
        touched = [s for s in model.again_reads[op] if not model.pinned[s]] + list(model.again_creates[op])
        terms = []
        for storage in touched:
            if model.size[storage] == 0 or storage in model.reads[stage]:
                continue
            hazards = [self.run[stage, k] for k in self.again[stage] if k > op and k in self.readers[storage]]
            if (stage + 1, storage) in self.keep:
                hazards.append(self.keep[stage + 1, storage])
            free = self.program.column(upper=1, integer=True)
            self._hazards(free, self.run[stage, op], hazards)
            terms.append((free, model.size[storage] * self.byte))
        return terms

    def _hazards(self, free: int, run: int, hazards: list[int]) -> None:
        """Allow FREE only where the op runs, nothing of the stage reads on, and nothing is held on."""
        if self.knobs.tight:
            self.program.row([(free, 1), (run, -1)], upper=0)
            for hazard in hazards:
                self.program.row([(free, 1), (hazard, 1)], upper=1)
        else:
            most = float(len(hazards) + 1)
            terms = [(free, most), (run, -1.0), *((hazard, 1.0) for hazard in hazards)]
            self.program.row(terms, upper=most - 1)
