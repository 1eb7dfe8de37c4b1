"""The ``report`` command: one offline page from a plan or a trace."""

from pathlib import Path
from typing import Annotated, Final, cast

import msgspec
import typer

from tightrope.cli.curve import SECONDS, curve_plans
from tightrope.cli.output import console, emit_json
from tightrope.cli.sound import check_outputs, sound_of
from tightrope.core import FingerprintError, Plan, TightropeError, Trace
from tightrope.core.arguments import check_seconds
from tightrope.core.errors import PlanFileError
from tightrope.core.plugins import absent, installed, loaded
from tightrope.core.recognize import TRACE_FILE
from tightrope.core.writing import write_whole

_TRACES: Final = "tightrope.traces"
"""Entry points; ``file`` names what reads a trace from a path."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    examples = (
        "\b\nExamples:\n  tightrope report step.plan.json -o run.html\n"
        "  tightrope report step.plan.json --also smaller.plan.json --also larger.plan.json -o run.html\n"
        "  tightrope report run.trace --forecast step.plan.json --against yesterday.trace -o run.html"
    )
    app.command(name="report", short_help="Write one offline page about a plan or a run.", epilog=examples)(
        report
    )


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A plan file or a trace file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the page here.")] = Path("run.html"),
    graph: Annotated[
        Path | None, typer.Option(help="The plan's graph; default: NAME.graph.json next to NAME.plan.json.")
    ] = None,
    forecast: Annotated[
        Path | None, typer.Option(help="A plan or trace, drawn as a ghost behind an observed trace.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="An earlier plan or trace: the page lists what changed.")
    ] = None,
    also: Annotated[
        list[Path] | None, typer.Option(help="A plan of the same graph for another budget; repeat it.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="Needed by plans that page: a profile or TOML file.")
    ] = None,
    curve: Annotated[
        bool, typer.Option(help="Plan at other budgets too: the curve of time against budget.")
    ] = True,
    seconds: Annotated[float, typer.Option(help="Seconds of search for that curve.")] = SECONDS,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one HTML page that opens from disk and explains every byte of a plan or a run.

    If RUN or --forecast is a plan with a graph, the page has the curve of time against budget.
    """
    from tightrope.view import page

    check_outputs([output], [run, graph, forecast, against, *(also or ())])
    if curve:
        check_seconds("--seconds", seconds)
    for path in (forecast, against, *(also or ())):
        if path is not None and not path.is_file():
            raise TightropeError(f"{str(path)!r} is not a file: give the path of one that is there.")
    before = _trace(against, graph, machine) if against is not None else None
    search = seconds if curve else 0.0
    shown = _trace(run, graph, machine, tuple(also or ()), search)
    wanted = search if not shown.summary.curve else 0.0
    ghost = _trace(forecast, graph, machine, seconds=wanted) if forecast is not None else None
    if ghost is not None and ghost.summary.fingerprint != shown.summary.fingerprint:
        raise FingerprintError(
            f"{str(forecast)!r} is of another graph than {str(run)!r}. A forecast is drawn behind a run of "
            "its own plan; use --against to compare two runs."
        )
    if ghost is not None and not shown.summary.curve:
        known = msgspec.structs.replace(shown.summary, curve=ghost.summary.curve, whole=ghost.summary.whole)
        shown = msgspec.structs.replace(shown, summary=known)
    write_whole(output, page(shown, forecast=ghost, against=before))
    size = output.stat().st_size
    if json:
        emit_json(
            {"page": str(output), "ops": len(shown.events), "buffers": len(shown.buffers), "bytes": size}
        )
    else:
        text = f"{output}: {len(shown.events)} ops, {len(shown.buffers)} buffers, {size} bytes"
        console().print(text, markup=False, soft_wrap=True)


def _trace(
    path: Path,
    graph: Path | None,
    machine: str | None,
    also: tuple[Path, ...] = (),
    seconds: float = 0.0,
) -> Trace:
    """Read a trace file, or simulate a plan file and search that long for plans at other budgets."""
    from tightrope.record import forecast

    with path.open("rb") as file:
        is_trace = file.read(len(TRACE_FILE)) == TRACE_FILE
    if is_trace:
        if also:
            raise TightropeError("--also adds plans to a plan; a trace file has its own list of budgets.")
        if not (entries := installed(_TRACES).get("file", ())):
            raise absent("reading a trace file", "trace")
        return cast("Trace", loaded("the reader of trace files", entries)(path))
    try:
        plan = Plan.load(path)
    except PlanFileError as error:
        raise PlanFileError(f"{str(path)!r} is neither a trace file nor a plan: {error}") from error
    sound = sound_of(plan, path, graph, machine)
    others = tuple(Plan.load(other) for other in also)
    if seconds:
        known = [sound.plan.budget, *(other.budget for other in others)]
        found = curve_plans(sound.graph, seconds, placed=sound.plan.placed)
        # a budget of 70 % is a plan for 70 %, whichever way the last byte was rounded
        near = max((plan.budget for plan in found), default=0) // 1000
        others += tuple(plan for plan in found if all(abs(plan.budget - one) > near for one in known))
    return forecast(sound.graph, sound.plan, machine=sound.machine, others=others)
