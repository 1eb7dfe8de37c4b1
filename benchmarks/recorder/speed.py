"""H4 and H6: analysis time of large profiles, and bytes per event in the file."""

import random
import time
from collections.abc import Sequence

from benchmarks.recorder.foreign import annotated
from benchmarks.recorder.nets import net
from benchmarks.recorder.row import Figure, Row
from benchmarks.zoo import Scale
from tightrope_trace import annotate, dump, parse_profile, tree_of
from tightrope_trace.slices import Slice, without_annotations

LIMITS = {10_000: 1.0, 217_000: 3.0}
"""Seconds of CPU time by number of events."""


def speed(name: str, scale: Scale) -> list[Row]:
    """Repeat the step of one net until the profile is large, and annotate it."""
    one = net(name, scale)
    modules, bare = tree_of(one.model), without_annotations(parse_profile(annotated(one)))
    rows = []
    for size, limit in LIMITS.items():
        many = _repeated(bare, size)
        start = time.thread_time()
        trace = annotate(many, modules)
        spent = time.thread_time() - start
        each = len(dump(trace)) / len(trace.events)
        figures: dict[str, Figure] = {
            "net": name,
            "events": len(many),
            "analysis, CPU s": spent,
            "bytes per event": each,
        }
        rows.append(Row(figures, spent <= limit and each <= 7))
    return rows


def _repeated(slices: Sequence[Slice], size: int) -> list[Slice]:
    """Training steps one after another, until there are ``size`` slices; no two steps take equally long."""
    rng = random.Random(0)
    found: list[Slice] = []
    start = 0
    while len(found) < size:
        pace, first = 1 + rng.random() / 2, len(found)
        found += [
            Slice(
                one.name, start + round(one.start * pace), start + round(one.end * pace), one.thread,
                one.parent + first if one.parent >= 0 else -1, annotation=one.annotation,
            )
            for one in slices[: size - len(found)]
        ]  # fmt: skip
        start = max(one.end for one in found[first:]) + 1000
    return found
