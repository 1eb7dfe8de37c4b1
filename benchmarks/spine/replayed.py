"""S8: level 0 on unmodified eager training steps with AdamW.

The guarded loop and a twin without a guard train side by side in one process from the same weights
and seeds; after the recorded step every allocation must come from its planned address.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import tightrope
from benchmarks._measure import Loop, digest, paired_ratio
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, count
from benchmarks.spine.nets import clean, fresh, native
from benchmarks.zoo import build, optimizer
from tightrope.core import format_bytes

_BUDGET = 2**42
_NUM_STEPS = 8


class _Guarded(Loop):
    """A loop whose every step runs inside a replay."""

    guard: tightrope.Replay

    def step(self) -> Tensor:
        with self.guard:
            return super().step()


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Train one net with and without the guard."""
    case, twin = fresh(name, settings), build(name, scale=settings.scale)
    native()
    plain = Loop(twin.model, twin.inputs, twin.model, optimizer(twin, "adamw"))
    guarded = _Guarded(case.model, case.inputs, case.model, optimizer(case, "adamw"))
    guarded.guard = guard = tightrope.replay(_BUDGET)
    equal = [_loss(guarded, seed) == _loss(plain, seed) for seed in range(_NUM_STEPS)]
    ratio = paired_ratio(guarded, plain, num_pairs=settings.num_pairs)
    same = paired_ratio(plain, plain, num_pairs=settings.num_pairs)
    yield {
        "net": name,
        "hits": guard.hits,
        "misses": guard.misses,
        "outside": guard.outside_bytes,
        "arena": guard.arena,
        "live_peak": guard.live_peak,
        "losses_equal": all(equal),
        "ratio": ratio.median,
        "interval": str(ratio),
        "same": str(same),
    }
    guard.close()
    del case, twin, plain, guarded
    clean()


def _loss(loop: Loop, seed: int) -> str:
    torch.manual_seed(seed)
    loop.clear()
    return digest([loop.step()])


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """All hits, nothing outside, same losses, at most 3 % more time."""
    del settings
    served = [row["hits"] > 0 and not row["misses"] and not row["outside"] for row in found]
    losses = [row["losses_equal"] for row in found]
    slowest = max((row["ratio"] for row in found), default=0.0)
    text = (
        f"{count(served)} nets served as planned, {count(losses)} with identical losses, "
        f"slowest {slowest:.3f}x"
    )
    return [Verdict("S8", all(served) and all(losses) and bool(found) and slowest <= 1.03, text)]


BAR = Bar(
    ids=("S8",),
    title="Level 0: unmodified eager steps with AdamW, every allocation at its planned address",
    columns=(
        Column("net", "net", 12),
        Column("hits", "hits", 8),
        Column("misses", "misses", 7),
        Column("outside", "outside B", 9),
        Column("arena", "arena", 11, format_bytes),
        Column("losses_equal", "losses equal", 12),
        Column("interval", "time ratio [95 %]", 24),
        Column("same", "A/A", 24),
    ),
    cases=lambda settings: settings.choose("gpt2", "bert", "vit", "resnet18", "resnet50", "unet"),
    rows=rows,
    verdicts=verdicts,
)
