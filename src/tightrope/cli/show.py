"""Tables for people and summaries for programs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from tightrope.core import Bytes, Graph, Plan, Reason, format_bytes, format_time
from tightrope.plan import Progress
from tightrope.run.progress import Progress as StatusLine


@contextmanager
def searching(budget: Bytes) -> Iterator[Callable[[Progress], None]]:
    """Show the search on standard error while it runs."""
    with StatusLine().search(budget) as report:
        yield report


def plan_summary(graph: Graph, plan: Plan) -> dict[str, Any]:
    """Figures of a plan as plain values; ``sequence`` re-evaluates it anywhere."""
    forecast = plan.forecast
    return {
        "feasible": True,
        "budget_bytes": plan.budget,
        "total_bytes": forecast.total,
        "persistent_bytes": forecast.persistent,
        "arena_bytes": forecast.arena,
        "peak_bytes": forecast.peak,
        "tdi_percent": forecast.tdi_percent,
        "seconds": forecast.ns / 1e9,
        "lower_bound_bytes": plan.certificate.lower_bound,
        "proved": plan.certificate.proved,
        "planner": plan.planner,
        "num_ops": len(graph.ops),
        "sequence": list(plan.schedule.computes()),
    }


def plan(console: Console, graph: Graph, found: Plan) -> None:
    """Print a plan's figures."""
    forecast, certificate = found.forecast, found.certificate
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("budget", f"{format_bytes(found.budget)} ({found.budget} B)")
    table.add_row("total", f"{format_bytes(forecast.total)} = persistent {format_bytes(forecast.persistent)} "
                  f"+ arena {format_bytes(forecast.arena)} + outside {format_bytes(forecast.outside)}")  # fmt: skip
    table.add_row("peak", f"{format_bytes(forecast.peak)} live above persistent")
    table.add_row(
        "time", f"{format_time(forecast.ns)}, {forecast.tdi_percent:.2f} % more than running each op once"
    )
    table.add_row("recomputed", f"{len(found.schedule.computes()) - len(graph.ops)} runs")
    witness = graph.op(certificate.witness).describe() if certificate.witness >= 0 else ""
    table.add_row("bound", f"no plan needs less than {format_bytes(certificate.lower_bound)} ({witness})")
    table.add_row("planner", found.planner)
    console.print(table)


def reasons(console: Console, found: Plan, graph: Graph | None, shown: Sequence[Reason]) -> None:
    """Print why storages were kept or recomputed."""
    table = Table("storage", "bytes", "copies", "decision", "why", box=None, pad_edge=False)
    for reason in shown:
        name = str(reason.storage)
        if graph is not None and reason.storage < len(graph.storages):
            storage = graph.storages[reason.storage]
            name = f"{storage.label} {storage.module}".strip()
        table.add_row(name, format_bytes(reason.bytes), str(reason.copies), reason.decision, reason.text)
    console.print(table)
    console.print(f"{len(found.reasons)} storages; total {format_bytes(found.forecast.total)}.", markup=False)


def estimate(console: Console, found: dict[str, Any]) -> None:
    """Print the answer to "will it fit?"."""
    verdict = "fits" if found["fits"] else "does not fit"
    console.print(
        f"{verdict}: the step needs {format_bytes(found['total_bytes'])} "
        f"(persistent {format_bytes(found['persistent_bytes'])} + step {format_bytes(found['peak_bytes'])}); "
        f"limit {format_bytes(found['limit_bytes'])} on {found['machine']}.", markup=False,
    )  # fmt: skip
    console.print(
        f"no plan can need less than {format_bytes(found['lower_bound_bytes'])}, set by {found['lower_bound_op']}.",
        markup=False,
    )
    table = Table("alive at the peak", "bytes", "tensor", "module", "source", box=None, pad_edge=False)
    for row in found["alive_at_peak"]:
        table.add_row(row["what"], format_bytes(row["bytes"]), row["tensor"], row["module"], row["source"])
    console.print(table)
    console.print(found["note"], markup=False)
