"""Moccasin: rematerialization as a constraint program over retention intervals.

Idea        Op v runs at most C times. Run i starts in a slot and its storages are retained up to their
            ends; stage t has one slot for every op that may run in it, so the order of runs is the order
            of slots. Intervals with the bytes as heights are a cumulative resource; a reservoir per
            (read, run) says that some retention covers the slot of the reader. Phase 1 minimises the
            peak down to the limit from the plan without re-runs, phase 2 the time from there.
Source      Bartan et al., Moccasin (ICML 2023): intervals, C, staged slots, two phases; ends per
            storage and bytes per run, so that ops may make several storages and use temporaries
Guarantee   The least time of all sets of pairs with at most C runs of each op, when CP-SAT closes both
            phases; `polish` is never worse than the set that it begins from.
Complexity  O(C n) integers, O(C m) reservoirs over a horizon of O(n^2) slots; exact up to about 100 ops
Gaps        C is fixed beforehand; the effort is counted in CP-SAT's deterministic seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, Graph, Limits, Machine, Schedule, StepIndex
from tightrope.plan.engine import live_limit, open_solver
from tightrope.plan.greedy import greedy_pairs
from tightrope.plan.model import Model, Pair, build
from tightrope.plan.options import Options
from tightrope.plan.schedule import expand, useful
from tightrope_planners.peers.intervals import Intervals, Window
from tightrope_shared.cp import Worker


@dataclass(frozen=True, slots=True)
class MoccasinKnobs:
    """Knobs of the constraint program.

    Attributes:
        copies: the paper's C, runs of each op at most.
        effort: CP-SAT's deterministic seconds per phase.
        two_phases: without, the time is minimised at once, and there may be nothing to start from.
        window: stages of one polish; half of them are shared with the next.
        window_effort: deterministic seconds per window.
        rounds: walks of the polish over all windows.
    """

    copies: int = 2
    effort: float = 30.0
    two_phases: bool = True
    window: int = 24
    window_effort: float = 1.0
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class MoccasinAnswer:
    """Pairs, their peak, whether they are proved cheapest for this C, and a bound on their time.

    ``peak`` above the limit: nothing fits; ``proved`` then says that nothing with this C can.
    """

    pairs: tuple[Pair, ...]
    peak: Bytes
    proved: bool
    ns_bound: int


def moccasin(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Solve Moccasin's two phases; return the cheapest schedule, or the one with the least peak.

    Raises:
        TightropeError: OR-Tools is not installed.
    """
    del machine
    model = build(graph)
    with Worker() as worker:
        answer = moccasin_pairs(worker, model, live_limit(graph, limits), options=options)
    return expand(graph, useful(graph, answer.pairs))


def polish(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Improve ``options.start``, or a greedy set, window by window.

    Raises:
        TightropeError: OR-Tools is not installed.
    """
    del machine
    model = build(graph)
    limit = live_limit(graph, limits)
    start = tuple(options.start) or greedy_pairs(open_solver(model), limit, options.watch)
    with Worker() as worker:
        pairs = polished(worker, model, start, limit, options=options)
    return expand(graph, useful(graph, pairs))


def moccasin_pairs(
    worker: Worker,
    model: Model,
    limit: Bytes,
    *,
    knobs: MoccasinKnobs | None = None,
    options: Options | None = None,
) -> MoccasinAnswer:
    """Find the cheapest set of pairs with at most ``knobs.copies`` runs of each op that fits ``limit``."""
    knobs, options = knobs or MoccasinKnobs(), options or Options()
    whole = Window(0, len(model.need), extra=knobs.copies - 1)
    pairs: tuple[Pair, ...] = ()
    peak = _peak(model, pairs, options)
    if knobs.two_phases and peak > limit:
        first = Intervals(model, (), whole, capacity=(min(limit, peak), peak))
        found = first.least_peak(worker, pairs, effort=knobs.effort * options.effort, options=options)
        pairs = found.pairs if found.pairs is not None else pairs
        peak = _peak(model, pairs, options)
        if peak > limit:
            return MoccasinAnswer(pairs, peak, found.proved, 0)
    second = Intervals(model, (), whole, capacity=(limit, limit))
    start = pairs if peak <= limit else None
    answer = second.least_time(worker, start, effort=knobs.effort * options.effort, options=options)
    if answer.pairs is not None:
        pairs = answer.pairs
    return MoccasinAnswer(pairs, _peak(model, pairs, options), answer.proved, answer.bound)


def polished(
    worker: Worker,
    model: Model,
    start: Sequence[Pair],
    limit: Bytes,
    *,
    knobs: MoccasinKnobs | None = None,
    options: Options | None = None,
) -> tuple[Pair, ...]:
    """Re-plan windows of stages exactly, all other re-runs as they are.

    Returns:
        A set that fits ``limit`` and costs no more than ``start``; ``start`` itself where it does not fit.
    """
    knobs, options = knobs or MoccasinKnobs(), options or Options()
    best = tuple(sorted(set(start)))
    if _peak(model, best, options) > limit:
        return best
    for _ in range(knobs.rounds):
        before = model.cost(best)
        for first, last in _windows(len(model.need), knobs.window):
            if options.watch.over or model.cost(best) == 0:
                return best
            best = _replan(worker, model, best, limit, Window(first, last, extra=1), knobs, options)
        if model.cost(best) == before:
            break
    return best


def _replan(
    worker: Worker,
    model: Model,
    best: tuple[Pair, ...],
    limit: Bytes,
    window: Window,
    knobs: MoccasinKnobs,
    options: Options,
) -> tuple[Pair, ...]:
    inside = tuple(pair for pair in best if window.first <= pair[0] < window.last)
    if model.cost(inside) == 0:
        return best
    outside = tuple(pair for pair in best if not window.first <= pair[0] < window.last)
    part = Intervals(model, outside, window, capacity=(limit, limit), inside=inside)
    answer = part.least_time(worker, best, effort=knobs.window_effort * options.effort, options=options)
    options.watch.tell("polishing a window")
    if answer.pairs is None or model.cost(answer.pairs) >= model.cost(best):
        return best
    assert _peak(model, answer.pairs, options) <= limit
    return answer.pairs


def _windows(num_ops: int, size: int) -> list[tuple[StepIndex, StepIndex]]:
    step = max(1, size // 2)
    return [(first, min(first + size, num_ops)) for first in range(0, max(1, num_ops - step), step)]


def _peak(model: Model, pairs: Sequence[Pair], options: Options) -> Bytes:
    solver = open_solver(model)
    solver.load(tuple(pairs))
    return solver.state(0).peak
