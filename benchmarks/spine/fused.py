"""U1, U4 and E1: fused plans against Inductor at the bytes that Inductor needs.

Inductor runs at several shares of the activation memory that it would keep; at the live peak of each,
a plan is made, run op by op (L1) and fused (L2). Each is paired with plain eager, and each plan with
Inductor itself, step by step, once its contest is over: how often plain eager asks the system for pages
depends on what ran before, so that quotients of two ratios beside it would carry that noise twice. The
bytes of a plan are everything charged in a step above what is held, the whole arena included. A fused plan
may take another library for matrix products than Inductor does; E1 is of plans that may not.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import exp, log

import torch

from benchmarks._measure import Loop, live_peak, paired_ratio
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import eager_loop, eager_peak, finish_contest, fresh, native, of_peak, planned
from benchmarks.spine.peers import activation_memory, compiled_by
from tightrope.core import Bytes, InfeasibleError
from tightrope.run.ledger.accounts import accounts

_NETS = ("gpt2_small_vocab", "bert", "vit", "llama", "resnet18", "unet")
_SHARES = (1.0, 0.5, 0.3, 0.1, 0.0)
_QUICK = (1.0, 0.3)
_MEAN, _EVER = 0.97, 1.02
_EQUAL_MEAN, _EQUAL_EVER, _EQUAL_BELOW = 0.90, 0.97, 5
"""Of plans whose products are Inductor's."""


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure Inductor at each share, and plans at the bytes that it took."""
    peak = eager_peak(name, settings)
    least: float | None = None
    for portion in _QUICK if settings.quick else _SHARES:
        peer = _inductor(name, settings, portion, peak)
        peer |= {"net": name, "eager_peak": peak, "who": f"Inductor {portion:g}"}
        yield peer
        least = peer["share"] if least is None else min(least, peer["share"])
        for fuse, equal in ((False, False), (True, False), (True, True)):
            with _one_library() if equal else nullcontext():
                row = _planned(name, settings, of_peak(peer["share"], peak), peak, fuse=fuse, beside=portion)
            yield {
                "net": name,
                "who": f"L{1 + fuse}{'=' * equal} at {peer['share']:.3f}",
                "peer": peer["share"],
                "fuse": fuse and not equal,
                "equal": equal,
            } | row
    assert least is not None
    low = _planned(name, settings, of_peak(0.85 * least, peak), peak, fuse=True)
    yield {"net": name, "who": f"L2 at {0.85 * least:.3f}", "below": True} | low


@contextmanager
def _one_library() -> Iterator[None]:
    """Leave matrix products with torch's op, which Inductor calls, too."""
    room = sys.modules["tightrope.run.session.fused"]
    chosen = room.faster_products
    room.faster_products = lambda *_: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        room.faster_products = chosen  # type: ignore[attr-defined]


def _inductor(name: str, settings: Settings, portion: float, peak: Bytes) -> Row:
    case, twin = fresh(name, settings), eager_loop(fresh(name, settings))
    with activation_memory(portion):
        loop = Loop(case.model, case.inputs, compiled_by(case, backend="inductor"))
        loop.step()
        loop.clear()
        taken = live_peak(loop, native()) / peak
        ratio = paired_ratio(loop, twin, num_pairs=settings.num_pairs)
    return {"share": taken, "ratio": ratio.median, "interval": [ratio.low, ratio.high], "time": str(ratio)}


def _planned(
    name: str,
    settings: Settings,
    budget: Callable[[Bytes], Bytes],
    peak: Bytes,
    *,
    fuse: bool,
    beside: float | None = None,
) -> Row:
    """Measure a planned step beside eager, and beside Inductor at a share of its activation memory."""
    with planned(name, settings, budget, fuse=fuse) as net:
        try:
            net.loop.step()
        except InfeasibleError as error:
            return {"note": net.refused(error, peak)}
        net.loop.clear()
        taken, seen = net.share_of(peak), net.report
        row: Row = {
            "share": taken,
            "tdi": seen.overhead,
            "gap": seen.forecast_peak - seen.observed_peak,
            "stretches": sum(len(plan.stretches) for _, plan in seen.planned),
        }
        if fuse:
            finish_contest(net)
        row["level"] = net.report.level
        accounts().release(net.compiled)
        net.loop.clear()
        ratio = paired_ratio(net.loop, eager_loop(net.case), num_pairs=settings.num_pairs)
        row |= {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "time": str(ratio)}
        if beside is not None:
            with activation_memory(beside):
                # the same net: the weights of another one would count as held beside the plan
                forward = torch.compile(net.case.model.forward, backend="inductor", dynamic=False)
                rival = Loop(net.case.model, net.case.inputs, forward)
                against = paired_ratio(net.loop, rival, num_pairs=settings.num_pairs)
            row |= {"against": against.median, "against_interval": [against.low, against.high]}
        return row


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge time beside Inductor, bytes below it, and the forecasts."""
    del settings
    below = {row["net"]: "ratio" in row for row in found if row.get("below")}
    gaps = [row["gap"] for row in found if "gap" in row]
    said = f"; 15 % below Inductor's smallest: {sum(below.values())}/{len(below)}"
    text, met = _against([row for row in found if row.get("fuse")], _MEAN, _EVER)
    equal, met_equal = _against([row for row in found if row.get("equal")], _EQUAL_MEAN, _EQUAL_EVER)
    return [
        Verdict("U1", met and sum(below.values()) >= 4, text + said),
        Verdict("E1", met_equal and sum(below.values()) >= _EQUAL_BELOW, f"one library: {equal}{said}"),
        Verdict("U4", bool(gaps) and not any(gaps), f"forecast = observed in {gaps.count(0)}/{len(gaps)}"),
    ]


def _against(rows: Sequence[Row], most_mean: float, most: float) -> tuple[str, bool]:
    """Say how plans compare with Inductor, and whether that is below both shares of its time everywhere."""
    ratios = {f"{row['net']} at {row['peer']:.3f}x bytes": row["against"] for row in rows if "against" in row}
    refused = len(rows) - len(ratios)
    if not ratios:
        return f"{refused} points refused", False
    mean = exp(sum(map(log, ratios.values())) / len(ratios))
    worst = max(ratios, key=lambda point: ratios[point])
    text = f"{mean:.3f}x of Inductor's time in the geometric mean of {len(ratios)} points; worst "
    text += f"{ratios[worst]:.3f}x ({worst}); {refused} points refused"
    return text, mean <= most_mean and ratios[worst] <= most and not refused


BAR = Bar(
    ids=("U1", "U4", "E1"),
    title="Fused plans beside Inductor, at equal bytes",
    columns=(
        Column("net", "net", 17),
        Column("who", "who", 14),
        Column("share", "bytes/eager", 11, share),
        Column("time", "time/eager [95 %]", 24),
        Column("against", "/Inductor", 9, share),
        Column("tdi", "TDI %", 6, lambda value: f"{value:.1f}"),
        Column("stretches", "fused", 5),
        Column("level", "runs", 4),
        Column("gap", "gap", 5),
        Column("note", "note", 36),
    ),
    cases=lambda settings: settings.choose(*_NETS),
    rows=rows,
    verdicts=verdicts,
)
