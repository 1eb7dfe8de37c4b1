"""The command ``run``: a saved step in a process that captures nothing."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.core import InfeasibleError, TightropeError, format_bytes, parse_bytes
from tightrope.core.bundle import open_bundle

_SHORT = 12


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    examples = (
        "\b\nExamples:\n  tightrope run train.step\n  tightrope run train.step --steps 20 --json\n"
        "  tightrope run train.step --budget 8GiB --no-verify"
    )
    app.command(name="run", short_help="Run a saved step without capturing.", epilog=examples)(run)


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A step written by tightrope.save.")],
    steps: Annotated[int, typer.Option(min=1, max=1_000_000, help="Steps to make.")] = 1,
    budget: Annotated[
        str | None, typer.Option(help="Bytes to hold the process to; default: those of the file.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check the first step inline.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a saved step, exactly as it was saved, in a process that captures nothing.

    The file is data: the judge accepts what it would run, and only torch's own ops are called. Digests
    are of values, shapes and dtypes, so equal digests are equal bits.

    Exit code 0: it ran as forecast within the budget; 3: it did not.
    """
    if budget is not None:
        parse_bytes(budget)
    if not file.is_file():
        raise TightropeError(f"{str(file)!r} is not a file: give the path of a saved step.")
    with file.open("rb") as stream:  # torch takes seconds to import
        open_bundle(stream, str(file))
    import torch

    from tightrope.cli.saved_figures import run_file
    from tightrope.run.base.status import StatusLine

    try:
        found = run_file(file, steps=steps, budget=budget, verify=verify, status=StatusLine(lines=False))
    except torch.OutOfMemoryError as error:
        raise InfeasibleError(f"the step ran out of its budget: {error}") from None
    if json:
        emit_json(found)
    else:
        for line in _lines(found):
            console().print(line, markup=False, soft_wrap=True)
    if not found["as_forecast"]:
        raise typer.Exit(DOES_NOT_FIT)


def _lines(found: dict[str, Any]) -> list[str]:
    """What the command prints for people."""
    peak, forecast = found["observed_peak_bytes"], found["forecast_peak_bytes"]
    losses = found["losses"]
    said = "" if not losses else f", loss {losses[0]:.6g}" + (f" to {losses[-1]:.6g}" if losses[1:] else "")
    digests = "  ".join(f"{name} {text[:_SHORT]}" for name, text in found["digests"].items() if text)
    held = "held to" if found["enforced"] else "not enforced:"
    lines = [
        f"{found['name']}: {found['steps']} step{'s' * (found['steps'] > 1)} of {found['num_ops']} ops{said}",
        digests,
        f"peak {format_bytes(peak)} ({peak} bytes), forecast {format_bytes(forecast)} ({forecast} bytes)",
        f"budget {held} {format_bytes(found['budget_bytes'])}; "
        f"the file holds {format_bytes(found['persistent_bytes'])} of it",
        found["proof"],
        f"loaded in {found['load_seconds']:.2f} s, first step {found['first_step_seconds']:.2f} s"
        + (f", then {found['seconds_per_step']:.3f} s each" if found["steps"] > 1 else ""),
    ]
    lines += [
        f"note: {what} was {then} when it was saved and is {now}" for what, then, now in found["environment"]
    ]
    lines += [f"diverged: {text}" for text in found["divergences"]]
    return lines
