"""What a saved step gives when it runs: digests of results, and figures, as plain values."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tightrope.run.base.status import StatusLine
from tightrope.run.execute.check import digest
from tightrope.run.load import SavedStep, load


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
