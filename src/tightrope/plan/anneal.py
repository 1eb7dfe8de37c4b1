"""Simulated annealing over sets of recomputations.

Idea        Start from a greedy set. Moves: evict at an event over the limit (alone, or with the
            inputs that are gone), remove a pair, shift one to another stage, swap two, add a missing
            input. The objective is time + weight * bytes over the limit; the weight follows whether
            the current set fits. Several runs, each with another heat, from the best set so far.
Source      moves and set representation after Moccasin (ICML 2023), whose retention they generalise
Guarantee   Never worse than its start where that fits. Equal seeds and efforts give equal sets.
Complexity  about 1-2 microseconds per move at 250 to 350 ops, see ``native/solver.cpp``
Gaps        The order of first runs is fixed; no proof of optimality.
"""

from tightrope.core import Bytes, Graph, Limits, Machine, Schedule
from tightrope.native.solver import NUM_RULES, Solver
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.fallback import PythonSolver
from tightrope.plan.greedy import greedy_pairs
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options, Watch
from tightrope.plan.schedule import expand, useful

_HEATS = (0.3, 30.0, 1.0, 10.0)
"""Start temperatures in units of the mean time of a pair: irregular graphs like the low ones, training
graphs with many equal layers the high ones."""
_MOVES_PER_OP, _MOST_MOVES = 1_000, 400_000
_SLICE = 20_000
"""Moves between two looks at the clock: about 30 ms."""


def anneal(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Anneal from ``options.start``, or from a greedy set; return the fastest schedule that fits."""
    del machine
    model = build(graph)
    solver = open_solver(model, native=options.native)
    limit = live_limit(graph, limits)
    best = tuple(options.start) or greedy_pairs(solver, limit, options.watch)
    if isinstance(solver, Solver):
        best = _anneal(solver, model, best, limit, options)
    return expand(graph, useful(graph, best))


def _anneal(
    solver: Solver, model: Model, best: tuple[Pair, ...], limit: Bytes, options: Options
) -> tuple[Pair, ...]:
    """Run the restarts, each from the best set so far, until nothing can be gained."""
    solver.load(best)
    cost, fits = model.cost(best), solver.state(limit).excess == 0
    for restart in range(options.restarts):
        if options.watch.over or (fits and cost == 0):
            break
        heat = _HEATS[restart % len(_HEATS)]
        solver.load(best)
        solver.begin(limit, seed=_seed(options, restart), iterations=_moves(model, options), heat=heat)
        _drain(solver, options.watch, f"annealing, run {restart + 1} of {options.restarts}")
        found = solver.best()
        if found is not None and (not fits or model.cost(found) < cost):
            best, cost, fits = found, model.cost(found), True
    return best


def shrink(graph: Graph, options: Options) -> tuple[tuple[Pair, ...], ...]:
    """Find sets of pairs with small peaks, whatever their time.

    Bisects the limit of the greedy under every score, then anneals the bytes from the best set.

    Returns:
        The improvements found on the way, smallest peak last; empty when recomputing saves nothing.
    """
    model = build(graph)
    solver = open_solver(model, native=options.native)
    peak, pairs = _lowest_greedy(solver, options.watch)
    found = [pairs] if pairs else []
    if not isinstance(solver, Solver):
        return tuple(found)
    for restart, heat in enumerate((0.3, 3.0)):
        if options.watch.over:
            break
        solver.load(pairs)
        seed, moves = _seed(options, restart), _moves(model, options)
        solver.begin(peak, seed=seed, iterations=moves, heat=heat, shrink=True)
        _drain(solver, options.watch, "looking for the smallest budget")
        best = solver.best()
        if best is not None and best != pairs:
            solver.load(best)
            pairs, peak = best, solver.state(0).peak
            found.append(pairs)
    return tuple(found)


def _lowest_greedy(solver: Solver | PythonSolver, watch: Watch) -> tuple[Bytes, tuple[Pair, ...]]:
    solver.load(())
    best, pairs = solver.state(0).peak, tuple[Pair, ...]()
    for rule in range(NUM_RULES):
        low, high = 0, best
        while high - low > max(64, high // 256) and not watch.over:
            middle = (low + high) // 2
            solver.greedy(middle, rule)
            peak = solver.state(0).peak
            if peak < best:
                best, pairs = peak, solver.pairs()
            low, high = (low, min(middle, peak)) if peak <= middle else (middle, high)
            watch.tell("looking for the smallest budget")
    return best, pairs


def _moves(model: Model, options: Options) -> int:
    return int(min(_MOVES_PER_OP * len(model.need), _MOST_MOVES) * options.effort)


def _seed(options: Options, restart: int) -> int:
    return options.seed * 1_000_003 + restart


def _drain(solver: Solver, watch: Watch, message: str) -> None:
    """Run what was begun, in slices, until it ends, the time is up or the user interrupts."""
    try:
        while not watch.over and solver.run(_SLICE):
            watch.tell(message)
    except KeyboardInterrupt:
        watch.interrupted = True
