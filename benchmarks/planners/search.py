"""P1 to P4: time of the default search's plans on published and generated graphs, and its own time.

Budgets are shares of the given order's peak of live bytes, rounded up, as in the literature; the judge
re-derives every plan. Figures are medians over the seeds: with the default effort, and, where there is a
bar for time, with ``seconds`` set a tenth below it (``in time``). The gap and the proof are those of one
further plan, whose bound is pursued.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Literal, TypeAlias

from benchmarks.planners.question import Question, Row, Settings, cpu_seconds
from tightrope.core import Bytes, Graph, InfeasibleError, Limits, Plan
from tightrope.formats import read_source
from tightrope.lower import problems, walked
from tightrope.plan import PLANNERS, Options, solve, whole_bytes
from tightrope.plan.options import Watch
from tightrope_planners.formats import random_layered

G1 = "random_layered_n100_w0.27.json"
G2 = "random_layered_n250_w0.43.json"
_UNLIMITED = 1e6
"""Effort at which only the clock ends a search."""
_TIMES, _PATIENCE = 20, 24
"""Our time that the constraint program must have, and what it is given: other load shortens a deadline."""
_IN_TIME = 0.9
"""Share of the time allowed that is asked for: what follows the search takes the rest."""
FCN8, RESNET = "fcn8_vgg_b32_train.json", "resnet50_b256_train.json"
_Found: TypeAlias = tuple[Plan | None, float]


@dataclass(frozen=True, slots=True)
class _Case:
    """One bar: TDI in percent and processor seconds that may not be exceeded."""

    bar: str
    name: str
    percent: int
    tdi: float | None
    seconds: float | None = None
    order: Literal["given", "free"] = "given"
    gap: float | None = None


_CASES = (
    _Case("P1", G1, 90, 0.790, 1),
    _Case("P1", G1, 80, 2.297, 1),
    _Case("P1", G2, 90, 0.905, 5),
    _Case("P1", G2, 80, 4.27, 5),
    _Case("P3", G1, 90, 0.0, order="free"),
    _Case("P3", G1, 80, 1.30, order="free"),
    _Case("P3", G2, 90, 0.0, order="free"),
    _Case("P3", G2, 80, 0.0, order="free"),
    _Case("P3", G2, 70, 0.60, order="free"),
    _Case("P4", FCN8, 90, None, 1, gap=0.01),
    _Case("P4", FCN8, 80, None, 1, gap=0.01),
    _Case("P4", FCN8, 70, None, 1, gap=0.01),
    _Case("P4", RESNET, 90, None, 3, gap=0.01),
    _Case("P4", RESNET, 80, None, 3, gap=0.01),
    _Case("P4", RESNET, 70, None, 3, gap=0.01),
    _Case("P4", RESNET, 60, None, 3, gap=0.01),
    _Case("P4", RESNET, 50, 1.51, 3, gap=0.1),
    _Case("P4", RESNET, 40, 2.27, 3),
    _Case("P4", RESNET, 30, 3.75, 3),
    _Case("P4", RESNET, 20, 6.56, 3),
)


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph and budget."""
    if settings.data is not None:
        cases = [case for case in _CASES if settings.wants(case.bar) or settings.wants("P2")]
        for case in cases:
            yield _published(case, read_source(settings.data / case.name).graph, settings)
    if settings.wants("P1") or settings.wants("P2"):
        yield from _generated(settings)


