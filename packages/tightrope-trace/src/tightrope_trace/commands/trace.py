"""The commands ``trace`` (open, ask, export) and ``record`` (run and record)."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from tightrope.cli.sound import check_outputs, read_sound
from tightrope.core import Bytes, Module, TightropeError, Trace, parse_bytes, printable
from tightrope.core.codec import dump_graph
from tightrope.core.trace_check import MAX_REPEATS
from tightrope.core.units import shown
from tightrope.core.writing import write_whole
from tightrope_trace.commands.explaining import smaller_plan

if TYPE_CHECKING:
    from tightrope_trace import DryRun

_TRACE_LIMIT: Final = 2**30
_TRACE = """\b
Examples:
  tightrope trace step.plan.json --save 100MB
  tightrope trace run.trace --against yesterday.trace --json
  tightrope trace profile.json --model train.py:build -o run.trace --perfetto run.perfetto.json
  tightrope trace run.trace --snapshot snapshot.pickle"""
_RECORD = """\b
Examples:
  tightrope record train.py:build -o eager.trace
  tightrope record train.py:build --budget 80% --save-plan step.plan.json --save-graph step.graph.json
  tightrope record train.py:build --budget 80% --fuse -o fused.trace
  tightrope record train.py:build --plan step.plan.json -o planned.trace"""


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("trace", short_help="Ask and export a plan, a run or a profile.", epilog=_TRACE)(trace)
    app.command("record", short_help="Run a training step and record it.", epilog=_RECORD)(record)


def trace(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A plan, a trace, or a profile by torch.profiler."),
    ],
    graph: Annotated[
        Path | None, typer.Option(help="The plan's graph; default: NAME.graph.json next to NAME.plan.json.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="FILE.py:FUNCTION that builds the model of a profile.")
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Do not call that model: tell modules by names and order.")
    ] = False,
    machine: Annotated[str | None, typer.Option(help="Needed by plans that page.")] = None,
    save: Annotated[str | None, typer.Option(help="Say what saving these bytes costs.")] = None,
    against: Annotated[Path | None, typer.Option(help="An earlier plan, trace or profile.")] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="Modules and buffers to list.")] = 10,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write a trace file.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write Chrome JSON for Perfetto.")] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Write a PyTorch memory snapshot.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say where time and bytes go, what would save some, and what changed; export for other viewers."""
    from tightrope_trace import diff, explain, to_chrome, to_snapshot
    from tightrope_trace import save as save_trace

    check_outputs([output, perfetto, snapshot], [file, graph, against])
    _check_used(file, against, graph=graph, model=model, machine=machine)
    asked: Bytes = parse_bytes(save, name="save") if save is not None else 0
    opened = partial(open_trace, graph=graph, model=model, machine=machine, names_only=names_only)
    found = opened(file, save=asked)
    answers = explain(found, save=asked, top=top)
    before = opened(against) if against is not None else None
    changed = diff(before, found) if before is not None else None
    if output is not None:
        save_trace(found, output)
    exports: tuple[tuple[Path | None, Callable[[Trace], bytes]], ...] = (
        (perfetto, to_chrome), (snapshot, to_snapshot),
    )  # fmt: skip
    for path, export in exports:
        if path is not None:
            write_whole(path, export(found))
    for warning in _warnings(found, before):
        sys.stderr.write(f"tightrope: careful: {printable(warning)}\n")
    if json:
        value = answers.to_dict() | ({"changed": changed.to_dict()} if changed is not None else {})
        _print_json(value)
        return
    _print(f"{answers}\n" + (f"against {against}:\n{changed}\n" if changed is not None else ""))


def _check_used(file: Path, against: Path | None, *, graph: object, model: object, machine: object) -> None:
    """Refuse options that neither file would use."""
    from tightrope_trace.chrome import looks_like_profile
    from tightrope_trace.columns import is_trace

    files = [path for path in (file, against) if path is not None and not is_trace(path)]
    profiles = sum(map(looks_like_profile, files))
    for name, value, whose, used in (
        ("--graph", graph, "a plan", len(files) - profiles),
        ("--machine", machine, "a plan", len(files) - profiles),
        ("--model", model, "a profile", profiles),
    ):
        if value is not None and not used:
            raise TightropeError(
                f"{name} {shown(str(value))} goes with {whose}, and {str(file)!r} is none: leave it out."
            )


