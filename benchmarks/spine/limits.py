"""S3: a limit of exactly what the step charges, and one allocation unit less.

After warm-up the limit is set to the bytes that a steady step charges at its peak: the step passes.
Then to 64 bytes less: it raises, or gets by with less and gives the same bits; it leaves no byte behind, and
the next step gives the same bits.
"""

import gc
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks._measure import HighWater, Loop, digest
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import Planned, eager_peak, native, of_peak, planned, reachable
from tightrope.core import ALIGNMENT, format_bytes

_SHARE = 0.75
_NUM_TIMES = (100, 20)
"""Repetitions: all, or with ``--quick``."""


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Measure one net, many times over."""
    peak = eager_peak(name, settings)
    portion = reachable(name, settings, _SHARE, peak)
    with planned(name, settings, of_peak(portion, peak)) as net:
        yield {"net": name, "share": portion} | _repeat(net, _NUM_TIMES[settings.quick])


def _repeat(net: Planned, times: int) -> Row:
    loop, allocator = net.loop, native()
    for _ in range(3):
        _bits(loop)
    buffers = [buffer.detach().clone() for buffer in loop.model.buffers()]
    loop.clear()
    gc.collect()
    with HighWater(allocator) as water:
        want = _same(loop, buffers)
    limit = water.bytes
    passed = raised = less = recovered = leaked = 0
    for _ in range(times):
        with allocator.limited(limit):
            passed += _same(loop, buffers) == want
        live = allocator.stats().live
        with allocator.limited(limit - ALIGNMENT), HighWater(allocator) as water:
            found = _same(loop, buffers)
            gc.collect()
        raised += found is None
        less += found == want and water.bytes <= limit - ALIGNMENT
        leaked = max(leaked, allocator.stats().live - live)
        with allocator.limited(limit):
            recovered += _same(loop, buffers) == want
    return {
        "limit": limit,
        "times": times,
        "passed": passed,
        "raised": raised,
        "less": less,
        "recovered": recovered,
        "leaked": leaked,
        "divergences": net.report.divergences,
    }


def _bits(loop: Loop) -> tuple[str, ...]:
    """One step from a fixed seed, with the buffers as they are."""
    loop.clear()
    torch.manual_seed(0)
    found = digest([loop.step(), *(parameter.grad for parameter in loop.model.parameters())])
    after = digest(list(loop.model.buffers()))
    loop.clear()
    return found, after


def _restore(loop: Loop, buffers: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for buffer, before in zip(loop.model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _same(loop: Loop, buffers: Sequence[Tensor]) -> tuple[str, ...] | None:
    """One step from the same weights, buffers and seed; None when it does not fit."""
    _restore(loop, buffers)
    try:
        return _bits(loop)
    except torch.OutOfMemoryError:
        loop.clear()
        return None


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge S3: all pass; with less they raise or take less; the next step is equal; no byte leaks."""
    del settings
    total = sum(row["times"] for row in found)
    passed, raised, less, recovered = (
        sum(row[key] for row in found) for key in ("passed", "raised", "less", "recovered")
    )
    leaked = max((row["leaked"] for row in found), default=0)
    text = (
        f"passed {passed}/{total}, raised {raised}/{total}, planned in less {less}/{total}, "
        f"next step equal {recovered}/{total}, leaked {leaked} B"
    )
    return [Verdict("S3", passed == raised + less == recovered == total > 0 and not leaked, text)]


BAR = Bar(
    ids=("S3",),
    title=f"Limit = what the steady step charges, and {ALIGNMENT} B less, at {_SHARE:.0%} of the eager peak",
    columns=(
        Column("net", "net", 18),
        Column("share", "share", 6, share),
        Column("limit", "limit", 11, format_bytes),
        Column("times", "times", 6),
        Column("passed", "passed", 7),
        Column("raised", "raised", 7),
        Column("less", "in less", 7),
        Column("recovered", "next equal", 11),
        Column("leaked", "leaked B", 9),
        Column("divergences", "divergences", 11),
    ),
    cases=lambda settings: settings.choose("gpt2", "resnet18", "unet"),
    rows=rows,
    verdicts=verdicts,
)
