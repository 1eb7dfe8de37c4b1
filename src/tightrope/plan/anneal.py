"""Simulated annealing, and ruin and recreate, over sets of recomputations.

Idea        Annealing begins from nothing. Moves: evict at an event over the limit (alone, or with the
            inputs that are gone), remove a pair, shift one to another stage, swap two, add a missing
            input. The objective is time + price * bytes over the limit; the price follows whether the
            current set fits. Ruin and recreate works on sets that fit: it takes out a few
            neighbouring pairs and fills the hole with what frees most bytes per nanosecond. Irregular
            graphs gain from the first, training graphs with many equal layers from the second, so
            each run does both, and the greedy set is a second start. A start that does not fit is
            filled up in the same way until it does.
Source      set representation after Moccasin (ICML 2023), whose retention it generalises; Schrimpf et
            al., Record Breaking Optimization Results Using the Ruin and Recreate Principle (2000)
Guarantee   Never worse than its start where that fits. Equal seeds and efforts give equal sets.
Complexity  1 to 3 microseconds per move at 250 to 1,000 ops, see ``native/solvers/solver_anneal.hpp``
Gaps        The order of first runs is fixed; no proof of optimality.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tightrope.core import Bytes, Graph, Limits, Machine, Nanoseconds, Schedule
from tightrope.native.solvers.solver import NUM_RULES, Mode, Solver
from tightrope.plan.bound import lower_bound
from tightrope.plan.engine import GreedySearch, live_limit, open_solver
from tightrope.plan.greedy import FAR_RULES, greedy_pairs
from tightrope.plan.layers import copy_pairs, find_layers, share, shorten
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options, Watch
from tightrope.plan.schedule import expand, useful
from tightrope.plan.second_pass import first_pass, played_twice

_HEAT = 1.0
"""Start temperature of annealing from nothing, in units of the mean time of a pair. 0.3 freezes too
early on 1,000 ops, 3 never recovers from the disorder."""
_REBUILD_HEATS = (1.0, 3.0, 0.3, 10.0)
"""Of ruin and recreate; tight budgets like the low ones, loose ones the high ones."""
_GAIN = 0.98
"""Ruin and recreate pays where it leaves at most this share of the time that it was given."""
_MOVES_PER_OP, _REBUILDS_PER_OP = 1_000, 2_000
_MOST_MOVES = 1_500_000
_MANY_OPS = 2_000
"""Graphs of more ops get no smallest plan from far back."""
_LARGE_OPS, _FEW_RESTARTS = 400, 2
"""Graphs of more ops get at most so many restarts, and only while annealing gains. Their smallest plans are
bisected from the proved floor, which finds other sets sooner, with moves as for so many ops."""
_NEAR: Final = 256
"""Peaks that differ by less than this part are not told apart by the greedy of large graphs."""
_SLICE = 20_000
"""Moves between two looks at the clock: about 30 ms."""


def anneal(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Search from ``options.start``, a greedy set and nothing; return the fastest schedule that fits."""
    del machine
    model = build(graph)
    solver = open_solver(model)
    limit, asked = live_limit(graph, limits), options
    if options.layers and isinstance(solver, Solver):
        options = _from_layers(graph, solver, limit, options)
    pairs = anneal_pairs(solver, model, limit, options)
    if asked.start and options is not asked:
        pairs = min(pairs, tuple(asked.start), key=lambda found: _rank(solver, found, limit))
    return expand(graph, useful(graph, pairs))


def _rank(solver: GreedySearch, pairs: tuple[Pair, ...], limit: Bytes) -> tuple[Bytes, Nanoseconds]:
    solver.load(pairs)
    state = solver.state(limit)
    return state.excess, state.ns


def _from_layers(graph: Graph, solver: Solver, limit: Bytes, options: Options) -> Options:
    """Where layers repeat, begin from what a few of them need, and spend the moves of those few."""
    layers = find_layers(graph)
    if layers is None:
        return options
    short = shorten(graph, layers)
    model = build(short.graph)
    small = open_solver(model)
    solver.load(())
    scaled = share(solver.state(limit).peak, small.state(limit).peak, limit, short)
    pairs = copy_pairs(
        short,
        anneal_pairs(
            small, model, scaled, replace(options, start=(), restarts=min(options.restarts, 2), enough_ns=0)
        ),
    )
    effort = options.effort * len(short.graph.ops) / len(graph.ops)
    return replace(options, start=pairs, restarts=1, fresh=False, effort=effort)


def anneal_pairs(solver: GreedySearch, model: Model, limit: Bytes, options: Options) -> tuple[Pair, ...]:
    """Find the fastest set that fits ``limit``; where none is found, a greedy one."""
    start = tuple(options.start) or greedy_pairs(solver, limit, options.watch)
    if not isinstance(solver, Solver):
        return start
    search = _PairSearch(solver, model, limit, options, start, annealing=options.fresh)
    search.consider(start)
    if not search.done:
        search.run()
    return start if search.best is None else search.best


