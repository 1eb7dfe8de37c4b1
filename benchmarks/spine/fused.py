"""U1, U2 and U4: fused plans beside Inductor at the bytes that Inductor needs.

Inductor runs at several shares of the activation memory that it would keep; at the live peak of each,
a plan is made, run op by op (L1) and fused (L2). Each is paired with plain eager, and each plan with
Inductor itself, step by step, once its contest is over: how often plain eager asks the system for pages
depends on what ran before, so that quotients of two ratios beside it would carry that noise twice. The
bytes of a plan are everything charged in a step above what is held, the whole arena included.
"""

from collections.abc import Callable, Iterator, Sequence
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


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure Inductor at each share, and plans at the bytes that it took."""
    peak = eager_peak(name, settings)
    least: float | None = None
    for portion in _QUICK if settings.quick else _SHARES:
        peer = _inductor(name, settings, portion, peak)
        peer |= {"net": name, "eager_peak": peak, "who": f"Inductor {portion:g}"}
        yield peer
        least = peer["share"] if least is None else min(least, peer["share"])
        for fuse in (False, True):
            row = _planned(name, settings, of_peak(peer["share"], peak), peak, fuse=fuse, beside=portion)
            yield {
                "net": name,
                "who": f"L{1 + fuse} at {peer['share']:.3f}",
                "peer": peer["share"],
                "fuse": fuse,
            } | row
    assert least is not None
    low = _planned(name, settings, of_peak(0.85 * least, peak), peak, fuse=True)
    yield {"net": name, "who": f"L2 at {0.85 * least:.3f}", "below": True} | low


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
    fused = [row for row in found if row.get("fuse") and "against" in row]
    refused = [row for row in found if row.get("fuse") and "against" not in row]
    ratios = [row["against"] for row in fused]
    mean = exp(sum(map(log, ratios)) / len(ratios)) if ratios else float("inf")
    worst = max(fused, key=lambda row: row["against"], default=None)
    text = f"{mean:.3f}x of Inductor's time in the geometric mean of {len(ratios)} points"
    if worst is not None:
        text += f"; worst {worst['against']:.3f}x ({worst['net']} at {worst['peer']:.3f}x bytes)"
    text += f"; {len(refused)} points refused"
    below = {row["net"]: "ratio" in row for row in found if row.get("below")}
    gaps = [row["gap"] for row in found if "gap" in row]
    met = bool(ratios) and mean <= _MEAN and max(ratios) <= _EVER and not refused and sum(below.values()) >= 4
    return [
        Verdict("U1", met, f"{text}; 15 % below Inductor's smallest: {sum(below.values())}/{len(below)}"),
        Verdict("U4", bool(gaps) and not any(gaps), f"forecast = observed in {gaps.count(0)}/{len(gaps)}"),
    ]


BAR = Bar(
    ids=("U1", "U4"),
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
