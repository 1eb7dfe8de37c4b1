"""Tables for people and summaries for programs.

Names of modules and tensors may hold brackets, so cells are plain text and never markup.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightrope.core import Bytes, Graph, InfeasibleError, Plan, format_bytes
from tightrope.formats import Source

if TYPE_CHECKING:
    from tightrope.plan import Progress


@contextmanager
def searching(budget: Bytes) -> "Iterator[Callable[[Progress], None]]":
    """Show the search on standard error while it runs."""
    from tightrope.run.status import StatusLine

    with StatusLine().search(budget) as report:
        yield report


def plan_summary(source: Source, plan: Plan, *, cpu_seconds: float) -> dict[str, Any]:
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


def rows(console: Console, heading: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table of plain text; without a heading, just its rows."""
    table = Table(*heading, box=None, pad_edge=False, show_header=bool(heading))
    for row in cells:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console.print(table)


def plan(console: Console, graph: Graph, found: Plan) -> None:
    """Print a plan's figures."""
    figures = found.figures()
    witness = found.certificate.witness
    if witness >= 0:
        figures["proved"] += f"; set by {graph.op(witness).describe()}"
    rows(console, (), list(figures.items()))


def estimate(console: Console, found: dict[str, Any]) -> None:
    """Print the answer to "will it fit?"."""
    verdict = "fits" if found["fits"] else "does not fit"
    hint = "" if found["fits"] or not found["a_plan_may_fit"] else "; a plan may fit: tightrope plan"
    needs, held, state, step, limit, least, bound = (
        format_bytes(found[f"{name}_bytes"])
        for name in ("total", "persistent", "state", "peak", "limit", "smallest", "lower_bound")
    )
    console.print(
        f"{verdict}: the step needs {needs} (persistent {held}, of it {state} state of {found['optimizer']}, "
        f"+ step {step}); limit {limit} on {found['machine']}{hint}",
        markup=False,
    )
    console.print(
        f"smallest budget found: {least}, as budget={found['smallest_bytes']} where nothing else is held: "
        "for a whole loop, with the update, gradients that stay until it, and a guess at a loss outside the "
        "model",
        markup=False,
    )
    console.print(f"no plan needs less than {bound}; set by {found['lower_bound_op']}", markup=False)
    cells = [
        (row["what"], format_bytes(row["bytes"]), row["tensor"], row["module"], row["source"])
        for row in found["alive_at_peak"]
    ]
    rows(console, ("alive at the peak", "bytes", "tensor", "module", "source"), cells)
    if (more := found["num_alive_at_peak"] - len(cells)) > 0:
        console.print(f"and {more} smaller", markup=False)
    console.print(found["note"], markup=False)


def estimates(console: Console, found: Sequence[dict[str, Any]]) -> None:
    """Print one row per batch."""
    first, cells = found[0], []
    for row in found:
        with_plan = "with a plan" if row["smallest_bytes"] <= row["limit_bytes"] else "no"
        fits = "as it is" if row["fits"] else with_plan
        sizes = [format_bytes(row[f"{name}_bytes"]) for name in ("total", "state", "smallest")]
        cells.append((str(row["batch"]), *sizes, str(row["smallest_bytes"]), fits))
    state = f"of it {first['optimizer']}"
    rows(console, ("batch", "without a plan", state, "smallest budget", "budget=", "fits"), cells)
    limit = format_bytes(first["limit_bytes"])
    console.print(f"limit {limit} on {first['machine']}; {first['note']}", markup=False)
