"""A1 to A4: how well an application has to be served, found by few runs, and the cheapest nets that serve it.

The application is the example of the plug-in: a robot between rows of crops, in closed loop. A1: its region
by 20 runs, against a grid of 1,089; islands at which it fails are found out.
A2: the chosen forms of its nets against torch-pruning that stops where a metric is 5 % worse, trained again
alike, on fresh drives; A2-1 and A2-2 are other seeds. A3: runs of the guided search against those of one that
begins with the cheapest, in narrower fields, with other nets and other bumps for each of three seeds. In the
field of the example the cheapest forms work, and there is nothing to search. A4: the nets as C on a board
within all limits at once, and refusals that name the one limit that excludes them.
"""

import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace as replace_struct
from rich.console import Console

from benchmarks.micro.rows import Row
from tightrope.cli.machines import find_machine
from tightrope.core import Limits
from tightrope.core.plugins import installed
from tightrope_differ.judge.quality import check_choice, check_region
from tightrope_differ.nets.board import Board
from tightrope_differ.nets.variants import bytes_of, pruned
from tightrope_differ.quality import Application, contains, find_region, limit_of, region_of
from tightrope_differ.quality.choose import choose, flops_of, forms_of, search_guided
from tightrope_differ.quality.show import choice
from tightrope_differ.values.quality import QualityReport, QualityRun

EXAMPLE: Final = Path(__file__).parents[2] / "packages/tightrope-differ/examples/crop_rows.py"
SIDE: Final = 33
NUM_RUNS: Final = 20
NUM_ISLANDS: Final = 20
WORSE: Final = 1.05
"""Up to this part of its error, pruning by accuracy goes on."""
NUM_FRESH: Final = 4
"""Runs of 64 drives that nobody has seen."""
NUM_SEEDS, STEPS, NARROWER, PART = 3, 100, 0.12, 0.6
"""Of A3: seeds, steps of training, metres by which plants are nearer, part of the runs of the peer."""


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    seeds = {"A2": 0, "A2-1": 1, "A2-2": 2}
    return {"A1": a1, **{name: partial(a2, name, seed) for name, seed in seeds.items()}, "A3": a3, "A4": a4}


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


def a2(bar: str, seed: int) -> list[Row]:
    app = example().with_nets(seed)
    forms, region = forms_of(app), find_region("crop rows", app, budget=NUM_RUNS)
    guided = choose(app, forms, region)
    peer = {name: _by_accuracy(app, name) for name in app.nets}
    ours = guided.nets
    if not ours:
        return [Row(bar, "forms are chosen", "none works", False)]
    margins = {
        name: [example().drive(example().SeenByNets(nets), seed=1000 + at) for at in range(NUM_FRESH)]
        for name, nets in (("ours", ours), ("peer", peer))
    }
    sizes, work = ([sum(map(cost, nets.values())) for nets in (ours, peer)] for cost in (bytes_of, _work))
    one, many = (_times(app, ours, peer, size) for size in (1, len(next(iter(app.samples.values())))))
    said = {name: ", ".join(f"{margin:.3f}" for margin in found) for name, found in margins.items()}
    return [
        Row(bar, ">= 2x faster than pruning by accuracy (CPU time on a batch of 64, as the drives run)",
            f"{guided.tried[-1].name}: {many[1] / many[0]:.1f}x, {one[1] / one[0]:.1f}x on one picture, "
            f"{work[1] / work[0]:.0f}x fewer operations", many[1] >= 2 * many[0],
            f"{many[1] * 1e3:.2f} ms, ours {many[0] * 1e3:.2f} ms"),
        Row(bar, ">= 5x smaller", f"{sizes[1] / sizes[0]:.1f}x: {sizes[0]:,} B", sizes[1] >= 5 * sizes[0],
            f"{sizes[1]:,} B"),
        Row(bar, "works on 256 fresh drives", f"margins {said['ours']} m", min(margins["ours"]) > 0,
            f"margins {said['peer']} m"),
    ]  # fmt: skip


def _by_accuracy(app: Application, name: str) -> Any:
    """Prune by torch-pruning as long as the metric is at most 5 % worse; the ratio is found by halving."""
    assert app.measure is not None
    assert app.tune is not None
    limit = app.measure(dict(app.nets))[name] * WORSE
    low, high, best = 0.0, 1.0, app.nets[name]
    for _ in range(4):
        ratio = (low + high) / 2
        made = app.tune(name, pruned(app.nets[name], app.samples[name], ratio))
        if app.measure({**app.nets, name: made})[name] <= limit:
            low, best = ratio, made
        else:
            high = ratio
    return best


def _work(net: Any) -> int:
    return flops_of(net, example().examples(1, 5)[0])


def _times(app: Application, ours: Any, peer: Any, size: int) -> list[float]:
    """Time both in turn, in seconds of CPU: medians."""
    found: list[list[float]] = [[], []]
    with torch.no_grad():
        for _ in range(41):
            for times, nets in zip(found, (ours, peer), strict=True):
                begun = time.thread_time()
                for name, net in nets.items():
                    net(app.samples[name][:size])
                times.append(time.thread_time() - begun)
    return [float(np.median(times)) for times in found]


