"""Every planner against brute force on small random graphs: optimum, or its own guarantee.

Graphs have several outputs per op, temporaries, replays, changes in place, storages that must be
resident at the end, and a boundary in the middle. Three limits each: the least peak, half of the way to
the peak without recomputation, and one byte less than possible.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TypeAlias

from benchmarks.planners.question import Question, Row, Settings
from tests.oracles import evaluate, random_graph
from tests.plan.brute import Brute
from tests.plan.sequences import chain, measure
from tightrope.core import Graph, Limits
from tightrope.plan import PLANNERS, Options
from tightrope.plan.model import Model, Pair, build, pairs_of
from tightrope_planners.peers.checkmate import CheckmateKnobs, checkmate_pairs
from tightrope_planners.peers.dtr import DtrKnobs, dtr_runs
from tightrope_planners.peers.moccasin import MoccasinKnobs, moccasin_pairs
from tightrope_planners.peers.treewidth import Recursion, TreewidthKnobs
from tightrope_shared.cp import Worker

Solver: TypeAlias = Callable[[Graph, Model, int], tuple[Pair, ...] | None]
"""Finds re-runs within a limit of arena bytes; None = says that there are none."""


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per planner and switch."""
    number = 50 if settings.quick else 500
    for tight in (True, False):
        yield _optimal(f"checkmate, tight={tight}", _checkmate(tight), number)
    if find_spec("ortools"):
        with Worker() as worker:
            for phases in (True, False):
                yield _optimal(f"moccasin C=2, phases={phases}", _moccasin(worker, phases), number, runs=2)
    yield _optimal("anneal", _annealed, number, proof=False)
    for linger in (True, False):
        yield _bounded(f"treewidth, linger={linger}", _treewidth(linger), number)
    yield _bounded("dtr, eq", _dtr, number)
    for name in ("rotor", "revolve", "sqrt"):
        yield _chains(name, number)


def _checkmate(tight: bool) -> Solver:
    def solve(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...] | None:
        answer = checkmate_pairs(model, limit, knobs=CheckmateKnobs(tight=tight))
        return answer.pairs if answer.ns_bound < float("inf") else None

    return solve


def _moccasin(worker: Worker, phases: bool) -> Solver:
    def solve(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...] | None:
        answer = moccasin_pairs(worker, model, limit, knobs=MoccasinKnobs(two_phases=phases))
        return answer.pairs if answer.peak <= limit else None

    return solve


def _annealed(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...] | None:
    budget = graph.persistent + limit + sum(s.size for s in graph.storages if s.outside)
    pairs = pairs_of(graph, PLANNERS["anneal"](graph, None, Limits(bytes=(budget,)), Options()))
    return pairs if evaluate(graph, pairs)[0] <= limit else None


def _treewidth(linger: bool) -> Solver:
    def solve(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...] | None:
        return Recursion(model, TreewidthKnobs(linger=linger)).within(limit)

    return solve


def _dtr(graph: Graph, model: Model, limit: int) -> tuple[Pair, ...] | None:
    found = dtr_runs(model, limit, knobs=DtrKnobs())
    return found.pairs if found.finished else None


def _graphs(number: int) -> Iterator[Graph]:
    for seed in range(number):
        yield random_graph(seed, num_ops=6 + seed % 2, rich=seed % 5 != 0)


def _limits(graph: Graph, least: int) -> tuple[int, ...]:
    return least - 1, least, (least + evaluate(graph, ())[0]) // 2


def _optimal(name: str, solve: Solver, number: int, *, runs: int | None = None, proof: bool = True) -> Row:
    """Count limits at which the time equals the optimum, or both say that nothing fits."""
    counts: Counter[str] = Counter()
    for graph in _graphs(number):
        brute, model = Brute(graph, max_runs=runs), build(graph)
        for limit in _limits(graph, brute.least_peak()):
            best, pairs = brute.least_ns(limit), solve(graph, model, limit)
            peak, ns = evaluate(graph, pairs or ())
            same = pairs is None if best is None else pairs is not None and ns == best and peak <= limit
            counts["equal" if same else "worse" if pairs is None or ns >= (best or 0) else "wrong"] += 1
    return {
        "bar": "P12", "planner": name, "graphs": number, "limits": counts.total(),
        "equal to optimum": counts["equal"], "wrong": counts["wrong"],
        "met": counts["equal"] == counts.total() if proof else counts["wrong"] == 0,
    }  # fmt: skip


def _bounded(name: str, solve: Solver, number: int) -> Row:
    """Count limits at which a planner without lookahead fits and is no better than brute force."""
    counts: Counter[str] = Counter()
    for graph in _graphs(number):
        brute, model = Brute(graph, any_order=True), build(graph)
        for limit in _limits(graph, brute.least_peak()):
            best, pairs = brute.least_ns(limit), solve(graph, model, limit)
            if pairs is None:
                counts["no plan"] += 1
                continue
            peak, ns = measure(graph, pairs)
            right = best is not None and peak <= limit and ns >= best
            counts["right" if right else "wrong"] += 1
            counts["equal"] += right and ns == best
    return {
        "bar": "P12", "planner": name, "graphs": number, "limits": 3 * number,
        "equal to optimum": counts["equal"], "wrong": counts["wrong"],
        "met": counts["wrong"] == 0,
    }  # fmt: skip


def _chains(name: str, number: int) -> Row:
    """Count chains and limits at which a planner of chains is no better than brute force."""
    counts: Counter[str] = Counter()
    for seed in range(number):
        graph = chain(seed, 4)
        plain = evaluate(graph, ())[0]
        for limit in (plain, plain * 8 // 10, plain * 6 // 10):
            best = Brute(graph).least_ns(limit)
            limits = Limits(bytes=(graph.persistent + limit,))
            peak, ns = evaluate(graph, pairs_of(graph, PLANNERS[name](graph, None, limits, Options())))
            counts["wrong"] += peak <= limit and (best is None or ns < best)
            counts["equal"] += ns == best if peak <= limit else best is None
    return {
        "bar": "P12", "planner": name, "graphs": number, "limits": 3 * number,
        "equal to optimum": counts["equal"], "wrong": counts["wrong"], "met": counts["wrong"] == 0,
    }  # fmt: skip


QUESTION = Question(("P12",), "every planner against brute force", run)
