"""Search over orders of first runs, alone and joined with recomputation.

Idea        On irregular graphs the order decides more than recomputation does. From the base order
            and a greedy list order, orders are annealed for the smallest peak, and for the fewest
            bytes over the limit, which is what recomputation would have to buy back. The most
            promising ones become base orders of reordered graphs, on which sets of recomputations
            are searched; the fastest is refined by moving all its runs, see ``joint.py``.
Source      order search as in OLLA (Steiner et al., 2022), by annealing instead of an integer program
Guarantee   Never slower than planning in the base order with the same effort, where that fits. Every
            schedule keeps `precedences`. Equal seeds and efforts give equal schedules.
Complexity  about 0.3 microseconds per move at 100 to 250 ops; one search of recomputations per order kept
Gaps        Without a compiler only the list order is tried, and runs are not moved again. A result that may
            be written over an input is charged beside it while orders are compared.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from tightrope.core import Bytes, Graph, Limits, Machine, OpId, Schedule, StorageId
from tightrope.plan.engine import live_limit
from tightrope.plan.model import Model, build
from tightrope.plan.options import Options, Ordering
from tightrope.plan.schedule import expand, restore
from tightrope_planners.orders.joint import OrderedPairs, choose, refine
from tightrope_planners.orders.precedence import precedences
from tightrope_planners.solvers.order import OrderSolver, OrderTables

_HEATS = (1.0, 16.0, 4.0)
"""Start temperatures in units of the mean storage."""
_MOVES_PER_OP, _MOST_MOVES = 4_000, 8_000_000
_SLICE = 100_000
_KEPT = 3
"""Orders besides the given one in which recomputation is searched."""


def order(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Search orders, then recomputation in the best of them; return the fastest schedule that fits.

    With ``options.order == "given"`` this is the search of recomputations in the base order.
    """
    del machine
    best = best_choice(graph, live_limit(graph, limits), options)
    return restore(expand(best.graph, best.pairs), best.ordering)


def best_choice(graph: Graph, limit: Bytes, options: Options) -> OrderedPairs:
    """Find the order of first runs in which recomputation fits ``limit`` fastest."""
    best: OrderedPairs | None = None
    for ordering in orders(graph, limit, options) if options.order == "free" else (given_order(graph),):
        found = choose(graph, ordering, limit, replace(options, start=()))
        best = found if best is None else min(best, found, key=lambda choice: choice.rank)
        if (best.state.excess, best.state.ns) == (0, 0) or options.watch.over:
            break
    assert best is not None
    if best.ordering == given_order(graph):
        return best
    return refine(graph, best, limit, options)


def given_order(graph: Graph) -> Ordering:
    """List the ops as they stand."""
    return tuple(range(len(graph.ops)))


def orders(graph: Graph, limit: Bytes, options: Options) -> tuple[Ordering, ...]:
    """Find orders worth planning in, the most promising first; the given one is among them.

    Args:
        graph: any.
        limit: bytes that the arena may hold.
        options: seed, effort, switches and clock.

    Returns:
        Orders without repeats, by the bytes over the limit summed over ops, then by peak.
    """
    model, before, base = build(graph), precedences(graph), given_order(graph)
    listed = list_order(model, before)
    solver = OrderSolver(tables(model, before))
    found = {ordering: solver.load(ordering, limit) for ordering in (base, listed)}
    if found[base][1] == 0:
        return (base,)
    starts = sorted((base, listed), key=lambda ordering: found[ordering][::-1])
    for number, heat in enumerate(_HEATS * 2):
        start, shrinking = starts[number // len(_HEATS) % 2], number % 2 == 0
        ordering = _anneal(solver, start, limit, options, number, heat=heat, shrinking=shrinking)
        found[ordering] = solver.load(ordering, limit)
        if found[ordering][1] == 0 or options.watch.over:
            break
    ranked = sorted(found, key=lambda ordering: (found[ordering][1], found[ordering][0], ordering))
    return tuple(dict.fromkeys((*[o for o in ranked if o != base][:_KEPT], base)))


def list_order(model: Model, before: Sequence[Sequence[OpId]]) -> Ordering:
    """List ops so that each step adds as few bytes as possible; ties go to the base order."""
    waiting = [len(earlier) for earlier in before]
    after: list[list[OpId]] = [[] for _ in before]
    for op, earlier in enumerate(before):
        for other in earlier:
            after[other].append(op)
    left = [0] * len(model.producer)
    for reads in model.reads:
        for storage in reads:
            left[storage] += 1
    made: list[list[StorageId]] = [[] for _ in before]
    for storage, op in enumerate(model.producer):
        if op >= 0:
            made[op].append(storage)

    def growth(op: OpId) -> Bytes:
        kept = sum(model.size[s] for s in made[op] if left[s] or model.at_end[s])
        return kept - sum(model.size[s] for s in model.reads[op] if left[s] == 1 and not model.at_end[s])

    ready = [(growth(op), op) for op, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    result: list[OpId] = []
    while ready:
        known, op = heapq.heappop(ready)
        if (now := growth(op)) != known:
            heapq.heappush(ready, (now, op))
            continue
        result.append(op)
        for storage in model.reads[op]:
            left[storage] -= 1
        for other in after[op]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (growth(other), other))
    return tuple(result)


def tables(model: Model, before: Sequence[Sequence[OpId]]) -> OrderTables:
    """Write a model down for the native search."""
    rows = zip(model.size, model.producer, model.at_end, strict=True)
    storages = tuple((size, producer, int(at_end)) for size, producer, at_end in rows)
    return OrderTables(model.need, storages, model.reads, before)


def _anneal(
    solver: OrderSolver,
    start: Ordering,
    limit: Bytes,
    options: Options,
    number: int,
    *,
    heat: float,
    shrinking: bool,
) -> Ordering:
    """Anneal one order from a start: for the smallest peak, or for the fewest bytes over the limit."""
    peak, _ = solver.load(start, limit)
    moves = int(min(_MOVES_PER_OP * len(start), _MOST_MOVES) * options.effort)
    seed = options.seed * 1_000_003 + number
    solver.begin(peak if shrinking else limit, seed=seed, iterations=moves, shrink=shrinking, heat=heat)
    try:
        while not options.watch.over and solver.run(_SLICE) > 0:
            options.watch.tell("searching orders")
    except KeyboardInterrupt:
        options.watch.interrupted = True
    return solver.best()