@cache
def _short(seed: int) -> tuple[Application, Any]:
    """Train nets and their forms for a shorter time than the example does."""
    app = example().with_nets(seed, STEPS)
    return app, forms_of(app)


def a3() -> list[Row]:
    found: list[Row] = []
    for seed in range(NUM_SEEDS):
        app, forms = _short(seed)
        field = _narrow(app, seed)
        region, guided = search_guided("narrow", field, forms, budget=200)
        runs, flops = len(region.runs), guided.tried[-1].flops if guided.nets else 0
        most = math.ceil(runs / PART)
        plain = choose(field, forms, None, most_runs=most)
        blind_region, blind = search_guided("narrow", _blind(field), forms, budget=200)
        by_costs = blind.tried[-1].flops if blind.nets else 0
        said = f"seed {seed}: {runs} runs, {flops:,} operations"
        peer = f"has none after {most} runs"  # so that it needs at least one more
        if plain.nets:
            peer = f"{len(plain.tried)} runs, {plain.tried[-1].flops:,} operations"
        fewer = not plain.nets or (runs <= PART * len(plain.tried) and flops <= plain.tried[-1].flops)
        found += [
            Row("A3", "guided search takes <= 60 % of the runs of unguided search for the same speed", said,
                bool(guided.nets) and fewer, f"from the cheapest on: {peer}"),
            Row("A3", "the same against a search that takes costs of nets for their quality", said,
                flops > 0 and (runs <= PART * len(blind_region.runs) or not 0 < by_costs <= flops),
                f"by costs: {len(blind_region.runs)} runs, {by_costs:,} operations", own=True),
        ]  # fmt: skip
    return found


def _narrow(app: Application, seed: int) -> Application:
    """Bring plants nearer, with bumps that nobody has seen: 32 drives of 30 m; no run is made twice."""
    margins: dict[tuple[int, ...], float] = {}
    module = example()

    def run(nets: dict[str, Any]) -> float:
        key = tuple(map(id, nets.values()))
        if key not in margins:
            before = module.DRIVES, module.STEPS
            module.DRIVES, module.STEPS = 32, 200
            margins[key] = module.drive(module.SeenByNets(nets), seed=2000 + seed) - NARROWER
            module.DRIVES, module.STEPS = before
        return margins[key]

    return replace(app, perceive=lambda nets: nets, run=run)


def _blind(app: Application) -> Application:
    """Give cheapness in place of metrics: what is cheaper counts as worse."""

    def measure(nets: dict[str, Any]) -> dict[str, float]:
        return {name: 1 - np.log10(_work_of(net)) / 10 for name, net in nets.items()}

    return replace(app, metrics=dict.fromkeys(app.nets, (0.0, 1.0)), measure=measure)


@cache
def _work_of(net: Any) -> int:
    return _work(net)


def a4() -> list[Row]:
    claim = "quality, 4 KiB of RAM, 32 KiB of flash and 20 ms at once, run on the emulated board"
    if not installed("tightrope.boards"):
        return [Row("A4", claim, "tightrope-micro is not installed", False)]
    app = example().with_nets(0)
    forms, region = forms_of(app), find_region("crop rows", app, budget=NUM_RUNS)
    runs = [QualityRun([0.0, 0.0], 0.1), QualityRun([0.1, 0.001], -0.1)]
    perfect = region_of("perfect nets alone", region.metrics, runs)
    nrf = find_machine("nrf52840")
    board = Board(replace_struct(nrf, flash=32768), Limits((4096,), 0.02))
    search = choose(app, forms, region, board=board)
    if search.lowered is None:
        return [Row("A4", claim, "none works", False)]
    emulated = search.lowered.measured()
    limits = replace_struct(board.limits, quality=limit_of(region))
    report = QualityReport(region, "flops", search.tried, limits, board.machine.flash, emulated)
    check_choice(report)
    sees = example().SeenByNets(search.lowered.nets())
    fresh = [example().drive(sees, seed=1000 + at) for at in range(NUM_FRESH)]
    margins = ", ".join(f"{margin:.3f}" for margin in fresh)
    found = [
        Row("A4", claim, choice(report), not emulated.broken(limits, board.machine.flash)),
        Row("A4", "the nets as C work on 256 fresh drives", f"margins {margins} m", min(fresh) > 0),
    ]
    for name, ram, flash, seconds, given in (
        ("ram", 2560, 32768, 0.02, region),
        ("flash", 4096, 8192, 0.02, region),
        ("seconds", 4096, 32768, 0.001, region),
        ("quality", 4096, 32768, 0.02, perfect),
    ):
        tight = Board(replace_struct(nrf, flash=flash), Limits((ram,), seconds))
        tried = choose(app, forms, given, board=tight, most_runs=3).tried
        limits = replace_struct(tight.limits, quality=limit_of(given))
        refused = QualityReport(given, "flops", tried, limits, flash)
        check_choice(refused)
        found.append(
            Row("A4", f"a refusal names {name}", choice(refused),
                refused.chosen is None and refused.excluding[0] == [name])
        )  # fmt: skip
    return found