def budget_of(graph: Graph, percent: int) -> Bytes:
    """Take a share of the given order's peak, rounded up, above what the caller holds."""
    peak = whole_bytes(graph) - graph.persistent
    return graph.persistent - (-peak * percent // 100)


def _published(case: _Case, graph: Graph, settings: Settings) -> Row:
    budget = budget_of(graph, case.percent)
    found = [_solved(graph, budget, case, seed) for seed in settings.seeds]
    timed = list[_Found]()
    if case.seconds is not None:
        allowed = _IN_TIME * case.seconds
        timed = [_solved(graph, budget, case, seed, seconds=allowed) for seed in settings.seeds]
    proof, proving = _solved(graph, budget, case, settings.seeds[0], bound=True)
    gap = None if proof is None or case.order == "free" else _gap(graph, proof)
    tdi, seconds = _medians(timed or found)
    fast = case.seconds is None or seconds <= case.seconds
    good = case.tdi is None or tdi <= case.tdi
    close = case.gap is None or (gap is not None and gap <= case.gap)
    plans = [plan for plan, _ in (*found, *timed, (proof, 0.0))]
    judged = all(plan is not None and not problems(graph, plan) for plan in plans)
    return {
        "bar": case.bar,
        "graph": case.name.split(".json")[0],
        "budget %": case.percent,
        "order": case.order,
        "tdi %": _medians(found)[0],
        "cpu s": _medians(found)[1],
        "in time %": tdi if timed else None,
        "<= %": case.tdi,
        "in time s": seconds if timed else None,
        "<= s": case.seconds,
        "gap pp": gap,
        "<= pp": case.gap,
        "proved": proof is not None and proof.certificate.proved,
        "with proof s": proving,
        "judged": judged,
        "met": good and fast and close and judged,
    }


def _medians(found: list[_Found]) -> tuple[float, float]:
    """TDI, infinite where no plan was found, and processor seconds."""
    times = [plan.forecast.tdi_percent if plan is not None else float("inf") for plan, _ in found]
    return median(times), median(cpu for _, cpu in found)


def _solved(
    graph: Graph,
    budget: Bytes,
    case: _Case,
    seed: int,
    *,
    bound: bool | None = None,
    seconds: float | None = None,
) -> _Found:
    start = cpu_seconds()
    try:
        plan = solve(
            graph, budget=budget, seed=seed, order=case.order, placed=False, bound=bound, seconds=seconds
        )
    except InfeasibleError:
        return None, cpu_seconds(start)
    return plan, cpu_seconds(start)


def _gap(graph: Graph, plan: Plan) -> float:
    return 100.0 * (plan.forecast.ns - plan.certificate.ns_bound) / graph.base_ns


def _generated(settings: Settings) -> Iterator[Row]:
    """Compare with the constraint program, stopped at 20 times our time, on ten graphs a size."""
    sizes: tuple[tuple[int, float], ...] = ((500, 15.0), (1000, 40.0))
    for num_ops, most in sizes:
        for seed in range(2 if settings.quick else 10):
            graph = random_layered(num_ops, seed=seed)
            yield _against_moccasin(graph, num_ops, seed, most)


def _against_moccasin(graph: Graph, num_ops: int, seed: int, most: float) -> Row:
    limits = Limits(bytes=(budget_of(graph, 80),))
    began = perf_counter()
    ours, seconds = _timed(graph, limits, "anneal", Options())
    waited = max(seconds, perf_counter() - began)  # deadlines are wall time: longer beside other load
    patient = Options(effort=_UNLIMITED, watch=Watch(seconds=_PATIENCE * waited))
    theirs, spent = _timed(graph, limits, "moccasin", patient)
    return {
        "bar": "P1",
        "graph": f"layered n={num_ops} seed={seed}",
        "budget %": 80,
        "tdi %": ours,
        "moccasin %": theirs,
        "cpu s": seconds,
        "<= s": most,
        "moccasin s": spent,
        "times more": spent / seconds,
        "met": ours < theirs and seconds <= most and spent >= _TIMES * seconds,
    }


def _timed(graph: Graph, limits: Limits, planner: str, options: Options) -> tuple[float, float]:
    """Plan on live bytes; return the TDI, infinite where the judge finds too many bytes, and the time."""
    start = cpu_seconds()
    schedule = PLANNERS[planner](graph, None, limits, options)
    seconds = cpu_seconds(start)
    walk = walked(graph, schedule)
    fits = walk.peak + graph.persistent <= limits.bytes[0]
    return (100.0 * (walk.ns - graph.base_ns) / graph.base_ns if fits else float("inf")), seconds


QUESTION = Question(("P1", "P2", "P3", "P4"), "search: time of the plans, and of planning", run)
