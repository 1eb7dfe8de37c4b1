"""S4 and S5: bytes against time, with the peers in the same process.

Every contestant is paired with plain eager, step by step. Its bytes are the live peak of a step
above what is held at its start; for planned steps it is everything charged, the whole arena
included, which is never less.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks._measure import Loop, Ratio, digest, live_peak, paired_ratio
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import (
    UNLIMITED,
    Planned,
    eager_loop,
    eager_peak,
    finish_contest,
    fresh,
    native,
    of_peak,
    planned,
)
from benchmarks.spine.peers import Peer, peers
from benchmarks.spine.whole import whole_step
from tightrope.core import Bytes, Fused, InfeasibleError, Run, TightropeError, format_bytes
from tightrope.fuse.stretches import fusible
from tightrope.lower import lower
from tightrope.plan import smallest
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import CAPTURE_SLACK, RESERVE

_LIMITS = {"S4": 0.41, "S5": 0.6}
_LONGEST = 1.22


def rows(name: str, settings: Settings, *, limit: float) -> Iterator[Row]:
    """Measure the peers, then planned steps at the bar's share, at the best peer's, and the smallest."""
    peak = eager_peak(name, settings)
    want = bits_of_step(eager_loop(fresh(name, settings)))
    blocks: float | None = None
    for peer in peers(settings):
        row: Row = {"net": name, "eager_peak": peak} | peer_row(name, peer, settings, peak, want)
        if peer.name == "per block":
            blocks = row["share"]
        yield row
    asks: list[tuple[str, Callable[[Bytes], Bytes]]] = [(f"tightrope {limit:g}", of_peak(limit, peak))]
    if blocks is not None:
        asks.append(("tightrope = per block", of_peak(blocks - 64 / peak, peak)))
    asks.append(("tightrope smallest", _smallest_plan(name, settings)))
    for who, budget in asks:
        yield {"net": name, "eager_peak": peak, "who": who} | planned_row(name, settings, budget, peak, want)
    if limit == _LIMITS["S5"]:
        yield {"net": name} | whole_step(name, settings, limit)
        yield {"net": name} | whole_step(name, settings, None)


def _smallest_plan(name: str, settings: Settings) -> Callable[[Bytes], Bytes]:
    """The budget of the smallest plan, without what a refusal adds for optimizers and gradients that stay."""
    with planned(name, settings, lambda _: UNLIMITED) as net:
        net.loop.step()
        least = smallest(net.graph).forecast
        beside = net.compiled.calls.captured[-1].headroom.wanted + accounts().hidden
    return lambda before: before + RESERVE + CAPTURE_SLACK + beside + least.arena + least.outside


def _figures(ratio: Ratio) -> Row:
    return {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "time": str(ratio)}


def peer_row(name: str, peer: Peer, settings: Settings, peak: Bytes, want: str) -> Row:
    """Measure one peer beside eager: its share of the eager peak, its time, whether its bits are eager's."""
    case, twin = fresh(name, settings), eager_loop(fresh(name, settings))
    with peer.setting():
        loop = Loop(case.model, case.inputs, peer.make(case))
        equal = bits_of_step(loop) == want
        share = live_peak(loop, native()) / peak
        ratio = paired_ratio(loop, twin, num_pairs=settings.num_pairs)
    return {"who": peer.name, "share": share, "equal": equal} | _figures(ratio)


def planned_row(
    name: str,
    settings: Settings,
    budget: Callable[[Bytes], Bytes],
    peak: Bytes,
    want: str,
    *,
    fuse: bool = False,
) -> Row:
    """Measure a planned step beside eager, or say why there is none."""
    with planned(name, settings, budget, fuse=fuse) as net:
        try:
            equal = bits_of_step(net.loop) == want
        except InfeasibleError as error:
            return {"refused": True, "note": net.refused(error, peak)}
        except TightropeError as error:
            return {"failed": str(error), "note": str(error)}
        taken, seen = net.share_of(peak), net.report
        row: Row = {
            "share": taken,
            "live": seen.observed_peak / peak,
            "tdi": seen.overhead,
            "equal": equal,
        }
        if fuse:
            finish_contest(net)
        accounts().release(net.compiled)
        net.loop.clear()
        ratio = paired_ratio(net.loop, eager_loop(net.case), num_pairs=settings.num_pairs)
        return row | _figures(ratio) | {"heavy": ratio.median * _heavy_share(net)}


