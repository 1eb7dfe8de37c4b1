"""The command ``curve``: what every budget costs in time."""

from typing import Annotated, Any, Final

import typer

from tightrope.cli import show
from tightrope.cli.output import console, emit_json
from tightrope.core import Graph, Machine, Plan, TightropeError, format_bytes, format_time
from tightrope.core.arguments import check_seconds

SECONDS: Final = 15.0
"""Of search for a whole curve; with the last search it stays under about 20."""
_BAR: Final = 30


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    examples = (
        "\b\nExamples:\n  tightrope curve train.py:build\n"
        "  tightrope curve train.py:build --machine rtx3060-12gb\n"
        "  tightrope curve step.graph.json --seconds 60 --json"
    )
    app.command("curve", short_help="Show what every budget costs in time.", epilog=examples)(curve)


def curve(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH",
            help="A graph (ours, node-link JSON, a DTR log), or FILE.py:FUNCTION to capture and measure.",
        ),
    ],
    seconds: Annotated[float, typer.Option(help="Seconds of search for all budgets together.")] = SECONDS,
    machine: Annotated[
        str | None, typer.Option(help="A profile, such as rtx4090-24gb, or a TOML file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a training step at a dozen budgets and show what each costs in time.

    100 % is what the step needs without a plan. The smallest budget is the smallest that the search
    found, or 30 %.
    """
    from tightrope.cli.machines import find_machine
    from tightrope.cli.sources import source_of
    from tightrope.plan import whole_bytes

    profile = find_machine(machine) if machine is not None else None
    source = source_of(graph, profile)
    plans = curve_plans(source.graph, seconds, profile, placed=source.placed)
    if not plans:
        raise TightropeError(f"no plan was found for {graph!r} at any budget: try more --seconds.")
    points = [point(plan, whole_bytes(source.graph)) for plan in plans]
    if json:
        whole, base = whole_bytes(source.graph), source.graph.base_ns
        emit_json({"whole_bytes": whole, "base_seconds": base / 1e9, "points": points})
    else:
        print_curve(points)


def curve_plans(
    graph: Graph, seconds: float, machine: Machine | None = None, *, placed: bool = True
) -> tuple[Plan, ...]:
    """Plan at every budget of a curve, with progress on standard error.

    Raises:
        TightropeError: seconds are no number above 0, or beyond a million.
    """
    from tightrope.plan import plan_curve
    from tightrope.run.base.status import StatusLine

    check_seconds("--seconds", seconds)
    text = f"planning for a curve of budgets, about {seconds:.0f} s at most"
    with StatusLine(lines=True).task(text, 1) as tick:
        return plan_curve(graph, machine=machine, seconds=seconds, placed=placed, progress=tick)


def point(plan: Plan, whole: int) -> dict[str, Any]:
    """Figures of a plan on the curve as plain values."""
    said = plan.forecast
    return {
        "budget_bytes": plan.budget,
        "budget_percent": 100 * plan.budget / max(1, whole),
        "total_bytes": said.total,
        "seconds": said.ns / 1e9,
        "more_time_percent": said.tdi_percent,
        "num_recomputed": sum(reason.decision == "recomputed" for reason in plan.reasons),
        "proved": plan.certificate.proved,
    }


def print_curve(points: list[dict[str, Any]]) -> None:
    """Print the curve as a table, smallest budget last, with a bar for the time that is added."""
    target = console()
    mark = "#" if target.options.ascii_only else "\N{FULL BLOCK}"
    most = max(one["more_time_percent"] for one in points) or 1.0
    cells = [
        (
            f"{one['budget_percent']:.1f} %",
            format_bytes(one["budget_bytes"]),
            format_time(round(one["seconds"] * 1e9)),
            f"{one['more_time_percent']:.1f} %",
            _bar(one["more_time_percent"] / most, mark),
            str(one["num_recomputed"]),
            "yes" if one["proved"] else "no",
        )
        for one in reversed(points)
    ]
    heads = ("budget", "bytes", "step time", "more time", "", "recomputed", "proved fastest")
    show.rows(target, heads, cells)


def _bar(share: float, mark: str) -> str:
    """A bar of at most 30 characters."""
    return mark * round(_BAR * share)
