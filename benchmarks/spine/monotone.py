"""S6: time and peak over twenty budgets.

The budgets are planned in random order with one cache of plans, then asked again from the smallest
up: the forecast time may never rise. Then each budget is run through ``compile`` and its bytes are
counted.
"""

import random
from collections.abc import Iterator, Sequence

import torch

from benchmarks._measure import HighWater, bits
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict
from benchmarks.spine.nets import UNLIMITED, native, planned
from tightrope.core import Bytes, Graph, TightropeError, format_bytes
from tightrope.plan import PlanCache, smallest, solve
from tightrope.run.ledger.room import RESERVE

_NUM_BUDGETS = 20


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Plan, ask again, and run every budget."""
    with planned(name, settings, lambda _: UNLIMITED) as net:
        bits(net.loop, num_steps=1)
        graph = net.graph
    budgets = _budgets(graph)
    cache = PlanCache()
    asked = list(budgets)
    random.Random(0).shuffle(asked)
    for budget in asked:
        solve(graph, budget=budget, cache=cache)
    before = None
    for number, budget in enumerate(budgets):
        forecast = solve(graph, budget=budget, cache=cache).forecast
        row: Row = {
            "net": name,
            "number": number + 1,
            "above": budget - graph.persistent,
            "arena": forecast.arena,
            "tdi": forecast.tdi_percent,
            "inversion": before is not None and forecast.ns > before,
        }
        before = forecast.ns
        yield row | _run(name, settings, budget - graph.persistent)


def _budgets(graph: Graph) -> list[Bytes]:
    """Twenty totals, evenly spaced from the smallest found to what the given order needs."""
    low = smallest(graph).forecast.total
    high = solve(graph, budget=UNLIMITED, planner="given").forecast.total
    return [low + (high - low) * k // (_NUM_BUDGETS - 1) for k in range(_NUM_BUDGETS)]


def _run(name: str, settings: Settings, above: Bytes) -> Row:
    tangent = 64
    with (
        planned(name, settings, lambda before: before + RESERVE + tangent + above) as net,
        HighWater(native()) as water,
    ):
        try:
            bits(net.loop, num_steps=2)
            last = net.report
        except (TightropeError, torch.OutOfMemoryError) as error:
            return {"failed": f"{type(error).__name__}: {error}", "note": str(error)}
    return {
        "room": net.budget - max(water.bytes, last.observed_total),
        "gap": last.forecast_peak - last.observed_peak,
        "observed": last.observed_peak,
    }


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """No inversion, no budget exceeded, no request failed."""
    del settings
    inversions = sum(row["inversion"] for row in found)
    failed = sum("failed" in row for row in found)
    exceeded = sum(row.get("room", 0) < 0 for row in found)
    text = f"{len(found)} budgets: {inversions} inversions, {exceeded} exceeded, {failed} failed"
    return [Verdict("S6", bool(found) and not inversions + failed + exceeded, text)]


BAR = Bar(
    ids=("S6",),
    title="Twenty budgets from the smallest to 100 %, planned in random order with one cache",
    columns=(
        Column("net", "net", 18),
        Column("number", "no.", 4),
        Column("above", "for the step", 12, format_bytes),
        Column("arena", "arena", 11, format_bytes),
        Column("observed", "observed", 11, format_bytes),
        Column("gap", "gap B", 6),
        Column("room", "room B", 10),
        Column("tdi", "TDI %", 6, lambda value: f"{value:.2f}"),
        Column("inversion", "inversion", 9),
        Column("note", "note", 40),
    ),
    cases=lambda settings: settings.choose("gpt2_small_vocab", "resnet18"),
    rows=rows,
    verdicts=verdicts,
)
