"""U2: time against bytes, one curve per way to save memory.

Eager, checkpointing of the first blocks, selective checkpointing, torch.compile's partitioner without
(aot_eager) and with generated kernels (Inductor) at six settings each, and plans op by op (L1) and
fused (L2) at ten budgets. ``--svg FILE`` draws them. *Of it heavy* is what products and attention take of a
plan's time by its forecast: no fusing makes that less.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.curves import bits_of_step, peer_row, planned_row
from benchmarks.spine.nets import eager_loop, eager_peak, fresh, of_peak
from benchmarks.spine.peers import (
    MEMORY_SHARES,
    POLICIES,
    Peer,
    activation_memory,
    compiled_by,
    first_blocks,
    layers,
    selective,
)
from tightrope.core import TightropeError

_SHARES = (0.8, 0.7, 0.61, 0.54, 0.47, 0.44, 0.41, 0.36, 0.31, 0.28)
_QUICK = (0.61, 0.47, 0.41, 0.31)
_MOST = 6
_LIMITS = ((0.61, 0.90), (0.47, 0.93), (0.41, 1.02), (0.31, 1.20))
"""Shares of the eager peak, and the times of eager's that a fused plan may take there."""


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure every contestant beside eager."""
    peak = eager_peak(name, settings)
    want = bits_of_step(eager_loop(fresh(name, settings)))
    for group, peer in _peers(name, settings):
        yield {"net": name, "eager_peak": peak, "group": group} | peer_row(name, peer, settings, peak, want)
    for fuse in (False, True):
        for portion in _QUICK if settings.quick else _SHARES:
            row: Row = {
                "net": name,
                "group": f"L{1 + fuse}",
                "who": f"L{1 + fuse} {portion:g}",
                "asked": portion,
            }
            yield row | planned_row(name, settings, of_peak(portion, peak), peak, want, fuse=fuse)


def _peers(name: str, settings: Settings) -> Iterator[tuple[str, Peer]]:
    yield "eager", Peer("eager again", lambda case: case.model.forward)
    most = len(layers(fresh(name, settings)))
    counts = sorted({round(most * k / min(most, _MOST)) for k in range(1, min(most, _MOST) + 1)})
    for count in counts:
        yield "per block", Peer(f"per block {count}/{most}", partial(first_blocks, count=count))
    for policy in POLICIES:
        yield "selective", Peer(f"selective: {policy}", partial(selective, policy=policy))
    for backend in ("aot_eager", "inductor"):
        for portion in MEMORY_SHARES:
            make = partial(compiled_by, backend=backend)
            yield backend, Peer(f"{backend} {portion:g}", make, partial(activation_memory, portion))


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge fused plans at four shares of the eager peak."""
    del settings
    texts, met = [], bool(found)
    for name in dict.fromkeys(row["net"] for row in found):
        fused = [row for row in found if row["net"] == name and row["group"] == "L2" and "ratio" in row]
        for most, longest in _LIMITS:
            mine = [row for row in fused if row["share"] <= most + 0.001]
            best = min(mine, key=lambda row: row["ratio"], default=None)
            met &= best is not None and best["ratio"] <= longest
            told = "none" if best is None else f"{best['ratio']:.3f}x"
            texts.append(f"{name} at {most:g}x bytes {told} time (asked {longest:g})")
    return [Verdict("U2", met, "; ".join(texts))]


def draw(found: Sequence[Row], path: Path) -> None:
    """Draw the curves of the first net as SVG.

    Raises:
        TightropeError: nothing was measured, or matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TightropeError("--svg draws with matplotlib: pip install matplotlib.") from error
    shown = [row for row in found if row["net"] == found[0]["net"] and "ratio" in row]
    if not shown:
        raise TightropeError("nothing was measured that could be drawn.")
    style: Any = {"svg.hashsalt": "tightrope", "svg.fonttype": "none", "font.family": "sans-serif"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8, 6), layout="constrained")
        axes = figure.add_subplot()
        for number, group in enumerate(dict.fromkeys(row["group"] for row in shown)):
            points = sorted((row["share"], row["ratio"]) for row in shown if row["group"] == group)
            planned = group in ("L1", "L2")
            axes.plot(
                *zip(*points, strict=True),
                marker="osD^vPX"[number % 7],
                linewidth=2.5 if planned else 1,
                linestyle="-" if planned else ":",
                label=_LABELS[group],
            )
        axes.set_xlabel("peak bytes of a training step, as a share of eager's")
        axes.set_ylabel("time, as a multiple of eager's")
        axes.set_title(f"{found[0]['net']}: forward and backward on one CPU thread")
        axes.grid(visible=True, alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


_LABELS = {
    "eager": "eager",
    "per block": "checkpoint, first k blocks",
    "selective": "selective checkpoint, six policies",
    "aot_eager": "aot_eager, activation_memory_budget",
    "inductor": "Inductor, activation_memory_budget",
    "L1": "tightrope, op by op",
    "L2": "tightrope, fused",
}

BAR = Bar(
    ids=("U2",),
    title="Time against bytes: every way to save memory",
    columns=(
        Column("net", "net", 17),
        Column("who", "who", 30),
        Column("share", "bytes/eager", 11, share),
        Column("time", "time/eager [95 %]", 24),
        Column("heavy", "of it heavy", 11, share),
        Column("tdi", "TDI %", 6, lambda value: f"{value:.1f}"),
        Column("equal", "bits equal", 10),
        Column("note", "note", 36),
    ),
    cases=lambda settings: settings.choose("gpt2_small_vocab"),
    rows=rows,
    verdicts=verdicts,
)
