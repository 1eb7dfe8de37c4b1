"""S1 and S2: ten nets at five budgets, byte by byte and bit by bit.

Each request runs five consecutive training steps with SGD from one seed. The reference is the same
captured graph with a budget that needs no plan; plain eager is compared too.
"""

import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks._measure import Bits, HighWater, Loop, bits
from benchmarks.spine.bar import TEN, Bar, Column, Row, Settings, Verdict, count, share
from benchmarks.spine.nets import (
    UNLIMITED,
    Planned,
    eager_loop,
    eager_peak,
    fresh,
    native,
    of_peak,
    planned,
    smallest,
)
from tightrope.core import InfeasibleError, TightropeError, format_bytes
from tightrope.lower import problems

_SHARES = (0.9, 0.75, 0.6, 0.5)
_NUM_STEPS = 5


def training(loop: Loop) -> Loop:
    """Add an optimizer without state to a loop, so that weights move between the steps."""
    loop.optimizer = torch.optim.SGD([p for p in loop.model.parameters() if p.requires_grad], lr=0.01)
    return loop


def _references(name: str, settings: Settings) -> tuple[Bits, Bits]:
    eager = bits(training(eager_loop(fresh(name, settings))), num_steps=_NUM_STEPS)
    with planned(name, settings, lambda _: UNLIMITED) as net:
        return eager, bits(training(net.loop), num_steps=_NUM_STEPS)


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure one net at every budget."""
    peak = eager_peak(name, settings)
    eager, captured = _references(name, settings)
    asks = [(f"{portion:.0%}", of_peak(portion, peak)) for portion in _SHARES]
    for label, budget in [*asks, ("smallest", smallest(name, settings))]:
        row: Row = {"net": name, "ask": label, "eager_peak": peak}
        row["captured_differs_from_eager"] = captured.differences(eager)
        start = time.perf_counter()
        with planned(name, settings, budget) as net, HighWater(native()) as water:
            row |= {"budget": net.budget, "held": net.held}
            try:
                row |= {"accepted": True} | _steps(net, eager, captured)
            except InfeasibleError as error:
                row |= {"accepted": False, "smallest_found": error.smallest_found, "bound": error.lower_bound}
                row["note"] = _refused(row)
            except (TightropeError, torch.OutOfMemoryError) as error:
                row |= {"accepted": True, "failed": f"{type(error).__name__}: {error}"}
        row |= {"high_water": water.bytes, "seconds": time.perf_counter() - start}
        yield row


def _steps(net: Planned, eager: Bits, captured: Bits) -> Row:
    """Run the steps and gather what was forecast and what was seen."""
    gaps: list[int] = []

    def after() -> None:
        seen = net.report
        gaps.append(seen.forecast_peak - seen.observed_peak)

    found = bits(training(net.loop), num_steps=_NUM_STEPS, after=after)
    last = net.report
    wrong = problems(net.graph, net.plan)
    return {
        "gap": max(gaps, key=abs),
        "charged": last.observed_total,
        "room": net.budget - last.observed_total,
        "peak_share": last.observed_peak / max(1, net.budget - net.held),
        "arena": last.arena,
        "forecast_peak": last.forecast_peak,
        "tdi": last.overhead,
        "divergences": last.divergences,
        "differs_from_captured": found.differences(captured),
        "differs_from_eager": found.differences(eager),
        "judge": wrong,
        "verified": last.verified,
        "note": "; ".join(filter(None, (wrong[0] if wrong else "", found.differences(captured)))),
    }


def _refused(row: Row) -> str:
    found, bound = row["smallest_found"], row["bound"]
    least = "no smallest" if found is None else f"smallest {(found - row['held']) / row['eager_peak']:.3f}"
    return f"refused: {least}, proved >= {(bound - row['held']) / row['eager_peak']:.3f} of the eager peak"


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """S1: bytes as forecast and under the budget. S2: bits."""
    del settings
    accepted = [row for row in found if row.get("accepted")]
    exact = [_exact(row) for row in accepted]
    least = [bool(row.get("accepted")) for row in found if row.get("ask") == "smallest"]
    equal = ["failed" not in row and not row["differs_from_captured"] for row in accepted]
    plain = [
        "failed" not in row and not row["differs_from_eager"]
        for row in accepted
        if not row["captured_differs_from_eager"]
    ]
    refused = len(found) - len(accepted)
    return [
        Verdict(
            "S1",
            all(exact) and all(least) and bool(exact),
            f"{count(exact)} accepted requests within budget, as forecast, judged; "
            f"{refused} refused; smallest accepted {count(least)}",
        ),
        Verdict(
            "S2",
            all(equal) and all(plain) and bool(equal),
            f"{count(equal)} bit-equal to the captured graph, {count(plain)} to eager where that is",
        ),
    ]


def _exact(row: Row) -> bool:
    if "failed" in row:
        return False
    small = row["high_water"] <= row["budget"] and row["charged"] <= row["budget"]
    return small and not row["gap"] and not row["divergences"] and not row["judge"]


def _flag(differences: str) -> str:
    return differences or "equal"


BAR = Bar(
    ids=("S1", "S2"),
    title="Bytes and bits at five budgets: held + reserve of 65,536 B + share of the eager peak",
    columns=(
        Column("net", "net", 12),
        Column("ask", "ask", 8),
        Column("eager_peak", "eager peak", 11, format_bytes),
        Column("budget", "budget", 11, format_bytes),
        Column("gap", "gap B", 7),
        Column("room", "room B", 10),
        Column("tdi", "TDI %", 6, lambda value: f"{value:.1f}"),
        Column("peak_share", "peak/rest", 9, share),
        Column("differs_from_captured", "captured", 9, _flag),
        Column("differs_from_eager", "eager", 9, _flag),
        Column("divergences", "div", 3),
        Column("note", "note", 40),
    ),
    cases=lambda settings: settings.choose(*TEN),
    rows=rows,
    verdicts=verdicts,
)
