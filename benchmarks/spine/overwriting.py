"""U5: the smallest whole step where ops may write over inputs that end there, and where they may not.

The numbers are those that refusals of `tightrope.step` with AdamW name; each is then trained in, one step,
and the loss is compared with that of a step that has twice the room.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch

import tightrope
from benchmarks.spine.bar import Bar, Column, Row, Settings, Verdict, share
from benchmarks.spine.nets import fresh
from tightrope.core import Bytes, InfeasibleError, TightropeError, format_bytes
from tightrope.run.accounts import accounts

_FALL: Final = 0.05
_NUM_FALLING: Final = 2
_TOO_LITTLE: Bytes = 2**19


def rows(name: str, settings: Settings) -> Iterator[Row]:
    """Find the smallest budget without writes and with them, and train in both."""
    found: dict[bool, Bytes] = {}
    for overwrite in (False, True):
        _, named = _loss(name, settings, _TOO_LITTLE, overwrite=overwrite)
        if named is None:
            raise TightropeError(
                f"a step of {name} in {format_bytes(_TOO_LITTLE)} was not refused with a number."
            )
        found[overwrite] = named
    losses = [_loss(name, settings, found[overwrite], overwrite=overwrite)[0] for overwrite in found]
    losses.append(_loss(name, settings, 2 * found[False], overwrite=False)[0])
    yield {
        "net": name,
        "without": format_bytes(found[False]),
        "with": format_bytes(found[True]),
        "fall": 1 - found[True] / found[False],
        "same": losses[0] is not None and len(set(losses)) == 1,
    }


def _loss(
    name: str, settings: Settings, budget: Bytes, *, overwrite: bool
) -> tuple[float | None, Bytes | None]:
    """The loss of the first step, or the smallest budget that its refusal names."""
    case = fresh(name, settings)
    adamw = torch.optim.AdamW(case.model.parameters(), lr=1e-3, foreach=False)
    train = tightrope.step(
        case.model, budget=budget, model=case.model, optimizer=adamw, overwrite=overwrite, progress=False
    )
    torch.manual_seed(1)
    try:
        return float(train(*case.inputs)), None
    except InfeasibleError as error:
        return None, error.smallest_found
    finally:
        accounts().release(train)


def verdicts(found: Sequence[Row], settings: Settings) -> list[Verdict]:
    """Judge U5: two of the nets need at least 5 % less, and all train alike."""
    del settings
    there = [row for row in found if "fall" in row]
    low = [row["net"] for row in there if row["fall"] >= _FALL]
    alike = bool(there) and all(row["same"] for row in there)
    text = ", ".join(f"{row['net']} {100 * row['fall']:.1f} %" for row in there)
    return [
        Verdict(
            "U5",
            len(low) >= _NUM_FALLING and alike,
            f"writes save of the smallest step: {text}; losses equal: {alike}",
        )
    ]


BAR = Bar(
    ids=("U5",),
    title="The smallest whole step with AdamW, where results may be written over what ends, and not",
    columns=(
        Column("net", "net", 14),
        Column("without", "no writes", 12),
        Column("with", "writes", 12),
        Column("fall", "saved", 7, share),
        Column("same", "same loss", 9),
    ),
    cases=lambda settings: settings.choose("vit", "bert", "gpt2", "densenet121"),
    rows=rows,
    verdicts=verdicts,
)
