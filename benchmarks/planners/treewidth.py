"""Separators: the bound on bytes up to 10,000 ops, and budgets that annealing alone does not reach."""

from collections.abc import Iterator
from random import Random

from benchmarks.planners.question import Question, Row, Settings, cpu_seconds
from tests.plan.brute import Brute
from tests.plan.sequences import partial_ktree
from tightrope.core import Graph, Limits
from tightrope.lower import walked
from tightrope.plan import Options
from tightrope.plan.anneal import anneal, shrink
from tightrope.plan.model import build
from tightrope.plan.schedule import expand
from tightrope_planners.bound.runs import Runs
from tightrope_planners.peers.treewidth import Recursion, smallest_seed

_SIZES = (100, 1000, 10_000)
_MOST_BRUTE = 9


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph, then one that says whether annealing was ever outdone."""
    for num_ops in _SIZES[: 2 if settings.quick else None]:
        for width in (1, 2, 3, 4):
            for near in (True, False):
                yield _bound(num_ops, width, near=near)
    yield from _below_anneal(settings)


def _bound(num_ops: int, width: int, *, near: bool) -> Row:
    graph = partial_ktree(num_ops, width, seed=num_ops + width, near=near, drop=0.2)
    began = cpu_seconds()
    model = build(graph)
    recursion = Recursion(model)
    runs = recursion.within(recursion.bytes_bound)
    spent = cpu_seconds(began)
    inputs = max(map(len, recursion.inputs))
    paper = (width + 1 + inputs) * num_ops.bit_length() + inputs + 1
    peak = None if runs is None else Runs(model, runs).peak
    return {
        "bar": "P7", "ops": num_ops, "treewidth": width, "shape": "thin" if near else "bushy",
        "width": recursion.separators.width, "no recompute": Runs(model, ()).peak,
        "(k+1+d)(1+log n)+d+1": paper, "bound": recursion.bytes_bound, "peak": peak,
        "re-runs": None if runs is None else len(runs), "CPU s": spent,
        "met": peak is not None and peak <= recursion.bytes_bound <= paper,
    }  # fmt: skip


def _below_anneal(settings: Settings) -> Iterator[Row]:
    """Ask the annealer for the peak that separators reach, with every seed."""
    rng, outdone = Random(0), 0
    sizes = [9] * 60 + [20] * 20 + ([] if settings.quick else [40] * 15 + [80] * 10)
    for number, num_ops in enumerate(sizes):
        width, near = rng.randrange(1, 5), rng.random() < 0.5
        graph = partial_ktree(num_ops, width, seed=number, near=near, drop=0.3)
        row = _against_anneal(graph, settings)
        if row["separators"] < row["anneal"]:
            outdone += 1
            yield {"bar": "P7", "ops": num_ops, "treewidth": width, "seed": number} | row
    yield {
        "bar": "P7", "graphs": len(sizes), "where annealing alone does not fit": outdone, "met": outdone > 0
    }  # fmt: skip


def _against_anneal(graph: Graph, settings: Settings) -> Row:
    peak = walked(graph, smallest_seed(graph)).peak
    limits = Limits(bytes=(graph.persistent + peak,))
    reached = []
    for seed in settings.seeds:
        options = Options(seed=seed)
        sets = shrink(graph, options)
        reached.append(walked(graph, anneal(graph, None, limits, options)).peak)
        reached.append(walked(graph, expand(graph, sets[-1] if sets else ())).peak)
    small = len(graph.ops) <= _MOST_BRUTE
    return {
        "no recompute": Runs(build(graph), ()).peak,
        "separators": peak,
        "anneal": min(reached),
        "any set of pairs": Brute(graph).least_peak() if small else None,
        "met": None,
    }


QUESTION = Question(("P7",), "separators: bytes proved, and budgets that annealing does not reach", run)