def record(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns (model, inputs).")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the trace here.")] = Path("run.trace"),
    budget: Annotated[
        str | None, typer.Option(help="Run a plan for this budget; default: run eagerly.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Run this plan, made by tightrope plan or --save-plan.")
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(help="The plan's graph; default: NAME.graph.json next to NAME.plan.json.")
    ] = None,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="Run stretches of the plan compiled, where that is faster.")
    ] = False,
    steps: Annotated[
        int, typer.Option(min=1, max=MAX_REPEATS + 1, help="How many to record, after two that are not.")
    ] = 5,
    save_plan: Annotated[Path | None, typer.Option(help="Write the plan that ran here.")] = None,
    save_graph: Annotated[Path | None, typer.Option(help="Write the graph of that plan here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run training steps as they are, under a budget, or by a plan, and record them.

    The trace is that of the last step, with the times of the steps before it. So trace --against can
    compare medians, and tell differences from noise. The forward returns the loss. Nothing is updated:
    there is no optimizer. A plan is judged first, and runs at its own addresses, for its own graph.
    Fused, results are equal within a tolerance, and a stretch is one event. No other command fuses:
    estimate, plan and curve run no step to measure, and demo compares bits with eager.
    """
    from tightrope.cli.target import build

    check_outputs([output, save_plan, save_graph], [plan, graph])
    _check_request(plan, budget, graph, {"--save-plan": save_plan, "--save-graph": save_graph}, fuse=fuse)
    if budget is not None:
        parse_bytes(budget, whole=1)
    sound = read_sound(plan, graph) if plan is not None else None
    built = build(target)
    from tightrope_trace import explain
    from tightrope_trace import save as save_trace
    from tightrope_trace.commands.recording import RecordingRequest, recorded

    ran = recorded(built, RecordingRequest(budget, sound, fuse, steps))
    found = ran.trace
    save_trace(found, output)
    if save_plan is not None:
        ran.plan.save(save_plan)
    if save_graph is not None:
        write_whole(save_graph, dump_graph(ran.graph))
    answers = explain(found)
    if json:
        _print_json(answers.to_dict() | {"file": str(output)})
    else:
        _print(f"{answers}\n{output}: {len(found.events)} events, {len(found.buffers)} buffers\n")


def _check_request(
    plan: Path | None,
    budget: str | None,
    graph: Path | None,
    save: dict[str, Path | None],
    *,
    fuse: bool,
) -> None:
    """Refuse options that contradict each other; ``save`` has those that write what a plan ran with.

    Raises:
        TightropeError: says which, and what to give instead.
    """
    if plan is not None and budget is not None:
        raise TightropeError("--plan has a budget of its own: leave out --budget, or leave out --plan.")
    if graph is not None and plan is None:
        raise TightropeError("--graph is the graph of a plan: add --plan FILE.")
    if fuse and budget is None:
        raise TightropeError("--fuse compiles stretches of a plan for a budget: add --budget.")
    for option, path in save.items():
        if path is not None and plan is None and budget is None:
            raise TightropeError(
                f"{option} {shown(str(path))}: an eager run has no plan to write, and no graph: "
                "add --budget, or --plan FILE."
            )


def open_trace(
    path: Path,
    *,
    graph: Path | None = None,
    model: str | None = None,
    machine: str | None = None,
    names_only: bool = False,
    save: Bytes = 0,
) -> Trace:
    """Read a trace file, simulate a plan file, or annotate a profile.

    Args:
        path: of the file.
        graph: of a plan; default: the one beside it.
        model: ``FILE.py:FUNCTION`` that builds the model of a profile.
        machine: needed by plans that page.
        names_only: do not call the model to see which modules make which ops.
        save: of a plan, also plan for so many bytes less.

    Raises:
        TightropeError: the file is none of these.
    """
    from tightrope.core.codec import read_file
    from tightrope.core.files import naming
    from tightrope.record import forecast
    from tightrope_trace import load, read_profile
    from tightrope_trace.chrome import looks_like_profile
    from tightrope_trace.columns import is_trace

    if is_trace(path):
        data = read_file(path, limit=_TRACE_LIMIT)
        with naming(path):
            return load(data)
    if looks_like_profile(path):
        slices = read_profile(path)
        tree, run = _model_of(model, names_only=names_only)
        from tightrope_trace import annotate  # torch takes seconds to import

        return annotate(slices, name=path.name, run=run, **({} if tree is None else {"modules": tree}))
    sound = read_sound(path, graph, machine)
    return forecast(sound.graph, sound.plan, machine=sound.machine, others=smaller_plan(sound, save))


def _model_of(target: str | None, *, names_only: bool) -> "tuple[tuple[Module, ...] | None, DryRun | None]":
    """Build the model of a profile and call it once without values; its modules alone where that fails."""
    from tightrope.cli.target import build

    if target is None:
        return None, None
    built = build(target)
    from tightrope_trace import dry_run, tree_of

    if not names_only:
        try:
            return None, dry_run(built.model, built.args, built.kwargs)
        except TightropeError as error:
            sys.stderr.write(
                f"tightrope: careful: modules come from names and order alone: {printable(str(error))}\n"
            )
    return tree_of(built.model), None


def _warnings(*traces: Trace | None) -> list[str]:
    """What to know before reading answers about traces."""
    return [warning for one in traces if one is not None and (warning := one.summary.warning())]


def _print(text: str) -> None:
    """Write lines; names come from files, so what a terminal would obey is escaped."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in text.splitlines()))


def _print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n")
