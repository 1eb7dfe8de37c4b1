"""The command ``run``: a saved step in a process that captures nothing."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.core import InfeasibleError, format_bytes
from tightrope.run.check import digest
from tightrope.run.saved import SavedStep, load
from tightrope.run.status import StatusLine

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


def run_file(
    path: Path,
    *,
    steps: int = 1,
    budget: str | None = None,
    verify: bool = True,
    status: StatusLine | None = None,
) -> dict[str, Any]:
    """Load a saved step, set its number of threads and its random state, and make some steps.

    Args:
        path: of the file.
        steps: at least 1.
        budget: see `load`.
        verify: whether the first step is checked inline.
        status: where progress is shown.

    Returns:
        Figures and digests as plain values, those of results after the last step.
    """
    began, cpu = time.perf_counter(), time.process_time()
    step = load(path, budget=budget, verify="first" if verify else None)
    if step.num_threads:
        torch.set_num_threads(step.num_threads)
    torch.set_rng_state(step.random_state)
    loaded = time.perf_counter()
    losses: list[float] = []
    results: dict[str, torch.Tensor] = {}
    first = loaded
    with (status or StatusLine(shown=False)).task("making steps", steps) as tick:
        for number in range(steps):
            results.clear()
            results = step()
            losses += [float(value) for value in list(results.values())[:1] if value.numel() == 1]
            if number == 0:
                first, cpu = time.perf_counter(), time.process_time() - cpu
            tick(number + 1, steps, "")
    end = time.perf_counter()
    return {
        "name": step.graph.name,
        "steps": steps,
        "losses": losses,
        **_digests(step, results),
        **_figures(step),
        "load_seconds": loaded - began,
        "first_step_seconds": first - loaded,
        "cpu_seconds": cpu,
        "seconds_per_step": (end - first) / (steps - 1) if steps > 1 else first - loaded,
    }


def _digests(step: SavedStep, results: dict[str, torch.Tensor]) -> dict[str, Any]:
    gradients = {name: value for name, value in results.items() if name.startswith("gradient of ")}
    outputs = {name: value for name, value in results.items() if name not in gradients}
    buffers = step.by_role("buffer")
    return {
        "digests": {
            "outputs": together(outputs),
            "gradients": together(gradients),
            "parameters": together(step.by_role("parameter")),
            "buffers": together(buffers),
            "state": together(step.by_role("state")),
            "random": together({"random": torch.get_rng_state()}),
        },
        "outputs": {name: digest(value) for name, value in outputs.items()},
        "gradients": {name.removeprefix("gradient of "): digest(v) for name, v in gradients.items()},
        "buffers": {name: digest(value) for name, value in buffers.items()},
    }


def _figures(step: SavedStep) -> dict[str, Any]:
    seen = step.observed
    return {
        "budget_bytes": seen.budget,
        "enforced": seen.enforced,
        "persistent_bytes": seen.persistent,
        "forecast_peak_bytes": seen.forecast_peak,
        "observed_peak_bytes": seen.observed_peak,
        "charged_bytes": seen.charged,
        "as_forecast": not seen.divergences and seen.observed_peak == seen.forecast_peak,
        "divergences": [str(divergence) for divergence in seen.divergences],
        "environment": [list(row) for row in step.environment],
        "num_ops": step.executable.num_runs,
        "executable": step.executable.fingerprint,
        "proof": str(step.proof),
    }


def together(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash tensors and their names; empty for none.

    >>> one, two = torch.ones(2), torch.zeros(2)
    >>> together({"a": one, "b": two}) == together({"b": two, "a": one})
    True
    """
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        found.update(f"{name}\0{digest(tensors[name])}\0".encode())
    return found.hexdigest() if tensors else ""


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
