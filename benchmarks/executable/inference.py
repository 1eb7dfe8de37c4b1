"""X5: inference is an executable of one part: planned, placed, judged, checked, under the same limit.

Each net runs under ``torch.no_grad()`` in evaluation mode: eagerly, under an ample budget, and under the
smallest budget that works. Peaks are the largest numbers of live bytes above what is held at the start.
Compared are the bits of what the net returns, and the forecast with the observed peak.
"""

import gc
from collections.abc import Iterator, Sequence

import torch

from benchmarks._measure import digest
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, count, share
from benchmarks.spine.nets import UNLIMITED, Planned, fresh, native, planned
from tightrope.core import Bytes, InfeasibleError, TightropeError, format_bytes
from tightrope.run.ledger.room import RESERVE

_NETS = ("gpt2", "bert", "vit", "llama", "resnet18", "vgg16", "unet", "mobilenetv2")
_NUM_BELOW = 5
_NUM_RUNS = 3


def _eager(name: str, settings: Settings) -> tuple[Bytes, str]:
    case = fresh(name, settings)
    case.model.eval()
    with torch.no_grad():
        for _ in range(2):
            case.model(*case.inputs)
        gc.collect()
        native().reset_peaks()
        before = native().stats().live
        result = case.model(*case.inputs)
        return native().stats().live_peak - before, digest([result])


def _observe(net: Planned) -> Row:
    """Run a few times; the worst of what is seen."""
    net.case.model.eval()
    row: Row = {"peak": 0, "gap": 0, "again": 0, "bits": set()}
    with torch.no_grad():
        for _ in range(_NUM_RUNS):
            row["bits"].add(digest([net.case.model(*net.case.inputs)]))
            report = net.report
            row["peak"] = max(row["peak"], report.observed_peak)
            row["gap"] = max(row["gap"], abs(report.observed_peak - report.forecast_peak))
            row["again"] = report.num_recomputed
        row["proved"] = bool(report.proofs) and all(proof.checked for proof in report.proofs)
        row["divergences"] = report.divergences
    return row


def _rows(name: str, settings: Settings) -> Iterator[Row]:
    peak, wanted = _eager(name, settings)
    with planned(name, settings, lambda _: UNLIMITED) as net:
        ample = _observe(net)
    with planned(name, settings, lambda before: before + RESERVE) as net:
        try:
            _observe(net)
            raise TightropeError(f"{name} runs without a byte above what it holds: that cannot be.")
        except InfeasibleError as error:
            named = 0 if error.smallest_found is None else error.smallest_found - net.held
    with planned(name, settings, lambda before: before + named) as net:
        least = _observe(net)
    yield {
        "net": name,
        "eager": peak,
        "ample": ample["peak"] / peak,
        "least": least["peak"] / peak,
        "again": least["again"],
        "equal": ample["bits"] == least["bits"] == {wanted},
        "gap": max(ample["gap"], least["gap"]),
        "proved": ample["proved"] and least["proved"],
        "divergences": ample["divergences"] + least["divergences"],
    }


def _verdict(rows: Sequence[Row], _: Settings) -> list[Verdict]:
    good = [row["equal"] and row["proved"] and not row["gap"] and not row["divergences"] for row in rows]
    within = [row["ample"] <= 1 for row in rows]
    below = [row["ample"] < 1 for row in rows]
    smallest = [row["least"] < 1 for row in rows]
    figure = (
        f"inference: peak of the ample plan <= eager's {count(within)}, below it {count(below)}; "
        f"of the smallest plan {count(smallest)}; bit-equal, as forecast, judged, checked {count(good)}"
    )
    return [Verdict("X5", all(good) and all(within) and sum(below) >= _NUM_BELOW, figure)]


BAR = Bar(
    ("X5",),
    "Inference under no_grad, in evaluation mode: peak as a share of eager's",
    (
        Column("net", "net", 14),
        Column("eager", "eager peak", 12, format_bytes),
        Column("ample", "ample", 8, share),
        Column("least", "smallest", 10, share),
        Column("again", "recomputed", 11),
        Column("equal", "bit-equal", 10),
        Column("gap", "gap B", 8),
        Column("proved", "checked", 8),
        Column("divergences", "div", 4),
    ),
    lambda settings: settings.choose(*_NETS),
    _rows,
    _verdict,
)
