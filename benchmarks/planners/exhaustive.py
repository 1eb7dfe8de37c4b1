"""The other planners against exhaustive search: cuts, orders, paging, attention cores.

Each has its own kind of answer, so each is compared with the best of all answers of that kind: all sets
of kept storages (at most 14 ops), all orders of first runs (7 ops), all sets of up to four decisions to
recompute or to page, all numbers of attention cores.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

from benchmarks.planners import cases
from benchmarks.planners.question import Question, Row, Settings
from tests import oracles
from tests.plan import test_paging_search
from tightrope.core import Graph, Limits, TightropeError
from tightrope.lower import lower, walked
from tightrope.plan import Options
from tightrope.plan.model import build
from tightrope.plan.paging.search import PagingKnobs, search_paged
from tightrope.plan.schedule import base_schedule, expand, restore
from tightrope_planners.judge.reorder import in_base_order
from tightrope_planners.orders.precedence import precedences, reorder
from tightrope_planners.orders.search import orders
from tightrope_planners.peers.mincut import backward_begin, cheapest_cut, pairs_of_cut
from tightrope_planners.peers.mincut_prices import Prices
from tightrope_planners.peers.poet import PoetKnobs, solve_poet
from tightrope_planners.peers.selective import selective
from tightrope_shared.attention import TransformerShape, attention_cores, core_pairs

_CLOSE = 1e-6


def topological(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Enumerate the orders that keep all precedences."""
    before = precedences(graph)
    for order in permutations(range(len(graph.ops))):
        position = {op: at for at, op in enumerate(order)}
        if all(position[u] < position[v] for v, earlier in enumerate(before) for u in earlier):
            yield order


def accepted(graph: Graph, order: tuple[int, ...]) -> bool:
    """Ask the judge whether first runs in an order give the values of the base order."""
    schedule = restore(base_schedule(reorder(graph, order)), order)
    try:
        return in_base_order(graph, lower(graph, schedule))[0] == reorder(graph, order)
    except TightropeError:
        return False


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per planner and switch."""
    number = 50 if settings.quick else 500
    for native in (True, False):
        yield _row(f"mincut, native={native}", number, partial(_cut, native=native))
    yield _row("order", number, _order)
    for objective in ("joules", "seconds"):
        yield _row(f"poet, {objective}", number, partial(_paged, goal=objective, exact=True))
        yield _row(f"paging, {objective}", number, partial(_paged, goal=objective, exact=False))
    yield _row("selective", number, _cores)


def _row(name: str, number: int, ask: Callable[[int], str]) -> Row:
    counts = Counter(ask(seed) for seed in range(number))
    return {
        "bar": "P12", "planner": name, "graphs": number, "limits": counts.total(),
        "equal to optimum": counts["equal"], "wrong": counts["wrong"],
        "met": counts["equal"] == counts.total(),
    }  # fmt: skip


def _cut(seed: int, *, native: bool) -> str:
    graph = cases.two_parts(seed)
    model, begin, draw = build(graph), backward_begin(graph), random.Random(seed)
    prices = Prices(
        tuple(float(draw.choice((0, draw.randrange(100)))) for _ in graph.storages),
        tuple(float(draw.randrange(100)) for _ in graph.ops),
    )
    cut = cheapest_cut(model, begin, prices, [0.0] * len(graph.storages), native=native)
    for anew in (False, True):
        walked(graph, expand(graph, pairs_of_cut(model, begin, cut, anew=anew)))
    best = cases.best_of_all(model, begin, prices)
    return "equal" if abs(cut.price - best) <= _CLOSE else "wrong" if cut.price < best else "worse"


def _order(seed: int) -> str:
    graph = oracles.random_graph(seed, num_ops=7)
    peaks = [oracles.evaluate(reorder(graph, order), ())[0] for order in topological(graph)]
    found = [
        oracles.evaluate(reorder(graph, order), ())[0]
        for order in orders(graph, min(peaks), Options(order="free"))
        if accepted(graph, order)
    ]
    return "equal" if found and min(found) == min(peaks) else "worse"


def _paged(seed: int, *, goal: str, exact: bool) -> str:
    graph, machine = test_paging_search.small(seed), test_paging_search.board(seed)
    limits, joules = test_paging_search.asked(graph, seed), goal == "joules"
    best = test_paging_search.best_of_all(graph, machine, limits, joules=joules)
    if exact:
        answer = solve_poet(graph, machine, limits, knobs=PoetKnobs(objective=goal))  # type: ignore[arg-type]
        chosen = answer.chosen
    else:
        knobs = PagingKnobs(objective=goal)  # type: ignore[arg-type]
        chosen = search_paged(graph, machine, limits, knobs=knobs, options=test_paging_search.FEW)
    value = test_paging_search.value(graph, machine, chosen, limits, joules=joules)
    if best is None or value is None:
        return "equal" if value is None and best is None else "worse"
    return "equal" if abs(value - best) <= _CLOSE * best else "better" if value < best else "worse"


def _cores(seed: int) -> str:
    draw = random.Random(seed)
    shape = TransformerShape(
        s=64 * draw.randint(1, 8), b=draw.randint(1, 3), h=256, a=draw.choice((4, 8, 16))
    )
    layers = draw.randint(2, 6)
    graph = cases.layer(shape, layers)
    cores = attention_cores(graph)
    model = build(graph)
    ways = [oracles.evaluate(graph, core_pairs(graph, model, cores[:n])) for n in range(layers + 1)]
    peaks = [peak for peak, _ in ways]
    limit = draw.randint(min(peaks), max(peaks))
    best = min(ns for peak, ns in ways if peak <= limit)
    schedule = selective(graph, None, Limits(bytes=(graph.persistent + limit,)), Options())
    walk = walked(graph, schedule)
    return "equal" if walk.peak <= limit and walk.ns == best else "worse"


QUESTION = Question(("P12",), "other planners against exhaustive search", run)
