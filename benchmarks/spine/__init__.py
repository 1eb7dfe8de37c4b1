"""The spine's bars: real training steps under a hard byte budget, measured from end to end.

Run them with ``python -m benchmarks spine``. One file holds one question; `BARS` lists them all.
"""

from benchmarks.spine import (
    beforehand,
    budgets,
    chunks,
    compiling,
    curves,
    estimates,
    frontier,
    fused,
    limits,
    monotone,
    overwriting,
    refusals,
    replayed,
    shown,
    speed,
)
from benchmarks.spine.bar import Bar

BARS: tuple[Bar, ...] = (
    budgets.BAR,
    limits.BAR,
    curves.GPT2,
    curves.IMAGES,
    monotone.BAR,
    speed.BAR,
    replayed.BAR,
    refusals.BAR,
    estimates.BAR,
    beforehand.BAR,
    shown.BAR,
    fused.BAR,
    frontier.BAR,
    compiling.BAR,
    chunks.BAR,
    overwriting.BAR,
)
"""All bars, in the order in which they are run."""