@dataclass(slots=True)
class _PairSearch:
    """The best set that fits so far, and which ways of finding one are still worth their time.

    Attributes:
        annealing: whether annealing from nothing did no worse than the others when last tried.
        rebuilding: whether ruin and recreate improved anything, or is all there is.
    """

    solver: Solver
    model: Model
    limit: Bytes
    options: Options
    start: tuple[Pair, ...]
    best: tuple[Pair, ...] | None = None
    cost: Nanoseconds = 0
    annealing: bool = True
    rebuilding: bool = True

    @property
    def done(self) -> bool:
        """Whether nothing can be gained, or the time is up."""
        return self.options.watch.over or (self.best is not None and self.cost <= self.options.enough_ns)

    def consider(self, pairs: tuple[Pair, ...]) -> None:
        """Keep a set that fits and is faster than the best."""
        self.solver.load(pairs)
        cost = self.model.cost(pairs)
        if self.solver.state(self.limit).excess == 0 and (self.best is None or cost < self.cost):
            self.best, self.cost = pairs, cost

    def run(self) -> None:
        """Run cycles until the restarts are used up, or two in a row gain nothing.

        In a large graph, one whose annealing gained nothing is the last; where a known set is only to be
        improved, the first that ends in a set that fits.
        """
        idle, large = 0, len(self.model.need) > _LARGE_OPS
        restarts = self.options.restarts
        for restart in range(min(restarts, _FEW_RESTARTS) if large else restarts):
            before = (self.best is None, self.cost)
            annealed = self._cycle(restart)
            idle = 0 if (self.best is None, self.cost) != before else idle + 1
            enough = self.best is not None and ((large and not annealed) or not self.options.fresh)
            if self.done or enough or (restart > 0 and idle > 1):
                break

    def _cycle(self, restart: int) -> bool:
        """Rebuild the best set; anneal from nothing, rebuild that too, and tell whether the latter gained."""
        rebuilt = annealed = self.best
        if self.rebuilding:
            rebuilt = self._rebuild(self.start if self.best is None else self.best, restart)
        others = math.inf if self.best is None else self.cost
        if self.annealing and not self.done:
            annealed = self._run((), restart, _HEAT, Mode.ANNEAL)
            if annealed is not None and self.rebuilding and not self.done:
                rebuilt = self._rebuild(annealed, restart)
        if annealed is None:
            self.annealing, self.rebuilding = self.best is None, True
            return False
        gained = self.best == rebuilt and self.cost < _GAIN * self.model.cost(annealed)
        self.annealing = self.annealing and (self.cost < others or not gained)
        self.rebuilding = gained or not self.annealing
        return self.cost < others

    def _rebuild(self, start: tuple[Pair, ...], restart: int) -> tuple[Pair, ...] | None:
        return self._run(start, restart, _REBUILD_HEATS[restart % len(_REBUILD_HEATS)], Mode.REBUILD)

    def _run(self, start: tuple[Pair, ...], restart: int, heat: float, mode: Mode) -> tuple[Pair, ...] | None:
        options = self.options
        each = _REBUILDS_PER_OP if mode is Mode.REBUILD else _MOVES_PER_OP
        self.solver.load(start)
        self.solver.begin(
            self.limit,
            seed=_seed(options, restart),
            iterations=_moves(self.model, options, each),
            heat=heat,
            mode=mode,
        )
        _drain(self.solver, options.watch, f"searching, run {restart + 1} of {options.restarts}")
        found = self.solver.best()
        if found is not None and (self.best is None or self.model.cost(found) < self.cost):
            self.best, self.cost = found, self.model.cost(found)
        return found


def shrink(graph: Graph, options: Options) -> tuple[tuple[Pair, ...], ...]:
    """Find sets of pairs with small peaks, whatever their time.

    Bisects the limit of the greedy under every score and anneals the bytes from the best set. Then the
    same with a greedy that recomputes from far back, below what that reached; and where gradients are
    clipped by norm, with two passes. Where layers repeat, a few of them say which score is the best, and
    what is found for them is copied; in a graph of very many ops they are annealed only where a greedy over
    all layers finds nothing smaller than the copy, and all layers at one heat alone.

    Returns:
        The improvements found on the way, smallest peak last; empty when recomputing saves nothing.
    """
    return _shrunk(graph, options, from_far=len(graph.ops) <= _MANY_OPS).found


class _Shrunk(NamedTuple):
    """Sets with falling peaks, and the score of the greedy that gave the smallest; None = none did."""

    found: tuple[tuple[Pair, ...], ...]
    rule: int | None


