"""Commands over the public surface.

Exit codes: 0 it fits / the plan holds, 3 it does not, 2 error. Results go to standard output;
errors are one line on standard error. With ``--json`` a refusal (exit code 3) is a JSON object too.
"""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, cast

import typer

from tightrope.cli import (
    curve,
    estimating,
    report,
    saved,
    show,
)
from tightrope.cli.output import DOES_NOT_FIT, ERROR, FITS, console, emit_json
from tightrope.cli.plugins import CommandGroup
from tightrope.cli.sound import Sound, check_outputs, graph_beside, machine_of, read_sound
from tightrope.core import InfeasibleError, Plan, TightropeError, parse_bytes, printable
from tightrope.core.arguments import check_seconds
from tightrope.core.codec import dump_graph
from tightrope.core.plugins import absent, installed, loaded
from tightrope.core.units import shown
from tightrope.core.version import VERSION
from tightrope.core.writing import write_whole

_UsageError: Final = cast(type[Exception], typer.BadParameter.__mro__[1])
"""Of typer itself, or of click, by its version."""


class Order(StrEnum):
    """Orders of first runs that a plan may have."""

    GIVEN = "given"
    FREE = "free"


app = typer.Typer(
    name="tightrope",
    cls=CommandGroup,
    help="State the memory limit of a training step, get a plan, run it, and see the proof.",
    epilog="Exit codes: 0 it fits / the plan holds, 3 it does not, 2 error.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _examples(*lines: str) -> str:
    """Text for the end of a command's help; the mark keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"tightrope {VERSION}\n")
        raise typer.Exit(FITS)


def _positive(seconds: float | None) -> float | None:
    if seconds is not None:
        check_seconds("--seconds", seconds)
    return seconds


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Machine = Annotated[str | None, typer.Option(help="A profile, such as rtx4090-24gb, or a TOML file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, such as step.plan.json.")]
GraphFile = Annotated[
    Path | None,
    typer.Option(help="The graph that it was made for; default: NAME.graph.json next to NAME.plan.json."),
]


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """State the memory limit of a training step, get a plan, run it, and see the proof."""


estimating.register(app)


@app.command(
    short_help="Plan a training step under a budget.",
    epilog=_examples(
        "tightrope plan step.graph.json --budget 80% -o step.plan.json",
        "tightrope plan resnet50_train.json --budget 80% --planner anneal --order given --json",
        "tightrope plan train.py:build --budget 300MiB --save-graph step.graph.json -o step.plan.json",
        "tightrope plan train.py:build --budget 8GiB --machine rtx3060-12gb --json",
    ),
)
def plan(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH",
            help="A graph (ours, node-link JSON, a DTR log), or FILE.py:FUNCTION to capture and measure.",
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="Total bytes, or a share of what the given order needs: 8GiB, 80%.")
    ],
    planner: Annotated[str, typer.Option(help="auto, or the name of one planner.")] = "auto",
    order: Annotated[
        Order,
        typer.Option(help="First runs as given, or (tightrope-planners) in any valid order."),
    ] = Order.GIVEN,
    seconds: Annotated[
        float | None, typer.Option(callback=_positive, help="Seconds of search; default: by size.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the search.")] = 0,
    machine: Machine = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of known plans: those for smaller budgets are candidates.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan here.")] = None,
    save_graph: Annotated[Path | None, typer.Option(help="Write the captured graph here.")] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Plan an equal form of the model; it rounds differently.")
    ] = False,
    json: Json = False,
) -> None:
    """Plan a training step under a budget.

    With a machine, times come from its table; else a function's ops are measured here. The budget
    counts planned addresses; for third-party graphs it counts live bytes, as their authors do.
    """
    from tightrope.cli.machines import find_machine
    from tightrope.cli.planning import Request, plan_source
    from tightrope.cli.sources import rewritten_source, source_of

    parse_bytes(budget, whole=1)
    check_outputs([output, save_graph])
    profile = find_machine(machine) if machine is not None else None
    if rewrite:
        source, budget = rewritten_source(graph, profile, budget, seconds)
    else:
        source = source_of(graph, profile)
    if save_graph is not None:
        write_whole(save_graph, dump_graph(source.graph))
    request = Request(budget, planner, order.value, seconds, seed, profile, cache)
    try:
        found, spent = plan_source(source, request)
    except InfeasibleError as error:
        if json:
            emit_json(show.infeasible(error, planner=planner))
        _fail(str(error), DOES_NOT_FIT)
    if output is not None:
        found.save(output)
    if json:
        emit_json(show.plan_summary(source, found, cpu_seconds=spent))
    else:
        show.plan(console(), source.graph, found)


@app.command(
    short_help="Say why storages are kept or recomputed.",
    epilog=_examples(
        "tightrope explain step.plan.json",
        "tightrope explain step.plan.json --graph step.graph.json --top 50",
    ),
)
def explain(
    plan: PlanFile,
    graph: GraphFile = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="How many storages to list.")] = 20,
    save: Annotated[str | None, typer.Option(help="Say what saving these bytes costs.")] = None,
    machine: Machine = None,
    json: Json = False,
) -> None:
    """Say why each storage was kept, recomputed or paged, largest first.

    With the graph, storages have the names of their tensors and modules. The plug-in tightrope-trace adds
    where the time goes, and what is alive at the peak.
    """
    if graph is None and graph_beside(plan) is None:
        found, answers = Plan.load(plan), None
        text = found.explain(top=top)
    else:
        sound = read_sound(plan, graph, machine)
        found, answers = sound.plan, _answers(sound, save, top)
        text = found.explain(sound.graph, top=top)
    if json:
        reasons = sorted(found.reasons, key=lambda reason: (-reason.bytes, reason.storage))
        emit_json(
            {
                "budget_bytes": found.budget,
                "total_bytes": found.forecast.total,
                "forecast": found.forecast,
                "certificate": found.certificate,
                "reasons": reasons[:top],
                "answers": None if answers is None else answers.to_dict(),
            }
        )
    else:
        console().print(text, markup=False, soft_wrap=True)
        if answers is not None:
            for line in str(answers).splitlines():
                console().print(printable(line), markup=False, soft_wrap=True)


def _answers(sound: Sound, save: str | None, top: int) -> Any:
    """Ask the plug-in that answers about plans; None without it."""
    if entries := installed("tightrope.answers").get("plan", ()):
        return loaded("what answers about plans", entries)(sound, save, top)
    if save is not None:
        raise absent("--save", "trace")
    return None


@app.command(
    short_help="Check a plan independently.",
    epilog=_examples(
        "tightrope judge step.plan.json", "tightrope judge step.plan.json --graph step.graph.json --json"
    ),
)
def judge(plan: PlanFile, graph: GraphFile = None, machine: Machine = None, json: Json = False) -> None:
    """Check a plan with code that shares nothing with the planner.

    A plan that pages is checked on its machine: the one given, or the profile of that name.

    Exit code 0: it holds; 3: it does not.
    """
    from tightrope.formats import read_source
    from tightrope.lower import problems

    found = Plan.load(plan)
    path = graph or graph_beside(plan)
    if path is None:
        raise TightropeError(f"a plan is judged against its graph: add --graph FILE to judge {str(plan)!r}.")
    wrong = problems(read_source(path).graph, found, machine_of(found, machine))
    if json:
        emit_json({"holds": not wrong, "problems": wrong})
    elif wrong:
        console().print("\n".join(f"refused: {problem}" for problem in wrong), markup=False)
    else:
        console().print(
            "the plan holds: schedule, offsets, forecast, bound and reasons were re-derived and agree."
        )
    if wrong:
        raise typer.Exit(DOES_NOT_FIT)


@app.command(epilog=_examples("tightrope doctor", "tightrope doctor --json"))
def doctor(json: Json = False) -> None:
    """List what this installation can and cannot do."""
    from tightrope.cli.doctor import examine

    found = examine()
    if json:
        emit_json(found)
    else:
        show.rows(console(), ("what", "state"), list(found.items()))


curve.register(app)
report.register(app)
saved.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code.

    Args:
        arguments: what stands after the command's name; None = as given to the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if wrong := [word for word in given if not isinstance(word, str)]:
        _fail(
            f"arguments={shown(given)}: give texts, as on a command line; {shown(wrong[0])} is none.", ERROR
        )
    try:
        sys.exit(app(given, prog_name="tightrope", standalone_mode=False))
    except _UsageError as error:
        _refuse_usage(error)
    except InfeasibleError as error:
        _fail(str(error), DOES_NOT_FIT)
    except TightropeError as error:
        _fail(str(error), ERROR)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and error.filename
        if missing and Path(error.filename).parent.is_dir():  # else it may be an output, in no folder
            _fail(f"{str(error.filename)!r} is not a file: give the path of one that is there.", ERROR)
        what = error.strerror or str(error)
        where = f": {str(error.filename)!r}. Give another path" if error.filename else ""
        _fail(f"{what}{where}.", ERROR)


def _refuse_usage(error: Any) -> NoReturn:
    """Say what is wrong with a command line, and where its help is; without a command, print the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(ERROR)
    said, at = error.format_message(), error.ctx.command_path if error.ctx else "tightrope"
    _fail(f"{said[:300].rstrip('.')}. See {at} --help.", ERROR)


def _fail(message: str, code: int) -> NoReturn:
    """Write one line to standard error, or those of a refusal, and leave."""
    lines = message.splitlines() if code == DOES_NOT_FIT else [" ".join(message.split())]
    sys.stderr.write("\n".join(["tightrope: " + printable(lines[0]), *map(printable, lines[1:])]) + "\n")
    sys.exit(code)