def _heavy_share(net: Planned) -> float:
    """Sum the forecast time of the ops that no fusing changes, by the step's."""
    runs = [each for each in lower(net.graph, net.plan).instructions if isinstance(each, Run | Fused)]
    heavy = sum(each.ns for each in runs if isinstance(each, Run) and not fusible(net.graph.op(each.op)))
    return heavy / sum(each.ns for each in runs)


def bits_of_step(loop: Loop) -> str:
    """Digest of the loss and the gradients of one step from a fixed seed and fresh weights."""
    loop.clear()
    torch.manual_seed(0)
    found = digest([loop.step(), *(parameter.grad for parameter in loop.model.parameters())])
    loop.clear()
    return found


def gpt2_verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge S4: the fastest planned point below the share, and one that beats per-block checkpointing."""
    del settings
    texts, met = [], bool(found)
    for name in dict.fromkeys(row["net"] for row in found):
        mine = [r for r in found if r["net"] == name and r["who"].startswith("tightrope") and "ratio" in r]
        block = next(r for r in found if r["net"] == name and r["who"] == "per block")
        small = [row for row in mine if row["share"] <= _LIMITS["S4"]]
        best = min(small, key=lambda row: row["ratio"], default=None)
        beats = [row for row in mine if row["share"] < block["share"] and row["ratio"] < block["ratio"]]
        met &= best is not None and best["ratio"] <= _LONGEST and best["equal"] and bool(beats)
        point = "none" if best is None else f"{best['ratio']:.3f}x time at {best['share']:.3f}x bytes"
        texts.append(
            f"{name}: {point}; per block {block['ratio']:.3f}x at {block['share']:.3f}x, "
            f"{'beaten on both' if beats else 'not beaten on both'}"
        )
    return [Verdict("S4", met, "; ".join(texts))]


def image_verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge S5: the smallest share that each net reached, by ``compile`` and by ``step``."""
    del settings
    texts, met = [], bool(found)
    for name in dict.fromkeys(row["net"] for row in found):
        mine = [r for r in found if r["net"] == name and r["who"].startswith("tightrope") and "ratio" in r]
        whole = [row for row in mine if row["who"].startswith("tightrope.step")]
        points = [("compile", [row for row in mine if row not in whole]), ("step", whole)]
        least = {who: min(rows, key=lambda row: row["share"], default=None) for who, rows in points}
        reached = [row for row in least.values() if row is not None and row["share"] <= _LIMITS["S5"]]
        met &= bool(reached) and all(row["equal"] for row in mine)
        told = (
            f"{who} none" if row is None else f"{who} {row['share']:.3f}x at {row['ratio']:.3f}x time"
            for who, row in least.items()
        )
        texts.append(f"{name}: {', '.join(told)}")
    return [Verdict("S5", met, "; ".join(texts))]


_COLUMNS = (
    Column("net", "net", 17),
    Column("who", "who", 22),
    Column("eager_peak", "eager peak", 11, format_bytes),
    Column("share", "bytes/eager", 11, share),
    Column("time", "time/eager [95 %]", 24),
    Column("tdi", "TDI %", 6, lambda value: f"{value:.1f}"),
    Column("equal", "bits equal", 10),
    Column("note", "note", 36),
)

GPT2 = Bar(
    ids=("S4",),
    title="GPT-2 4x256, batch 2 x 256: bytes and time beside eager",
    columns=_COLUMNS,
    cases=lambda settings: settings.choose("gpt2_small_vocab", "gpt2"),
    rows=lambda name, settings: rows(name, settings, limit=_LIMITS["S4"]),
    verdicts=gpt2_verdicts,
)

IMAGES = Bar(
    ids=("S5",),
    title="ResNet-18 and U-Net: bytes and time beside eager",
    columns=_COLUMNS,
    cases=lambda settings: settings.choose("resnet18", "unet"),
    rows=lambda name, settings: rows(name, settings, limit=_LIMITS["S5"]),
    verdicts=image_verdicts,
)
