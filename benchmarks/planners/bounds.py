"""Bounds: how fast, how close to the plans, and whether the judge derives them again.

P5 times the bound alone. P4 compares it with plans of training graphs: published ones on live bytes,
captured ones with addresses. P11 asks for twenty budgets in random order and then again upwards. That
the bound never exceeds the optimum is for ``pytest -m slow`` to say, of ``test_bound_time.py`` and
``test_bound_stages.py``.
"""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import process_time

from benchmarks.planners.question import Question, Row, Settings
from tests.judge.test_judge_certificate import CORRUPTIONS, proved_plans
from tightrope.core import Graph, InfeasibleError, Plan
from tightrope.formats import read_source
from tightrope.lower import problems
from tightrope.plan import PlanCache, lower_bound, solve, whole_bytes
from tightrope.plan.bound.cover import time_bound
from tightrope_planners.formats import random_layered

_PERCENTS = (90, 80, 70, 60, 50)
_GENERATED = ((100, 0.27), (250, 0.43), (500, 0.36), (1000, 0.31))
_CAPTURED = ("gpt2", "resnet18", "unet", "vit")
_MACHINE = "laptop-16gb"


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph and budget."""
    if settings.wants("P5"):
        for name, graph in _graphs(settings):
            for percent in _PERCENTS:
                yield from _bound(name, graph, percent)
    if settings.wants("P4"):
        for name, graph in _published(settings, "train"):
            yield from _gaps(name, graph, placed=False)
        for name in _CAPTURED[: 1 if settings.quick else None]:
            yield from _gaps(name, _captured(name), placed=True)
    if settings.wants("P11"):
        for name, graph in [*_published(settings, ""), ("layered 100", random_layered(100, seed=1))]:
            yield _twenty_budgets(name, graph)
        yield _corrupted(5 if settings.quick else 11)


def _bound(name: str, graph: Graph, percent: int) -> Iterator[Row]:
    budget = -(-_whole(graph) * percent // 100)
    if lower_bound(graph)[0] > budget:
        return
    began = process_time()
    given = time_bound(graph, budget=budget)
    spent = process_time() - began
    free = time_bound(graph, budget=budget, free_order=True)
    allowed = 0.5 if len(graph.ops) <= 353 else 3.0
    yield {
        "bar": "P5",
        "graph": name,
        "ops": len(graph.ops),
        "budget %": percent,
        "bound %": 100 * given.extra_ns / graph.base_ns,
        "any order %": 100 * free.extra_ns / graph.base_ns,
        "cases": len(numbers.tree) if (numbers := given.cover or given.stages) is not None else 0,
        "bound s": spent,
        "met": spent <= allowed if len(graph.ops) <= 353 or percent >= 70 else None,
    }


def _gaps(name: str, graph: Graph, *, placed: bool) -> Iterator[Row]:
    for percent in _PERCENTS:
        budget = -(-_whole(graph) * percent // 100)
        head = {"bar": "P4", "graph": name, "ops": len(graph.ops), "budget %": percent}
        began = process_time()
        try:
            plan = solve(graph, budget=budget, placed=placed, bound=True)
        except InfeasibleError as error:
            reason = "no plan exists" if error.lower_bound > budget else "not found"
            figures = {"TDI %": None, "bound %": None, "gap pp": None, "proved": reason}
            yield head | figures | {"CPU s": process_time() - began, "met": None}
            continue
        bound = 100 * (plan.certificate.ns_bound / graph.base_ns - 1)
        gap = plan.forecast.tdi_percent - bound
        yield head | {
            "TDI %": plan.forecast.tdi_percent,
            "bound %": bound,
            "gap pp": gap,
            "proved": plan.certificate.proved,
            "CPU s": process_time() - began,
            "met": gap <= (0.01 if percent >= 60 else 0.1) and not problems(graph, plan),
        }


def _twenty_budgets(name: str, graph: Graph) -> Row:
    began, whole, cache = process_time(), _whole(graph), PlanCache()
    budgets = [-(-whole * percent // 100) for percent in range(81, 101)]
    for budget in random.Random(0).sample(budgets, len(budgets)):
        _asked(graph, budget, cache)
    plans = [plan for budget in budgets if (plan := _asked(graph, budget, cache)) is not None]
    times = [plan.forecast.ns for plan in plans]
    inversions = sum(later > before for before, later in pairwise(times))
    accepted = sum(not problems(graph, plan) for plan in plans)
    return {
        "bar": "P11",
        "graph": name,
        "ops": len(graph.ops),
        "plans": len(plans),
        "inversions": inversions,
        "accepted": accepted,
        "TDI % from": 100 * (times[0] / graph.base_ns - 1) if times else None,
        "to": 100 * (times[-1] / graph.base_ns - 1) if times else None,
        "CPU s": process_time() - began,
        "met": inversions == 0 and accepted == len(plans) > 0,
    }


def _corrupted(number: int) -> Row:
    """Spoil certificates in thirteen ways; the judge must refuse each, and accept each as it was."""
    refused = asked = sound = 0
    plans = proved_plans(number, (True, False))
    for seed, (graph, plan) in enumerate(plans):
        sound += not problems(graph, plan)
        for corrupt in CORRUPTIONS:
            wrong = corrupt(plan, random.Random(seed))
            if wrong is not None:
                asked += 1
                refused += any(line.startswith("certificate: ") for line in problems(graph, wrong))
    return {
        "bar": "P11",
        "certificates": len(plans),
        "accepted as they are": sound,
        "corrupted": asked,
        "refused": refused,
        "met": sound == len(plans) and refused == asked >= 100,
    }


def _asked(graph: Graph, budget: int, cache: PlanCache) -> Plan | None:
    try:
        return solve(graph, budget=budget, cache=cache, placed=False, bound=True)
    except InfeasibleError:
        return None


def _whole(graph: Graph) -> int:
    return whole_bytes(graph)


def _graphs(settings: Settings) -> Iterator[tuple[str, Graph]]:
    yield from _published(settings, "")
    for num_ops, width in _GENERATED[: 2 if settings.quick else None]:
        yield f"layered {num_ops}", random_layered(num_ops, seed=1, width=width)


def _published(settings: Settings, part: str) -> Iterator[tuple[str, Graph]]:
    if settings.data is not None:
        for file in sorted(Path(settings.data).glob("*.json")):
            if part in file.stem:
                yield (
                    file.stem.split("_w")[0].replace("random_layered_n", "published "),
                    read_source(file).graph,
                )


def _captured(name: str) -> Graph:
    from benchmarks.zoo import build
    from tightrope.capture import capture_program
    from tightrope.cli.machines import find_machine
    from tightrope.price import price_graph

    case = build(name)
    program, _ = capture_program(case.model, case.inputs)
    return price_graph(program.graph, find_machine(_MACHINE))


QUESTION = Question(("P4", "P5", "P11"), "bounds: time, gap, and plans over twenty budgets", run)
