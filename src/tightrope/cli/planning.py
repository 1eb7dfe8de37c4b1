"""The command ``plan``, without its words."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tightrope.cli import show
from tightrope.core import Bytes, Graph, InfeasibleError, Kind, Machine, Plan, format_bytes, parse_bytes
from tightrope.formats import Source
from tightrope.plan import PlanCache, solve, whole_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks of a planner."""

    budget: str
    planner: str
    order: Literal["given", "free"]
    seconds: float | None
    seed: int
    machine: Machine | None
    cache: Path | None = None


def _check_parameters(graph: Graph, asked: Bytes, whole: Bytes) -> None:
    """Refuse a budget that the parameters alone exceed, before anything is searched.

    Raises:
        InfeasibleError: with both sums, and what the given order needs.
    """
    held = sum(one.size for one in graph.storages if one.kind is Kind.PARAMETER)
    if asked < held:
        raise InfeasibleError(
            f"the budget is {format_bytes(asked)}; the parameters alone take {format_bytes(held)} "
            f"({held} bytes), and the given order needs {format_bytes(whole)}. Give "
            f"more, up to {whole} bytes (100%).",
            asked=asked,
            smallest_found=whole,
            lower_bound=held,
        )


def plan_source(source: Source, request: Request) -> tuple[Plan, float]:
    """Plan a graph with a proof; return the plan and the CPU seconds of all threads.

    Raises:
        InfeasibleError: no plan fits.
    """
    began, graph = time.process_time(), source.graph
    whole = whole_bytes(graph)
    asked = parse_bytes(request.budget, whole=whole)
    _check_parameters(graph, asked, whole)
    with show.searching(asked) as report:
        found = solve(
            graph,
            budget=asked,
            machine=request.machine,
            planner=request.planner,
            seconds=request.seconds,
            seed=request.seed,
            progress=report,
            cache=PlanCache(request.cache) if request.cache is not None else None,
            order=request.order,
            placed=source.placed,
            bound=True,
        )
    found = msgspec.structs.replace(found, provenance=source.provenance)
    return found, time.process_time() - began
