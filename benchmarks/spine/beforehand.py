"""S13: the allocator's limit stands before ``compile`` is called.

The budget is 60 % of the eager peak, or 5 % above the smallest where that is more. Prices are
measured anew: the cache folder is empty. Nothing may go above the limit, from the capture on.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks._measure import HighWater, bits
from benchmarks.spine.bar import TEN, Bar, Column, Row, Settings, Verdict, count, share
from benchmarks.spine.budgets import training
from benchmarks.spine.nets import (
    UNLIMITED,
    eager_peak,
    native,
    of_peak,
    planned,
    reachable,
)
from tightrope.core import TightropeError, format_bytes

_SHARE = 0.6
_NUM_STEPS = 5


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure one net."""
    peak = eager_peak(name, settings)
    with planned(name, settings, lambda _: UNLIMITED) as net:
        want = bits(training(net.loop), num_steps=_NUM_STEPS)
        unplanned = net.report.observed_peak
    portion = reachable(name, settings, _SHARE, peak)
    row: Row = {"net": name, "share": portion, "unplanned_peak": unplanned, "eager_peak": peak}
    with (
        _empty_cache(),
        HighWater(native()) as water,
        planned(name, settings, of_peak(portion, peak), limited=True) as net,
    ):
        row |= {"budget": net.budget, "held": net.held, "limit": native().limit}
        try:
            found = bits(training(net.loop), num_steps=_NUM_STEPS)
            row |= {"differs": found.differences(want), "divergences": net.report.divergences}
            row["note"] = net.report.verified.rpartition(" to ")[2]
        except (TightropeError, torch.OutOfMemoryError) as problem:
            row["failed"] = row["note"] = f"{type(problem).__name__}: {problem}"
    row["charged"] = water.bytes
    row["room"] = row["budget"] - water.bytes
    row["ok"] = "failed" not in row and row["room"] >= 0 and not row["differs"] and not row["divergences"]
    yield row


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Forget every price; libraries that are loaded stay loaded."""
    before = os.environ.get("TIGHTROPE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TIGHTROPE_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["TIGHTROPE_CACHE"]
            if before is not None:
                os.environ["TIGHTROPE_CACHE"] = before


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Every net trains under a limit that was there first."""
    del settings
    good = [row["ok"] for row in found]
    return [Verdict("S13", all(good) and bool(good), f"{count(good)} nets finish without a byte above")]


BAR = Bar(
    ids=("S13",),
    title="The limit is set to the budget before compile is called; prices measured anew; 5 steps",
    columns=(
        Column("net", "net", 12),
        Column("share", "share", 6, share),
        Column("budget", "budget", 11, format_bytes),
        Column("unplanned_peak", "unplanned", 11, format_bytes),
        Column("charged", "charged", 11, format_bytes),
        Column("room", "room B", 9),
        Column("differs", "bits", 8, lambda text: text or "equal"),
        Column("ok", "ok", 5),
        Column("note", "checked with", 60),
    ),
    cases=lambda settings: settings.choose(*TEN),
    rows=rows,
    verdicts=verdicts,
)
