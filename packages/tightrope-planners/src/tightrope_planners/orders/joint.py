"""Move first runs and re-runs at once, so that fewer re-runs are needed.

Idea        Take out one re-run. Every run that is left becomes an op of its own, which makes copies of
            its own and reads the copies that it reads now; the order of these runs is annealed for
            the fewest bytes over the limit. In the order of first runs found, the search of
            recomputations starts from the re-runs found and pays for what is still missing.
Source      alternating search over the joint problem of OLLA (Steiner et al., 2022) and Moccasin
Guarantee   Never slower than its start. Every order of runs keeps `precedences` and the windows.
Complexity  one order search over ops + re-runs, and a short search of recomputations, per re-run taken out
Gaps        Which copy a run reads is fixed during the order search. At most 64 re-runs.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tightrope.core import Bytes, Graph, OpId, StorageId
from tightrope.native.solvers.solver import State
from tightrope.plan.anneal import anneal_pairs
from tightrope.plan.engine import open_solver
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options, Ordering
from tightrope.plan.schedule import useful
from tightrope_planners.orders.precedence import precedences, reorder
from tightrope_planners.solvers.order import OrderSolver, OrderTables

_MOVES_PER_RUN: Final = 2_000
_HEAT: Final = 4.0
_MOST_PAIRS: Final = 64
_PATIENCE: Final = 12
"""Re-runs taken out in a row without gain before giving up."""
_EFFORT: Final = 0.3
_SLICE: Final = 100_000


@dataclass(frozen=True, slots=True)
class OrderedPairs:
    """An order of first runs with a set of recomputations.

    Attributes:
        ordering: op of the graph asked for at each position.
        graph: the ops in that order.
        pairs: recomputations, in terms of ``graph``.
        state: their time and bytes.
    """

    ordering: Ordering
    graph: Graph
    pairs: tuple[Pair, ...]
    state: State

    @property
    def rank(self) -> tuple[Bytes, int, Bytes]:
        """Bytes over the limit, then time, then peak."""
        return self.state.excess, self.state.ns, self.state.peak


def choose(graph: Graph, ordering: Ordering, limit: Bytes, options: Options) -> OrderedPairs:
    """Search recomputations in one order; ``options.start`` is in terms of that order."""
    moved = reorder(graph, ordering)
    model = build(moved)
    solver = open_solver(model)
    pairs = useful(moved, anneal_pairs(solver, model, limit, options))
    solver.load(pairs)
    return OrderedPairs(ordering, moved, pairs, solver.state(limit))


def refine(graph: Graph, start: OrderedPairs, limit: Bytes, options: Options) -> OrderedPairs:
    """Take out re-runs one at a time while moving the others and the first runs makes up for it.

    Args:
        graph: what ``start`` orders.
        start: an order with recomputations that fit; anything else is returned as it is.
        limit: bytes that the arena may hold.
        options: seed, effort and clock.
    """
    best, idle, rng = start, 0, Random(options.seed)
    for number in range(4 * _MOST_PAIRS):
        gone = best.state.excess > 0 or not 0 < len(best.pairs) <= _MOST_PAIRS
        if gone or idle > min(_PATIENCE, 2 * len(best.pairs)) or options.watch.over:
            break
        out = rng.choice(best.pairs)
        ordering, pairs = _rearrange(best, out, limit, replace(options, seed=options.seed * 1_009 + number))
        less = replace(options, start=pairs, restarts=1, effort=options.effort * _EFFORT)
        found = choose(graph, tuple(best.ordering[op] for op in ordering), limit, less)
        idle = 0 if (found.state.excess, found.state.ns) < (best.state.excess, best.state.ns) else idle + 1
        best = min(best, found, key=lambda choice: choice.rank)
    return best


def _rearrange(
    choice: OrderedPairs, out: Pair, limit: Bytes, options: Options
) -> tuple[Ordering, tuple[Pair, ...]]:
    """Anneal the order of all runs but one; return the order of first runs and the pairs found."""
    rest = tuple(pair for pair in choice.pairs if pair != out)
    runs = unroll(build(choice.graph), precedences(choice.graph), rest)
    solver, num_runs = OrderSolver(runs.tables), len(runs.base)
    solver.load(runs.sequence, limit)
    moves = int(_MOVES_PER_RUN * num_runs * options.effort)
    solver.begin(limit, seed=options.seed, iterations=moves, shrink=False, heat=_HEAT)
    try:
        while not options.watch.over and solver.run(_SLICE) > 0:
            options.watch.tell("moving runs")
    except KeyboardInterrupt:
        options.watch.interrupted = True
    return roll(runs, len(choice.graph.ops), solver.best())


@dataclass(frozen=True, slots=True)
class UnrolledRuns:
    """Every run as an op: first runs keep their numbers, re-runs follow.

    Attributes:
        tables: what the order search takes.
        base: op that each run runs.
        sequence: the runs in the order of the set.
    """

    tables: OrderTables
    base: tuple[OpId, ...]
    sequence: Ordering


def unroll(model: Model, before: tuple[tuple[OpId, ...], ...], pairs: tuple[Pair, ...]) -> UnrolledRuns:
    """Give every run of a set of pairs its own op and its own copies."""
    writer = _Writer(model, before)
    stages: dict[int, list[OpId]] = {}
    for stage, op in sorted(pairs):
        stages.setdefault(stage, []).append(op)
    for stage in range(len(model.need)):
        for op in stages.get(stage, ()):
            writer.rerun(op)
        writer.first_run(stage)
    return writer.runs()


def roll(runs: UnrolledRuns, num_ops: int, sequence: Ordering) -> tuple[Ordering, tuple[Pair, ...]]:
    """Read the order of first runs and the pairs, in terms of that order, from a sequence of runs."""
    ordering = tuple(run for run in sequence if run < num_ops)
    position = {op: at for at, op in enumerate(ordering)}
    pairs: set[Pair] = set()
    stage = 0
    for run in sequence:
        if run < num_ops:
            stage += 1
        elif stage < num_ops:
            pairs.add((stage, position[runs.base[run]]))
    return ordering, tuple(sorted(pairs))


class _Writer:
    """Rows of the order search while they are being written."""

    def __init__(self, model: Model, before: tuple[tuple[OpId, ...], ...]) -> None:
        self.model = model
        self.base: list[OpId] = list(range(len(model.need)))
        self.need = list(model.need)
        self.before = [set(earlier) for earlier in before]
        self.reads: list[list[StorageId]] = [[] for _ in model.need]
        self.storages = [
            (size, producer, int(end))
            for size, producer, end in zip(model.size, model.producer, model.at_end, strict=True)
        ]
        self.copy: list[StorageId] = list(range(len(model.producer)))
        self.latest: list[OpId] = list(range(len(model.need)))
        self.sequence: list[OpId] = []

    def first_run(self, op: OpId) -> None:
        self._read(op, self.model.reads[op])
        self.sequence.append(op)

    def rerun(self, op: OpId) -> None:
        model, run = self.model, len(self.base)
        self.base.append(op)
        self.need.append(model.again_need[op])
        self.before.append({self.latest[op]})
        self.reads.append([])
        self._read(run, model.again_reads[op])
        if (last := model.window[op][1]) < len(model.need) - 1:
            self.before[last].add(run)
        for storage in model.again_creates[op]:
            self.copy[storage] = len(self.storages)
            self.storages.append((model.size[storage], run, 0))
        self.latest[op] = run
        self.sequence.append(run)

    def runs(self) -> UnrolledRuns:
        before = tuple(tuple(sorted(earlier)) for earlier in self.before)
        tables = OrderTables(self.need, self.storages, self.reads, before)
        return UnrolledRuns(tables, tuple(self.base), tuple(self.sequence))

    def _read(self, run: OpId, storages: tuple[StorageId, ...]) -> None:
        for storage in storages:
            self.reads[run].append(self.copy[storage])
            self.before[run].add(self.storages[self.copy[storage]][1])
