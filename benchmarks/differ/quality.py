"""A1: how well an application has to be served, found by few runs.

The application is the example of the plug-in: a robot between rows of crops, in closed loop. A1: its region
by 20 runs, against a grid of 1,089; islands at which it fails are found out.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from benchmarks.micro.rows import Row
from tightrope_differ.judge.quality import check_region
from tightrope_differ.quality import contains, find_region

EXAMPLE: Final = Path(__file__).parents[2] / "packages/tightrope-differ/examples/crop_rows.py"
SIDE: Final = 33
NUM_RUNS: Final = 20
NUM_ISLANDS: Final = 20


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    return {"A1": a1}


@cache
def example() -> Any:
    """Import the example."""
    spec = importlib.util.spec_from_file_location("crop_rows", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a1() -> list[Row]:
    app = example().application()
    found = find_region("crop rows", app, budget=NUM_RUNS)
    check_region(found)
    begun = time.process_time()
    good = inside = wrong = broken = 0
    works = np.zeros((SIDE, SIDE), bool)
    for x in range(SIDE):
        for y in range(SIDE):
            errors = {
                name: (at + 0.5) / SIDE * worst
                for at, (name, (_, worst)) in zip((x, y), app.metrics.items(), strict=True)
            }
            works[x, y] = app.run(app.inject(errors)) > 0
            accepted = contains(found, errors)
            good, inside = good + works[x, y], inside + (works[x, y] and accepted)
            wrong += accepted and not works[x, y]
            broken += works[x, y] and not works[: x + 1, : y + 1].all()
    took = time.process_time() - begun
    islands = _islands()
    return [
        Row("A1", f"{NUM_RUNS} runs find >= 85 % of the accepted area of a grid of {SIDE**2:,} runs",
            f"{inside / good:.1%} of {good} places that work; the grid took {took:.0f} s and has {broken} "
            "places that are not monotone", inside >= 0.85 * good,
            f"a grid with {SIDE**2 / NUM_RUNS:.0f}x the runs"),
        Row("A1", "0 wrong accepts", str(wrong), wrong == 0),
        Row("A1", "an application that fails on an island is found out",
            f"{sum(islands)} of {len(islands)} islands of 15 to 30 % of both axes",
            sum(islands) > len(islands) / 2),
    ]  # fmt: skip


def _islands() -> list[bool]:
    """Let the application fail inside of a box that lies where it works, and tell whether that is noticed."""
    app, rng, found = example().application(), np.random.default_rng(0), []
    ends = np.array([worst for _, worst in app.metrics.values()])
    for _ in range(NUM_ISLANDS):
        low = rng.uniform(0.02, 0.25, 2) * ends
        high = low + rng.uniform(0.15, 0.3, 2) * ends

        def inject(errors: dict[str, float], low: Any = low, high: Any = high) -> Any:
            values = np.array(list(errors.values()))
            return None if ((low <= values) & (values <= high)).all() else app.inject(errors)

        def run(sees: Any) -> float:
            return -0.05 if sees is None else float(app.run(sees))

        found.append(
            bool(find_region("island", replace(app, inject=inject, run=run), budget=NUM_RUNS).clashes)
        )
    return found
