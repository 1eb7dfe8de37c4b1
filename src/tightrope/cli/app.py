"""Commands over the public surface.

Exit codes: 0 it fits / the plan holds, 3 it does not fit, 2 error.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tightrope.cli import show
from tightrope.core import InfeasibleError, Machine, TightropeError, parse_bytes
from tightrope.core.codec import dump_graph, dump_plan, load_graph, load_plan, read_file

FITS, ERROR, DOES_NOT_FIT = 0, 2, 3

app = typer.Typer(
    name="tightrope",
    help="State the memory limit of a training step, get a plan, run it, and see the proof.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seed = Annotated[int, typer.Option(help="Seed of the search.")]
Seconds = Annotated[float | None, typer.Option(help="Seconds of search; default: the usual effort.")]


def console() -> Console:
    """Standard output: colours on a terminal only, and never with NO_COLOR."""
    return Console(
        no_color=bool(os.environ.get("NO_COLOR")), highlight=False, soft_wrap=not sys.stdout.isatty()
    )


def emit_json(value: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")


@app.command()
def demo(
    net: Annotated[str | None, typer.Option(help="gpt2 or resnet; default: both.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="One budget, such as 60MiB or 60%; default: three.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Training steps per row.")] = 20,
    json: Json = False,
) -> None:
    """Train small networks on real data at several budgets and print what happened.

    Examples: tightrope demo | tightrope demo --net resnet --budget 60%
    """
    from tightrope.cli.demo import run_demo

    rows = run_demo(net=net, budget=budget, steps=steps, console=None if json else console())
    if json:
        emit_json({"rows": rows})
    if not all(row["fits"] for row in rows):
        raise typer.Exit(DOES_NOT_FIT)


@app.command()
def estimate(
    target: Annotated[str, typer.Argument(help="FILE.py:FUNCTION that returns (model, inputs).")],
    machine: Annotated[
        str | None, typer.Option(help="A machine profile (TOML); default: this machine.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Bytes to fit in; default: the machine's memory.")
    ] = None,
    json: Json = False,
) -> None:
    """Tell whether a training step fits, and what is alive at its peak; nothing is run.

    The function builds the model and one batch; the forward returns the loss. The step is captured
    on shapes alone. Exit code 0: it fits without a plan; 3: it does not.

    Example: tightrope estimate train.py:build --budget 8GiB
    """
    from tightrope.cli.estimate import estimate_step

    profile = Machine.load(machine) if machine else Machine.here()
    limit = profile.tiers[0].bytes if budget is None else budget
    found = estimate_step(target, limit, profile)
    if json:
        emit_json(found)
    else:
        show.estimate(console(), found)
    if not found["fits"]:
        raise typer.Exit(DOES_NOT_FIT)


@app.command()
def plan(
    graph: Annotated[
        Path, typer.Argument(help="A graph file (JSON), or FILE.py:FUNCTION to capture and measure.")
    ],
    budget: Annotated[
        str, typer.Option(help="Total bytes, or a share of what the given order needs: 8GiB, 80%.")
    ],
    planner: Annotated[str, typer.Option(help="Name of the planner.")] = "auto",
    seconds: Seconds = None,
    seed: Seed = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan here.")] = None,
    save_graph: Annotated[Path | None, typer.Option(help="Write the captured graph here.")] = None,
    json: Json = False,
) -> None:
    """Plan a graph under a budget.

    Examples: tightrope plan step.graph.json --budget 80% -o step.plan.json
              tightrope plan train.py:build --budget 300MiB --save-graph step.graph.json -o step.plan.json
    """
    from tightrope.cli.estimate import graph_of
    from tightrope.plan import solve

    found_graph = graph_of(str(graph))
    if save_graph is not None:
        save_graph.write_bytes(dump_graph(found_graph))
    whole = solve(found_graph, budget=2**60, planner="given").forecast
    asked = parse_bytes(int(budget) if budget.isdigit() else budget, whole=whole.persistent + whole.peak)
    with show.searching(asked) as report:
        found = solve(found_graph, budget=asked, planner=planner, seconds=seconds, seed=seed, progress=report)
    if output is not None:
        output.write_bytes(dump_plan(found))
    if json:
        emit_json(show.plan_summary(found_graph, found))
    else:
        show.plan(console(), found_graph, found)


@app.command()
def explain(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    graph: Annotated[Path | None, typer.Option(help="The graph that it was made for, for names.")] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="How many storages to list.")] = 20,
    json: Json = False,
) -> None:
    """Say why each storage was kept, recomputed or paged, largest first.

    Example: tightrope explain step.plan.json --graph step.graph.json
    """
    found = load_plan(read_file(plan))
    known = load_graph(read_file(graph)) if graph is not None else None
    reasons = sorted(found.reasons, key=lambda reason: (-reason.bytes, reason.storage))
    if json:
        emit_json({"forecast": found.forecast, "certificate": found.certificate, "reasons": reasons})
        return
    show.reasons(console(), found, known, reasons[:top])


@app.command()
def judge(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    graph: Annotated[Path, typer.Option(help="The graph that it was made for.")],
    json: Json = False,
) -> None:
    """Check a plan with code that shares nothing with the planner. Exit code 0: it holds; 3: it does not.

    Example: tightrope judge step.plan.json --graph step.graph.json
    """
    from tightrope.judge import problems

    found = problems(load_graph(read_file(graph)), load_plan(read_file(plan)))
    if json:
        emit_json({"holds": not found, "problems": found})
    elif found:
        console().print("\n".join(f"refused: {problem}" for problem in found), markup=False)
    else:
        console().print(
            "the plan holds: schedule, offsets, forecast, bound and reasons were re-derived and agree."
        )
    if found:
        raise typer.Exit(DOES_NOT_FIT)


@app.command()
def doctor(json: Json = False) -> None:
    """List what this installation can and cannot do."""
    from tightrope.cli.doctor import examine

    found = examine()
    if json:
        emit_json(found)
        return
    table = Table("what", "state", box=None, pad_edge=False)
    for name, state in found.items():
        table.add_row(name, str(state))
    console().print(table)


def main() -> None:
    """Run the command line; our own errors become one line and exit code 2 or 3."""
    err = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")), highlight=False, soft_wrap=True)
    try:
        app()
    except InfeasibleError as error:
        err.print(f"tightrope: {error}", markup=False)
        sys.exit(DOES_NOT_FIT)
    except TightropeError as error:
        err.print(f"tightrope: {error}", markup=False)
        sys.exit(ERROR)
    except OSError as error:
        err.print(f"tightrope: {error.strerror or error}: {error.filename!r}.", markup=False)
        sys.exit(ERROR)
