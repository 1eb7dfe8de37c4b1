"""Greedy eviction, planned; and the base order as it is.

Idea        Walk the events of the base order; where bytes exceed the limit, give up the idle storage
            with the least score and run its producer again before its next reader. Do so for five
            scores and five limits at and below the one asked for; keep the cheapest that fits.
Source      the scores are those of Dynamic Tensor Rematerialization (ICLR 2021) and simpler ones
Guarantee   None: where no try fits, the one closest to the limit is returned.
Complexity  at most 27 walks of O(ops + evictions * storages).
Gaps        An eviction is never taken back, except where it turns out to be useless.
"""

from itertools import product

from tightrope.core import Bytes, Graph, Limits, Machine, Schedule
from tightrope.native.solvers.solver import NUM_RULES
from tightrope.plan.engine import GreedySearch, live_limit, open_solver
from tightrope.plan.model import Pair, build
from tightrope.plan.options import Options, Watch
from tightrope.plan.schedule import base_schedule, expand, useful

_TIGHTER = (100, 97, 94, 90, 85)
"""Limits of the tries, percent: what a chain of recomputations needs later is not known when evicting."""

FAR_RULES = 2
"""Scores that are tried with recomputation from far back: those of time and bytes."""

_POOR = 2
"""A score whose set takes so many times as long as one that fits is not tried at tighter limits."""

_MANY_OPS, _VERY_MANY_OPS = 1_000, 20_000
"""Larger graphs are content with the first limit at which a score fits: one walk takes 0.1 s at 4,500 ops.
Of very many ops, only the scores of time and bytes are tried."""


def greedy(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Evict greedily under several scores and limits; return the cheapest schedule that fits."""
    del machine
    solver = open_solver(build(graph))
    return expand(graph, useful(graph, greedy_pairs(solver, live_limit(graph, limits), options.watch)))


def greedy_pairs(solver: GreedySearch, limit: Bytes, watch: Watch) -> tuple[Pair, ...]:
    """Find the cheapest greedy set that fits ``limit``, or the one with the fewest bytes over it."""
    best: tuple[int, int, int] | None = None
    pairs: tuple[Pair, ...] = ()
    poor: set[int] = set()
    rules = range(NUM_RULES if solver.num_ops <= _VERY_MANY_OPS else FAR_RULES)
    tries = [(limit * percent // 100, rule, False) for percent, rule in product(_TIGHTER, rules)]
    if solver.num_ops <= _MANY_OPS:
        tries += [(limit, rule, True) for rule in range(FAR_RULES)]
    for target, rule, far in tries:
        fits = best is not None and best[0] == 0
        enough = fits and (far or (rule == 0 and solver.num_ops > _MANY_OPS))
        if best is not None and (watch.over or enough):
            break
        if rule in poor and fits:
            continue
        solver.greedy(target, rule, far=far)
        state = solver.state(limit)
        poor |= {rule} if best is not None and fits and state.ns > _POOR * best[1] else set()
        rank = (state.excess, state.ns, state.num_pairs)
        if best is None or rank < best:
            best, pairs = rank, solver.pairs()
        watch.tell("greedy eviction")
    return pairs


def given(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Run every op once and free every storage right after its last reader."""
    del machine, limits, options
    return base_schedule(graph)
