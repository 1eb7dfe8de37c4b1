"""Tables for people and summaries for programs.

Names of modules and tensors may hold brackets, so cells are plain text and never markup.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tightrope.core import Bytes, Graph, InfeasibleError, Plan

if TYPE_CHECKING:
    from tightrope.cli.tables import Console
    from tightrope.formats import Source
    from tightrope.plan import Progress


@contextmanager
def searching(budget: Bytes) -> "Iterator[Callable[[Progress], None]]":
    """Show the search on standard error while it runs."""
    from tightrope.run.base.status import StatusLine

    with StatusLine().search(budget) as report:
        yield report


def plan_summary(source: "Source", plan: Plan, *, cpu_seconds: float) -> dict[str, Any]:
    """Figures of a plan as plain values; ``sequence`` re-evaluates it anywhere.

    Args:
        source: what was planned.
        plan: what was found.
        cpu_seconds: spent on planning, by all threads.
    """
    forecast, certificate = plan.forecast, plan.certificate
    bound = 100.0 * (certificate.ns_bound - forecast.base_ns) / forecast.base_ns if forecast.base_ns else 0.0
    return {
        "feasible": True,
        "tdi_percent": forecast.tdi_percent,
        "peak_bytes": forecast.peak,
        "budget_bytes": plan.budget,
        "bound_percent": max(0.0, bound),
        "gap": forecast.tdi_percent - max(0.0, bound),
        "proved": certificate.proved,
        "cpu_seconds": cpu_seconds,
        "planner": plan.planner,
        "order": certificate.order,
        "placed": plan.placed,
        "total_bytes": forecast.total,
        "persistent_bytes": forecast.persistent,
        "arena_bytes": forecast.arena,
        "outside_bytes": forecast.outside,
        "machine": plan.machine,
        "seed": certificate.seed,
        "forecast_seconds": forecast.ns / 1e9,
        "base_seconds": forecast.base_ns / 1e9,
        "bound_seconds": certificate.ns_bound / 1e9,
        "lower_bound_bytes": certificate.lower_bound,
        "num_ops": len(source.graph.ops),
        "fingerprint": plan.fingerprint,
        "sequence": [source.node(op) for op in plan.schedule.computes()],
    }


def infeasible(error: InfeasibleError, *, planner: str) -> dict[str, Any]:
    """A refusal as plain values; ``proved`` tells whether no plan exists, or just none was found."""
    return {
        "feasible": False,
        "proved": error.lower_bound > error.asked,
        "tdi_percent": None,
        "peak_bytes": None,
        "budget_bytes": error.asked,
        "bound_percent": None,
        "gap": None,
        "planner": planner,
        "sequence": [],
        "error": str(error),
        "asked": error.asked,
        "smallest_found_bytes": error.smallest_found,
        "lower_bound_bytes": error.lower_bound,
        "op": error.op,
    }


def rows(console: "Console", heading: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table of plain text; without a heading, just its rows."""
    from tightrope.cli.tables import Table, Text

    table = Table(*heading, box=None, pad_edge=False, show_header=bool(heading))
    for row in cells:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console.print(table)


def plan(console: "Console", graph: Graph, found: Plan) -> None:
    """Print a plan's figures."""
    figures = found.figures()
    witness = found.certificate.witness
    if witness >= 0:
        figures["proved"] += f"; set by {graph.op(witness).describe()}"
    rows(console, (), list(figures.items()))