def _shrunk(graph: Graph, options: Options, *, from_far: bool, anneal: bool = True) -> _Shrunk:
    model, many = build(graph), len(graph.ops) > _MANY_OPS
    solver = open_solver(model)
    floor, large = max(lower_bound(graph)[0] - graph.persistent, 0), len(graph.ops) > _LARGE_OPS
    few = _few_layers(graph, options, anneal=not many) if large else _Shrunk((), None)
    found: list[tuple[Pair, ...]] = []
    least: tuple[Pair, ...] = ()
    won: int | None = None
    if few.found and _peak(solver, few.found[0]) < _peak(solver, ()):
        found, least = [*few.found], few.found[0]
        if _peak(solver, least) - floor <= floor // _NEAR:
            return _Shrunk(tuple(found), few.rule)
    for far, heats in ((False, (0.3, 3.0)), (True, (0.3,))):
        if far and not from_far:
            break
        rules = range(FAR_RULES if far else NUM_RULES) if few.rule is None else (few.rule,)
        pairs, rule = _lowest_greedy(
            solver, least, floor if far or large else 0, options.watch, far=far, rules=rules
        )
        if pairs == least and not (few.found and not far):
            continue
        if pairs == least and many:  # the copy is what is hard to improve: anneal the few layers after all
            few = _few_layers(graph, options, anneal=True)
            pairs = min((pairs, *few.found), key=lambda one: _peak(solver, one))
        won = won if rule is None else rule
        found += [pairs] if pairs != least else []
        least = pairs
        if not from_far and _peak(solver, least) - floor <= floor // _NEAR:
            break
        for restart, heat in enumerate(heats[: 1 if many else None] if anneal else ()):
            least = _annealed_bytes(solver, model, least, options, seed=restart, heat=heat)
            found += [least] if least != found[-1] else []
    return _Shrunk((*found, *_in_two_passes(graph, solver, model, least, options)), won)


def _few_layers(graph: Graph, options: Options, *, anneal: bool) -> _Shrunk:
    """Copy the smallest set of a few layers to all, where layers repeat; and say which score gave it."""
    layers = find_layers(graph)
    if layers is None:
        return _Shrunk((), None)
    short = shorten(graph, layers)
    small = _shrunk(short.graph, options, from_far=False, anneal=anneal)
    pairs = useful(graph, copy_pairs(short, small.found[-1])) if small.found else ()
    return _Shrunk((pairs,) if pairs else (), small.rule)


def _peak(solver: GreedySearch, pairs: tuple[Pair, ...]) -> Bytes:
    solver.load(pairs)
    return solver.state(0).peak


def _in_two_passes(
    graph: Graph, solver: GreedySearch, model: Model, known: tuple[Pair, ...], options: Options
) -> list[tuple[Pair, ...]]:
    """Find a set with a smaller peak than the known one, from a small plan of the first pass."""
    first = first_pass(graph)
    if first is None:
        return []
    once = shrink(first, options)
    pairs = useful(graph, played_twice(graph, model, once[-1] if once else ()))
    for restart, heat in enumerate((0.3, 3.0)):
        pairs = _annealed_bytes(solver, model, pairs, options, seed=restart, heat=heat)
    return [pairs] if _peak(solver, pairs) < _peak(solver, known) else []


def _annealed_bytes(
    solver: GreedySearch,
    model: Model,
    pairs: tuple[Pair, ...],
    options: Options,
    *,
    seed: int,
    heat: float,
) -> tuple[Pair, ...]:
    """Find a set with a smaller peak by annealing; else return the same."""
    if options.watch.over or not isinstance(solver, Solver):
        return pairs
    solver.load(pairs)
    peak, moves = solver.state(0).peak, min(_moves(model, options, _MOVES_PER_OP), _LARGE_OPS * _MOVES_PER_OP)
    solver.begin(peak, seed=_seed(options, seed), iterations=moves, heat=heat, mode=Mode.SHRINK)
    _drain(solver, options.watch, "looking for the smallest budget")
    return solver.best() or pairs


def _lowest_greedy(
    solver: GreedySearch,
    pairs: tuple[Pair, ...],
    floor: Bytes,
    watch: Watch,
    *,
    far: bool,
    rules: Iterable[int],
) -> tuple[tuple[Pair, ...], int | None]:
    """Find the greedy set with the smallest peak, if it is smaller than that of ``pairs``, and its score.

    Args:
        solver: of the graph.
        pairs: known.
        floor: bytes below which there is no set.
        watch: clock.
        far: recompute from far back; with the two rules that look at time and bytes, as that is slow.
        rules: scores to try.
    """
    best, part = _peak(solver, pairs), 64 if far else _NEAR
    won: int | None = None
    for rule in rules:
        low, high = floor, best
        while high - low > max(64, high // part) and not watch.over:
            middle = (low + high) // 2
            solver.greedy(middle, rule, far=far)
            peak = solver.state(0).peak
            if peak < best:
                best, pairs, won = peak, solver.pairs(), rule
            low, high = (low, min(middle, peak)) if peak <= middle else (middle, high)
            watch.tell("looking for the smallest budget")
    return pairs, won


def _moves(model: Model, options: Options, each: int) -> int:
    return int(min(each * len(model.need), _MOST_MOVES) * options.effort)


def _seed(options: Options, restart: int) -> int:
    return options.seed * 1_000_003 + restart


def _drain(solver: Solver, watch: Watch, message: str) -> None:
    """Run what was begun, in slices, until it ends, the time is up or the user interrupts."""
    try:
        while not watch.over and solver.run(_SLICE) > 0:
            watch.tell(message)
    except KeyboardInterrupt:
        watch.interrupted = True
